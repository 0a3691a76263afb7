"""AgentService where something is wrong: the code, the reason, and what a client can act on."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import pytest
from google.protobuf.struct_pb2 import ListValue, Value
from google.protobuf.timestamp_pb2 import Timestamp
from rpc_kit import (
    FUSE,
    MAX_MESSAGE,
    World,
    arguments,
    chat,
    everything,
    followup,
    invoke,
    ref,
    refusal,
    serving,
    soon,
    text,
    unpacked,
    until,
)

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import common_pb2 as common_pb
from innkeeper_server.rpc.agents import SERVICE

FUTURE_ENUM = 77


def _deep(levels: int) -> Value:
    value = Value(number_value=1)
    for _ in range(levels):
        value = Value(list_value=ListValue(values=[value]))
    return value


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (agent_pb.InvokeRequest(action="add"), "agent"),
        (agent_pb.InvokeRequest(agent=ref(""), action="add"), "agent.id"),
        (agent_pb.InvokeRequest(agent=ref("x" * 257), action="add"), "agent.id"),
        (agent_pb.InvokeRequest(agent=ref("a\nb"), action="add"), "agent.id"),
        (agent_pb.InvokeRequest(agent=ref("a", "not a type"), action="add"), "agent.type"),
        (agent_pb.InvokeRequest(agent=ref("a", "x" * 129), action="add"), "agent.type"),
        (
            agent_pb.InvokeRequest(agent=ref(), action="add", idempotency_key="k" * 257),
            "idempotency_key",
        ),
        (agent_pb.InvokeRequest(agent=ref(), busy_policy=3), "busy_policy"),
        (agent_pb.InvokeRequest(agent=ref(), busy_policy=FUTURE_ENUM), "busy_policy"),
        (invoke("add", n="many"), "input.n"),
        (invoke("add", extra=1), "input.extra"),
        (agent_pb.InvokeRequest(agent=ref(), action="add", input=text("one")), "input.n"),
        (
            agent_pb.InvokeRequest(
                agent=ref(), action="echo", input=common_pb.Payload(json=_deep(31))
            ),
            "input",
        ),
        (
            agent_pb.InvokeRequest(
                agent=ref(),
                action="echo",
                input=common_pb.Payload(json=Value(number_value=float("nan"))),
            ),
            "input",
        ),
        (agent_pb.StreamChatRequest(message=text("hi")), "agent"),
        (chat("hi", idempotency_key="k" * 257), "idempotency_key"),
        (chat("hi", busy_policy=3), "busy_policy"),
        (chat("hi", on_disconnect=FUTURE_ENUM), "on_disconnect"),
        (agent_pb.StreamChatRequest(agent=ref(), message=arguments(a=1)), "message"),
        (agent_pb.StreamChatRequest(agent=ref()), "message"),
        (agent_pb.FollowupRequest(message=text("hi")), "agent"),
        (agent_pb.FollowupRequest(agent=ref()), "message"),
        (followup("hi", idempotency_key="k" * 257), "idempotency_key"),
        (followup("hi", expires_at=Timestamp(nanos=-1)), "expires_at"),
        (followup("hi", expires_at=Timestamp(seconds=2**60)), "expires_at"),
        (agent_pb.CancelRequest(scope=1), "agent"),
        (agent_pb.CancelRequest(agent=ref()), "scope"),
        (agent_pb.CancelRequest(agent=ref(), scope=FUTURE_ENUM), "scope"),
        (agent_pb.CancelRequest(agent=ref(), scope=1, call_id="x"), "call_id"),
    ],
)
async def test_a_wrong_field_is_named_and_takes_nothing(
    it: World, request_: Any, field: str
) -> None:
    method = {
        agent_pb.InvokeRequest: it.stub.Invoke,
        agent_pb.StreamChatRequest: lambda request: everything(it.stub.StreamChat(request)),
        agent_pb.FollowupRequest: it.stub.Followup,
        agent_pb.CancelRequest: it.stub.Cancel,
    }[type(request_)]
    seen = await refusal(method(request_))
    assert (seen.code, seen.reason) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    assert seen.fields == (field,)
    assert (seen.retry_after, seen.pushback) == (None, "-1")
    assert it.host.account.slots == {}, "a wrong request brought an agent to life"


async def test_what_the_host_does_not_serve_says_so(it: World) -> None:
    unknown = agent_pb.InvokeRequest(agent=ref("a", "stranger"), action="add")
    seen = await refusal(it.stub.Invoke(unknown))
    assert (seen.code, seen.reason) == ("NOT_FOUND", "UNKNOWN_AGENT_TYPE")
    for wrong in (invoke("fly"), invoke(""), invoke("_step"), invoke("x\ny")):
        seen = await refusal(it.stub.Invoke(wrong))
        assert (seen.code, seen.reason) == ("UNIMPLEMENTED", "NO_HANDLER")


@pytest.mark.parametrize("method", ["Invoke", "StreamChat", "Followup", "Cancel"])
async def test_bytes_that_are_no_message_are_an_invalid_argument(it: World, method: str) -> None:
    garbage = b"\xff\xff\xff\xff"
    path = f"/{SERVICE}/{method}"
    if method == "StreamChat":
        call: Any = everything(it.channel.unary_stream(path)(garbage))
    else:
        call = it.channel.unary_unary(path)(garbage)
    seen = await refusal(call)
    assert (seen.code, seen.fields) == ("INVALID_ARGUMENT", ("request",))


async def test_a_reply_beyond_the_limit_is_refused_as_too_large(it: World) -> None:
    small = await soon(it.stub.Invoke(invoke("big", size=MAX_MESSAGE - 1000)))
    assert len(small.output.text) == MAX_MESSAGE - 1000
    seen = await refusal(it.stub.Invoke(invoke("big", size=MAX_MESSAGE)))
    assert (seen.code, seen.reason) == ("RESOURCE_EXHAUSTED", "TOO_LARGE")
    assert seen.metadata["limit"] == str(MAX_MESSAGE)


async def test_a_request_beyond_the_limit_is_refused(it: World) -> None:
    request = agent_pb.InvokeRequest(agent=ref(), action="echo", input=text("x" * MAX_MESSAGE))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await soon(it.stub.Invoke(request))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("how", ["secret", "cancelled", "exit"])
async def test_what_a_handler_raised_stays_in_the_log(
    it: World, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        seen = await refusal(it.stub.Invoke(invoke("fail", how=how)))
    assert (seen.code, seen.reason) == ("UNKNOWN", "HANDLER_FAILED")
    assert "hunter2" not in repr(seen)
    assert seen.metadata["error_id"] in caplog.text
    assert seen.pushback == "-1"
    assert await it.count() == 0


async def test_an_agents_own_error_reaches_the_caller_as_it_is(it: World) -> None:
    seen = await refusal(it.stub.Invoke(invoke("fail", how="on purpose")))
    assert (seen.code, seen.reason, seen.text) == ("NOT_FOUND", "AGENT_ERROR", "no such thing")
    assert seen.metadata == {"thing": "x"}


async def test_a_chat_that_fails_says_so_in_its_last_event_and_in_the_status(it: World) -> None:
    call = it.stub.StreamChat(chat("one fail"))
    events = [(await soon(call.read())).event for _ in range(2)]
    assert [event.WhichOneof("event") for event in events] == ["text_delta", "failed"]
    assert [event.cursor.seq for event in events] == [1, 2]
    inside = unpacked(events[1].failed.status)
    seen = await refusal(everything(call))
    assert (seen.code, seen.reason) == ("UNKNOWN", "HANDLER_FAILED")
    assert (inside.code, inside.text, inside.metadata) == (seen.code, seen.text, seen.metadata)
    assert await it.count() == 0


async def test_a_chat_that_is_cancelled_says_so_in_both(it: World) -> None:
    gate = it.gate("at-gate").shut()
    call = it.stub.StreamChat(chat("at-gate"))
    await gate.reached()
    await it.stub.Cancel(agent_pb.CancelRequest(agent=ref(), scope=agent_pb.CANCEL_SCOPE_ALL))
    last = await soon(call.read())
    assert last.event.cancelled.reason != ""
    seen = await refusal(everything(call))
    assert (seen.code, seen.reason) == ("CANCELLED", "CANCELLED")


async def test_a_busy_agent_refuses_who_will_not_wait() -> None:
    async with serving() as it:
        gate = it.gate("hold").shut()
        running = it.stub.Invoke(invoke("hold"))
        await gate.reached()
        hasty = agent_pb.InvokeRequest(agent=ref(), action="add", busy_policy=2)
        seen = await refusal(it.stub.Invoke(hasty))
        assert (seen.code, seen.reason) == ("ABORTED", "AGENT_BUSY")
        call = it.stub.StreamChat(chat("hi", busy_policy=common_pb.BUSY_POLICY_REJECT))
        seen = await refusal(everything(call))
        assert (seen.code, seen.reason) == ("ABORTED", "AGENT_BUSY")
        gate.open()
        await soon(running)


async def test_overload_tells_when_to_come_back() -> None:
    """No message goes before the status of a refused chat, so gRPC may retry it by itself."""
    async with serving(mailbox_size=1) as it:
        gate = it.gate("hold").shut()
        running = it.stub.Invoke(invoke("hold"))
        await gate.reached()
        await soon(it.stub.Followup(followup("waits")))
        stream = it.stub.StreamChat(chat("hi"))
        for call in (it.stub.Invoke(invoke("add")), it.stub.Followup(followup("x"))):
            seen = await refusal(call)
            assert (seen.code, seen.reason) == ("RESOURCE_EXHAUSTED", "MAILBOX_FULL")
            assert (seen.retry_after, seen.pushback) == (0.5, "500")
        assert (await refusal(stream.read())).reason == "MAILBOX_FULL"
        gate.open()
        await soon(running)


async def test_a_draining_host_refuses_with_a_retry(it: World) -> None:
    it.host.drains.begin()
    for call in (
        it.stub.Invoke(invoke("add")),
        it.stub.Followup(followup("x")),
        it.stub.StreamChat(chat("x")).read(),
    ):
        seen = await refusal(call)
        assert (seen.code, seen.reason) == ("UNAVAILABLE", "DRAINING")
        assert (seen.retry_after, seen.pushback) == (1.0, "1000")


async def test_a_deadline_ends_the_call_and_not_the_turn(it: World) -> None:
    """The client sees its own deadline; a running invoke goes on, one that waits is skipped."""
    gate = it.gate("hold").shut()
    running = it.stub.Invoke(invoke("hold"), timeout=0.2)
    await gate.reached()
    waiting = it.stub.Invoke(invoke("add"), timeout=0.2)
    for call in (running, waiting):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await soon(call)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await it.no_calls()
    gate.open()
    await soon(it.stub.Invoke(invoke("add", n=0)))
    assert await it.count() == 1


async def test_a_caller_that_leaves_takes_what_waits_with_it(it: World) -> None:
    gate = it.gate("hold").shut()
    running = it.stub.Invoke(invoke("hold"))
    await gate.reached()
    queued = [it.stub.Invoke(invoke("add")) for _ in range(3)]
    await until(lambda: it.queued() == 3)
    for call in (running, *queued):
        call.cancel()
    await it.no_calls()
    assert it.queued() == 0
    gate.open()
    await soon(it.stub.Invoke(invoke("add", n=0)))
    assert await it.count() == 1, "the running one went on"


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (agent_pb.ON_DISCONNECT_UNSPECIFIED, 0),
        (agent_pb.ON_DISCONNECT_CANCEL, 0),
        (agent_pb.ON_DISCONNECT_CONTINUE, 1),
    ],
)
async def test_a_reader_that_leaves_in_mid_stream(it: World, policy: int, kept: int) -> None:
    gate = it.gate("at-gate").shut()
    call = it.stub.StreamChat(chat("one at-gate two", on_disconnect=policy))
    assert (await soon(call.read())).event.text_delta == "one"
    await gate.reached()
    call.cancel()
    await it.no_calls()
    gate.open()
    await soon(it.end("at-gate").wait())
    await soon(it.stub.Invoke(invoke("add", n=0)))
    assert await it.count() == kept


async def test_a_reader_that_does_not_read_is_let_go(it: World) -> None:
    """More is said at once than the buffer may ever hold; what was on its way still comes."""
    seen = await refusal(everything(it.stub.StreamChat(chat("flood"))))
    assert (seen.code, seen.reason) == ("RESOURCE_EXHAUSTED", "SLOW_READER")


async def test_a_client_that_takes_nothing_is_let_go_in_time() -> None:
    """Its turn is stopped, since nobody reads it; and it learns why when it reads on."""
    async with serving(reader_timeout=FUSE) as it:
        it.gate("at-end").shut()
        gate = it.gate("at-gate").shut()
        call = it.stub.StreamChat(chat("one at-gate pour at-end"))
        assert (await soon(call.read())).event.text_delta == "one"
        await gate.reached()
        it.boundary.reader_timeout = 0.05  # from now on nothing is read
        gate.open()
        await it.no_calls()
        seen = await refusal(everything(call))
        assert (seen.code, seen.reason) == ("RESOURCE_EXHAUSTED", "SLOW_READER")
        await soon(it.stub.Invoke(invoke("add", n=0)))
        assert await it.count() == 0


async def test_a_client_that_takes_not_even_the_first_message_is_told_too() -> None:
    async with serving(reader_timeout=0.05) as it:
        call = it.stub.StreamChat(chat("pour"))
        await until(lambda: bool(it.boundary.finished))
        seen = await refusal(everything(call))
        assert (seen.code, seen.reason) == ("RESOURCE_EXHAUSTED", "SLOW_READER")


@pytest.mark.parametrize("method", ["Invoke", "StreamChat"])
async def test_a_caller_that_leaves_the_line_for_a_slot_takes_its_place_along(method: str) -> None:
    async with serving(capacity=1) as it:
        gate = it.gate("hold").shut()
        running = it.stub.Invoke(invoke("hold", "a"))
        await gate.reached()
        waiting = {
            "Invoke": lambda: it.stub.Invoke(invoke("add", "b")),
            "StreamChat": lambda: it.stub.StreamChat(chat("hi", "b")),
        }[method]()
        reading = asyncio.ensure_future(everything(waiting) if method == "StreamChat" else waiting)
        await until(lambda: it.host.account.waiting == 1)
        waiting.cancel()
        await until(lambda: it.host.account.waiting == 0)
        await asyncio.wait([reading], timeout=FUSE)
        assert reading.cancelled()
        gate.open()
        await soon(running)
        await soon(it.stub.Invoke(invoke("add", "b", n=0)))
        assert await it.count("b") == 0
