"""Sessions where all goes well: calls side by side, batches, pings, and both clean ends."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from rpc_kit import (
    CLOSE,
    Talk,
    World,
    arguments,
    chat,
    followup,
    frame,
    invoke,
    key,
    ping,
    ref,
    said,
    soon,
    text,
    until,
)

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import common_pb2 as common_pb
from innkeeper_server.slots import LeaseKind

ADD = agent_pb.InvokeRequest(action="add")


def leases(it: World, id: str = "a") -> list[LeaseKind]:
    """Who owns an agent now."""
    slot = it.host.account.slots.get(key(id))
    return [lease.kind for lease in slot.leases or ()] if slot is not None else []


async def test_an_opened_agent_stays_until_the_session_ends(it: World) -> None:
    talk = Talk(it)
    opened = await talk.open()
    assert opened.agent == ref()
    assert opened.session_id != ""
    assert opened.runtime_id == it.host.driver.find(key()).id  # type: ignore[union-attr]
    assert leases(it) == [LeaseKind.CONNECTION]
    await talk.close()
    await it.no_calls()
    assert leases(it) == []


async def test_the_type_is_filled_in_where_the_host_serves_one(it: World) -> None:
    talk = Talk(it)
    await talk.send(frame(open=agent_pb.OpenFrame(agent=ref("a", ""))))
    assert (await talk.next()).opened.agent == ref("a", "counter")
    await talk.close()


async def test_each_kind_of_call_is_answered_under_its_id(it: World) -> None:
    talk = Talk(it)
    await talk.open()
    await talk.send(frame("i", invoke=agent_pb.InvokeRequest(action="add", input=arguments(n=2))))
    answer = (await talk.answer("i")).result.invoke
    assert answer.output.json.number_value == 2
    assert answer.turn_id != ""
    assert answer.runtime_id != ""

    await talk.send(frame("c", chat=agent_pb.StreamChatRequest(message=text("one two"))))
    events = [(await talk.answer("c")).event for _ in range(3)]
    assert [event.text_delta for event in events] == ["one", "two", ""]
    assert events[2].completed.output.text == "onetwo"
    assert [event.cursor.seq for event in events] == [1, 2, 3]

    await talk.send(frame("m", message=said("you")))
    events = [(await talk.answer("m")).event for _ in range(2)]
    assert events[0].text_delta == "heard you"
    assert events[1].completed.output.text == "heard you"

    await talk.send(frame("f", followup=agent_pb.FollowupRequest(message=text("later"))))
    receipt = (await talk.answer("f")).result.followup.receipt
    assert receipt.state == common_pb.RECEIPT_STATE_ACCEPTED
    assert receipt.agent == ref()

    await talk.send(frame("x", cancel=agent_pb.CancelRequest(scope=agent_pb.CANCEL_SCOPE_QUEUE)))
    assert (await talk.answer("x")).result.WhichOneof("result") == "cancel"
    await talk.close()
    assert await it.count() == 5


async def test_a_session_without_an_agent_names_one_in_each_frame(it: World) -> None:
    talk = Talk(it)
    opened = await talk.open(None)
    assert not opened.HasField("agent")
    assert opened.runtime_id == ""
    await talk.send(frame("1", invoke=invoke("add", "a")), frame("2", invoke=invoke("add", "b")))
    assert {(await talk.next()).call_id for _ in range(2)} == {"1", "2"}
    assert (await it.count("a"), await it.count("b")) == (1, 1)
    await talk.send(frame("3", invoke=ADD))
    assert (await talk.error("3")).fields == ("agent",)
    await talk.close()


async def test_a_frame_may_name_another_agent_than_the_opened_one(it: World) -> None:
    talk = Talk(it)
    await talk.open("a")
    await talk.send(frame("1", invoke=invoke("add", "b")))
    await talk.answer("1")
    assert (await it.count("a"), await it.count("b")) == (0, 1)
    await talk.close()


@pytest.mark.parametrize("way", ["invoke", "chat", "message", "followup"])
async def test_twenty_at_once_count_to_exactly_twenty(it: World, way: str) -> None:
    talk = Talk(it)
    await talk.open()
    kinds = {
        "invoke": {"invoke": ADD},
        "chat": {"chat": agent_pb.StreamChatRequest(message=text("hi"))},
        "message": {"message": said("hi")},
        "followup": {"followup": agent_pb.FollowupRequest(message=text("hi"))},
    }
    await talk.send(*(frame(f"{n}", **kinds[way]) for n in range(20)))
    await talk.send(CLOSE)
    assert await talk.over() is grpc.StatusCode.OK
    await soon(it.stub.Invoke(invoke("add", n=0)))
    assert await it.count() == 20


async def test_a_session_opens_and_calls_in_one_message(it: World) -> None:
    """Whoever is in a hurry need not wait for `opened`, which still comes first."""
    talk = Talk(it)
    await talk.send(
        frame(open=agent_pb.OpenFrame(agent=ref())), frame("1", invoke=ADD), ping(7), CLOSE
    )
    kinds = []
    while True:
        try:
            kinds.append((await talk.next()).WhichOneof("frame"))
        except EOFError:
            break
    assert kinds[0] == "opened"
    assert sorted(kinds[1:3]) == ["pong", "result"]
    assert kinds[3:] == ["closed"]


async def test_frames_that_are_ready_together_travel_together(it: World) -> None:
    """A message full of pings comes back as one message full of pongs."""
    talk = Talk(it)
    await talk.open(None)
    await talk.send(*(ping(n, f"p{n}") for n in range(50)))
    pongs = [await talk.next() for _ in range(50)]
    assert [(pong.call_id, pong.pong.nonce) for pong in pongs] == [(f"p{n}", n) for n in range(50)]
    assert talk.sizes[1:] == [50]
    await talk.send(*(ping(n) for n in range(1000)))
    assert [(await talk.next()).pong.nonce for _ in range(1000)] == list(range(1000))
    assert max(talk.sizes) <= 64
    await talk.close()


async def test_a_ping_is_answered_while_the_agent_works(it: World) -> None:
    gate = it.gate("hold").shut()
    talk = Talk(it)
    await talk.open()
    hold = agent_pb.InvokeRequest(action="hold")
    await talk.send(frame("1", invoke=hold), *(frame(f"q{n}", invoke=ADD) for n in range(100)))
    await gate.reached()
    await talk.send(ping(-(2**63)))
    assert (await talk.answer("")).pong.nonce == -(2**63)
    gate.open()
    assert (await talk.answer("1")).result.invoke.output.text == "hold"
    for n in range(100):
        await talk.answer(f"q{n}")
    await talk.close()


async def test_an_ack_is_taken_in_silence(it: World) -> None:
    talk = Talk(it)
    await talk.open()
    cursor = common_pb.Cursor(epoch=1, turn_id="t", seq=1)
    await talk.send(frame(ack=agent_pb.AckFrame(cursor=cursor)), ping(1))
    assert (await talk.next()).pong.nonce == 1
    await talk.close()


async def test_close_lets_what_is_in_flight_end_first(it: World) -> None:
    gate = it.gate("hold").shut()
    talk = Talk(it)
    await talk.open()
    await talk.send(
        frame("1", invoke=agent_pb.InvokeRequest(action="hold")), frame("2", invoke=ADD), CLOSE
    )
    await gate.reached()
    await talk.send(ping(1, "late"))
    assert (await talk.error("late")).reason == "SESSION_PROTOCOL"
    await soon(talk.call.done_writing())
    gate.open()
    kinds = [(await talk.next()).WhichOneof("frame") for _ in range(3)]
    assert kinds == ["result", "result", "closed"]
    assert await talk.over() is grpc.StatusCode.OK
    assert await it.count() == 2


async def test_a_call_id_is_free_again_once_it_was_answered(it: World) -> None:
    talk = Talk(it)
    await talk.open()
    for n in range(1, 4):
        await talk.send(frame("same", invoke=ADD))
        assert (await talk.answer("same")).result.invoke.output.json.number_value == n
    await talk.close()


async def test_a_cancel_names_a_call_of_the_session(it: World) -> None:
    gate = it.gate("hold").shut()
    talk = Talk(it)
    await talk.open(None)
    await talk.send(frame("1", invoke=invoke("hold")), frame("2", invoke=invoke("add")))
    await gate.reached()
    await talk.send(frame("x", cancel=agent_pb.CancelRequest(call_id="2")))
    answers = {(answer := await talk.next()).call_id: answer for _ in range(2)}
    [stopped] = answers["x"].result.cancel.cancelled
    assert (stopped.kind, stopped.was_running) == ("invoke", False)
    assert answers["2"].error.code == grpc.StatusCode.CANCELLED.value[0]
    await talk.send(frame("y", cancel=agent_pb.CancelRequest(call_id="2")))
    assert list((await talk.answer("y")).result.cancel.cancelled) == []
    gate.open()
    await talk.answer("1")
    await talk.close()
    assert await it.count() == 1


async def test_a_cancelled_chat_ends_with_its_terminal_event(it: World) -> None:
    gate = it.gate("at-gate").shut()
    talk = Talk(it)
    await talk.open()
    await talk.send(frame("c", chat=agent_pb.StreamChatRequest(message=text("one at-gate"))))
    assert (await talk.answer("c")).event.text_delta == "one"
    await gate.reached()
    await talk.send(frame("x", cancel=agent_pb.CancelRequest(scope=agent_pb.CANCEL_SCOPE_TURN)))
    answers = {(answer := await talk.next()).call_id: answer for _ in range(2)}
    assert answers["x"].result.cancel.cancelled[0].was_running
    assert answers["c"].event.WhichOneof("event") == "cancelled"
    await talk.close()


async def test_a_detach_skips_what_waits_and_keeps_followups(it: World) -> None:
    """The end of the stream without `close`: the running invoke goes on, the queued one is
    skipped, the follow-up stays."""
    gate = it.gate("hold").shut()
    talk = Talk(it)
    await talk.open()
    await talk.send(frame("1", invoke=agent_pb.InvokeRequest(action="hold")))
    await gate.reached()
    later = agent_pb.FollowupRequest(message=text("later"))
    await talk.send(frame("2", invoke=ADD), frame("f", followup=later))
    await talk.answer("f")
    await soon(talk.call.done_writing())
    assert await talk.over() is grpc.StatusCode.OK
    await it.no_calls()
    gate.open()
    await soon(it.stub.Invoke(invoke("add", n=0)))
    assert await it.count() == 2


@pytest.mark.parametrize(("policy", "kept"), [(0, 0), (1, 0), (2, 1)])
@pytest.mark.parametrize("way", ["half-close", "cancel"])
async def test_a_detach_in_mid_chat_does_as_the_chat_asked(
    it: World, policy: int, kept: int, way: str
) -> None:
    gate = it.gate("at-gate").shut()
    talk = Talk(it)
    await talk.open()
    request = agent_pb.StreamChatRequest(message=text("one at-gate two"), on_disconnect=policy)
    await talk.send(frame("c", chat=request))
    await gate.reached()
    if way == "cancel":
        talk.call.cancel()
    else:
        await soon(talk.call.done_writing())
    await it.no_calls()
    gate.open()
    await soon(it.end("at-gate").wait())
    await soon(it.stub.Invoke(invoke("add", n=0)))
    assert await it.count() == kept


async def test_a_message_whose_sender_left_is_stopped(it: World) -> None:
    gate = it.gate("hi").shut()
    talk = Talk(it)
    await talk.open()
    await talk.send(frame("m", message=said("hi")))
    await gate.reached()
    talk.call.cancel()
    await it.no_calls()
    await soon(it.end("hi").wait())
    await soon(it.stub.Invoke(invoke("add", n=0)))
    assert await it.count() == 0


@pytest.mark.parametrize("way", ["close", "half-close", "cancel", "faults"])
async def test_a_session_leaves_no_tasks_behind(it: World, way: str) -> None:
    await soon(it.stub.Invoke(invoke("add")))
    await it.no_calls()
    before = len(asyncio.all_tasks())
    gate = it.gate("hold").shut()
    talk = Talk(it)
    await talk.open()
    hold = agent_pb.InvokeRequest(action="hold")
    await talk.send(frame("1", invoke=hold), *(frame(f"q{n}", invoke=ADD) for n in range(5)))
    await talk.send(frame("c", chat=chat("hi")), frame("f", followup=followup("hi")))
    await gate.reached()
    if way == "close":
        await talk.send(CLOSE)
        gate.open()
        assert await talk.over() is grpc.StatusCode.OK
    elif way == "half-close":
        await soon(talk.call.done_writing())
        assert await talk.over() is grpc.StatusCode.OK
    elif way == "cancel":
        talk.call.cancel()
    else:
        await soon(talk.call.write(agent_pb.SessionRequest()))  # no frame is no fault
        twice = frame(open=agent_pb.OpenFrame())
        await talk.send(*(twice for _ in range(5)))
        talk.call.cancel()
    await it.no_calls()
    gate.open()
    del talk
    await soon(it.stub.Invoke(invoke("add", n=0)))
    await it.no_calls()
    await until(lambda: len(asyncio.all_tasks()) <= before)
    assert it.service._sessions == set()
