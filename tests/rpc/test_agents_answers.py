"""AgentService where all goes well: what comes back, in which shape, and what the store keeps."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value
from google.protobuf.timestamp_pb2 import Timestamp
from rpc_kit import (
    World,
    chat,
    everything,
    followup,
    invoke,
    ref,
    refusal,
    serving,
    soon,
    text,
    until,
)

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import common_pb2 as common_pb


async def test_an_invoke_answers_with_output_turn_and_runtime(it: World) -> None:
    first = await soon(it.stub.Invoke(invoke("add", n=2)))
    second = await soon(it.stub.Invoke(invoke("add", n=3)))
    assert (first.output.json.number_value, second.output.json.number_value) == (2, 5)
    assert first.runtime_id == second.runtime_id != ""
    assert first.turn_id != second.turn_id
    assert not first.replayed
    assert await it.count() == 5


async def test_the_type_may_be_left_out_where_the_host_serves_one(it: World) -> None:
    request = agent_pb.InvokeRequest(agent=ref("a", ""), action="add")
    assert (await soon(it.stub.Invoke(request))).output.json.number_value == 1
    assert await it.count() == 1


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -7,
        2**53,
        0.5,
        1e300,
        "",
        "ünïcode ☃",
        [],
        {},
        {"": None},
        [1, [2.5, [{}, []]], {"deep": {"er": [None, False]}}],
    ],
)
async def test_json_comes_back_as_it_went(it: World, value: Any) -> None:
    asked = ParseDict({"value": value}, Value())
    request = agent_pb.InvokeRequest(
        agent=ref(), action="echo", input=common_pb.Payload(json=asked)
    )
    output = (await soon(it.stub.Invoke(request))).output
    if value is None:
        assert output.WhichOneof("content") is None
    elif isinstance(value, str):
        assert output.text == value
    else:
        assert MessageToDict(output.json) == value


async def test_whole_numbers_arrive_as_integers(it: World) -> None:
    """The wire has doubles only; an action that wants an `int` takes them all the same."""
    assert (await soon(it.stub.Invoke(invoke("add", n=3.0)))).output.json.number_value == 3


async def test_data_keeps_its_media_type(it: World) -> None:
    output = (await soon(it.stub.Invoke(invoke("data")))).output
    assert (output.data, output.content_type) == (b"\x00\x01", "image/png")


async def test_a_chat_streams_what_is_said_and_ends_with_its_terminal_event(it: World) -> None:
    messages = await soon(everything(it.stub.StreamChat(chat("hello custom world"))))
    events = [message.event for message in messages]
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds == ["text_delta", "custom", "text_delta", "completed"]
    assert [event.cursor.seq for event in events] == [1, 2, 3, 4]
    assert {(event.cursor.epoch, event.cursor.turn_id) for event in events} == {
        (events[0].cursor.epoch, events[0].cursor.turn_id)
    }
    assert events[0].cursor.epoch > 0
    assert events[1].custom.name == "event"
    data = MessageToDict(events[1].custom.data)
    assert data == {"half": 0.5, "whole": 3, "list": [None, True, "text"]}
    assert events[3].completed.output.WhichOneof("content") is None, "not all of it was text"
    assert messages[0].runtime_id != ""
    assert [message.runtime_id for message in messages[1:]] == ["", "", ""]


async def test_a_chat_of_text_ends_with_the_whole_text(it: World) -> None:
    messages = await soon(everything(it.stub.StreamChat(chat("a b c"))))
    assert messages[-1].event.completed.output.text == "abc"


async def test_a_followup_is_acknowledged_before_it_runs(it: World) -> None:
    gate = it.gate("later").shut()
    before = time.time()
    receipt = (await soon(it.stub.Followup(followup("later")))).receipt
    assert receipt.state == common_pb.RECEIPT_STATE_ACCEPTED
    assert receipt.receipt_id != ""
    assert receipt.agent == ref()
    assert before - 1 < receipt.accepted_at.ToMilliseconds() / 1000 < time.time() + 1
    assert receipt.attempt == 0
    await gate.reached()
    assert await it.count() == 0
    gate.open()
    await soon(it.stub.Invoke(invoke("add", n=0)))
    assert await it.count() == 1


async def test_a_followup_that_expired_never_runs(it: World) -> None:
    """The agent is there, so it is taken; but its time has passed already."""
    await soon(it.stub.Invoke(invoke("add")))
    expired = followup("late", expires_at=Timestamp(seconds=1))
    await soon(it.stub.Followup(expired))
    await soon(it.stub.Followup(followup("kept", expires_at=Timestamp(seconds=4_000_000_000))))
    await soon(it.stub.Invoke(invoke("add")))
    assert await it.count() == 3


async def test_a_cancel_stops_the_running_turn_alone(it: World) -> None:
    gate = it.gate("hold").shut()
    running = it.stub.Invoke(invoke("hold"))
    queued = it.stub.Invoke(invoke("add"))
    await gate.reached()
    request = agent_pb.CancelRequest(agent=ref(), scope=agent_pb.CANCEL_SCOPE_TURN)
    stopped = (await soon(it.stub.Cancel(request))).cancelled
    assert [(work.kind, work.was_running) for work in stopped] == [("invoke", True)]
    seen = await refusal(running)
    assert (seen.code, seen.reason, seen.pushback) == ("CANCELLED", "CANCELLED", "-1")
    assert (await soon(queued)).output.json.number_value == 1, "nothing of the other was kept"


async def test_a_cancel_of_the_queue_leaves_the_running_turn(it: World) -> None:
    gate = it.gate("hold").shut()
    running = it.stub.Invoke(invoke("hold"))
    await gate.reached()
    receipts = [(await soon(it.stub.Followup(followup("x")))).receipt for _ in range(3)]
    one = agent_pb.CancelRequest(agent=ref(), call_id=receipts[1].receipt_id)
    stopped = (await soon(it.stub.Cancel(one))).cancelled
    assert [(work.id, work.kind) for work in stopped] == [(receipts[1].receipt_id, "followup")]
    rest = agent_pb.CancelRequest(agent=ref(), scope=agent_pb.CANCEL_SCOPE_QUEUE)
    stopped = (await soon(it.stub.Cancel(rest))).cancelled
    assert [work.id for work in stopped] == [receipts[0].receipt_id, receipts[2].receipt_id]
    assert (await soon(it.stub.Cancel(rest))).cancelled == []
    gate.open()
    assert (await soon(running)).output.text == "hold"
    assert await it.count() == 1


@pytest.mark.parametrize("way", ["Invoke", "StreamChat", "Followup"])
async def test_twenty_at_once_count_to_exactly_twenty(it: World, way: str) -> None:
    async def one() -> None:
        if way == "Invoke":
            await it.stub.Invoke(invoke("add"))
        elif way == "StreamChat":
            await everything(it.stub.StreamChat(chat("hello")))
        else:
            await it.stub.Followup(followup("hello"))

    await soon(asyncio.gather(*(one() for _ in range(20))))
    assert (await soon(it.stub.Invoke(invoke("add", n=0)))).output.json.number_value == 20
    assert await it.count() == 20


async def test_a_chat_goes_into_the_mailbox_like_anything_else(it: World) -> None:
    gate = it.gate("at-gate").shut()
    talking = it.stub.StreamChat(chat("one at-gate two"))
    first = await soon(talking.read())
    await gate.reached()
    adding = it.stub.Invoke(invoke("add"))
    await until(lambda: it.queued() == 1)
    gate.open()
    assert (await soon(adding)).output.json.number_value == 2
    assert [first.event.text_delta] + [
        message.event.text_delta for message in await soon(everything(talking))
    ] == ["one", "two", ""]


async def test_text_is_the_argument_of_an_action_with_one(it: World) -> None:
    request = agent_pb.InvokeRequest(agent=ref(), action="echo", input=text("as it is"))
    assert (await soon(it.stub.Invoke(request))).output.text == "as it is"


async def test_a_full_host_serves_one_agent_after_another() -> None:
    async with serving(capacity=1) as it:
        for id in ("a", "b", "a"):
            await soon(it.stub.Invoke(invoke("add", id)))
        assert (await it.count("a"), await it.count("b")) == (2, 1)


async def test_calls_leave_no_tasks_behind(it: World) -> None:
    await soon(it.stub.Invoke(invoke("add")))
    await it.no_calls()
    before = len(asyncio.all_tasks())
    await soon(it.stub.Invoke(invoke("add")))
    await soon(everything(it.stub.StreamChat(chat("a b"))))
    await soon(it.stub.Followup(followup("x")))
    await refusal(it.stub.Invoke(invoke("none")))
    await soon(it.stub.Invoke(invoke("add", n=0)))
    await it.no_calls()
    await until(lambda: len(asyncio.all_tasks()) <= before)
    assert grpc.StatusCode.OK.name in {code for _, code in it.boundary.finished}
