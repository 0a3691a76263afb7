"""Sessions where something is wrong: what fails a call, what fails the session, who is let go."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from rpc_kit import (
    CLOSE,
    FUSE,
    MAX_MESSAGE,
    Talk,
    World,
    arguments,
    chat,
    followup,
    frame,
    invoke,
    ping,
    ref,
    refusal,
    said,
    serving,
    soon,
    text,
    unpacked,
    until,
)

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper_server.rpc.inflight import MAX_IN_FLIGHT

ADD = agent_pb.InvokeRequest(action="add")
HOLD = agent_pb.InvokeRequest(action="hold")


@pytest.mark.parametrize(
    "first", [ping(1), frame("1", invoke=invoke("add")), CLOSE, agent_pb.ClientFrame(call_id="1")]
)
async def test_a_session_begins_with_open(it: World, first: agent_pb.ClientFrame) -> None:
    talk = Talk(it)
    await talk.send(first)
    seen = await refusal(talk.next())
    assert (seen.code, seen.reason) == ("FAILED_PRECONDITION", "SESSION_PROTOCOL")
    assert await it.count() == 0


@pytest.mark.parametrize(
    ("agent", "code", "reason"),
    [
        (ref("a", "stranger"), "NOT_FOUND", "UNKNOWN_AGENT_TYPE"),
        (ref("a\0"), "INVALID_ARGUMENT", "INVALID_REQUEST"),
        (ref(""), "INVALID_ARGUMENT", "INVALID_REQUEST"),
    ],
)
async def test_a_session_on_what_cannot_be_opened_fails(
    it: World, agent: Message, code: str, reason: str
) -> None:
    talk = Talk(it)
    await talk.send(frame(open=agent_pb.OpenFrame(agent=agent)))  # type: ignore[arg-type]
    seen = await refusal(talk.next())
    assert (seen.code, seen.reason) == (code, reason)


async def test_a_session_that_gets_no_slot_in_time_fails() -> None:
    async with serving(capacity=1, admission_timeout=0.01) as it:
        first = Talk(it)
        await first.open("a")
        second = Talk(it)
        await second.send(frame(open=agent_pb.OpenFrame(agent=ref("b"))))
        seen = await refusal(second.next())
        assert (seen.code, seen.reason) == ("RESOURCE_EXHAUSTED", "CAPACITY_EXHAUSTED")
        assert seen.retry_after is not None
        await first.close()


async def test_a_session_that_waits_to_be_opened_can_be_left() -> None:
    async with serving(capacity=1) as it:
        first = Talk(it)
        await first.open("a")
        second = Talk(it)
        await second.send(frame(open=agent_pb.OpenFrame(agent=ref("b"))))
        await until(lambda: it.host.account.waiting == 1)
        second.call.cancel()
        await until(lambda: it.host.account.waiting == 0)
        await first.close()


@pytest.mark.parametrize(
    "frame_",
    [
        frame(invoke=ADD),
        frame(chat=chat("hi")),
        frame(followup=followup("hi")),
        frame(message=said("hi")),
        frame(cancel=agent_pb.CancelRequest(scope=1)),
    ],
)
async def test_a_call_needs_an_id(it: World, frame_: agent_pb.ClientFrame) -> None:
    talk = Talk(it)
    await talk.open()
    await talk.send(frame_)
    seen = await talk.error("")
    assert (seen.code, seen.fields) == ("INVALID_ARGUMENT", ("call_id",))
    await talk.close()
    assert await it.count() == 0


async def test_an_endless_id_is_refused_and_cut_short(it: World) -> None:
    talk = Talk(it)
    await talk.open()
    await talk.send(frame("x" * 1_000_000, invoke=ADD))
    assert (await talk.error("x" * 256)).fields == ("call_id",)
    await talk.close()


@pytest.mark.parametrize(
    ("frame_", "field"),
    [
        (frame("1"), "frame"),
        (frame("1", invoke=agent_pb.InvokeRequest(agent=ref("a", "no type"))), "agent.type"),
        (
            frame("1", invoke=agent_pb.InvokeRequest(action="add", idempotency_key="\n")),
            "idempotency_key",
        ),
        (frame("1", invoke=agent_pb.InvokeRequest(busy_policy=3)), "busy_policy"),
        (frame("1", chat=agent_pb.StreamChatRequest(on_disconnect=9)), "on_disconnect"),
        (frame("1", message=agent_pb.MessageFrame(message=arguments(a=1))), "message"),
        (frame("1", message=agent_pb.MessageFrame()), "message"),
        (frame("1", followup=followup("x", expires_at=Timestamp(nanos=-1))), "expires_at"),
        (frame("1", cancel=agent_pb.CancelRequest()), "scope"),
        (frame("1", ack=agent_pb.AckFrame()), "cursor"),
    ],
)
async def test_a_wrong_frame_fails_alone(
    it: World, frame_: agent_pb.ClientFrame, field: str
) -> None:
    talk = Talk(it)
    await talk.open()
    await talk.send(frame_)
    seen = await talk.error("1")
    assert (seen.code, seen.reason, seen.fields) == (
        "INVALID_ARGUMENT",
        "INVALID_REQUEST",
        (field,),
    )
    await talk.send(frame("1", invoke=ADD))
    assert (await talk.answer("1")).result.invoke.output.json.number_value == 1
    await talk.close()


async def test_an_id_that_is_in_flight_is_refused(it: World) -> None:
    gate = it.gate("hold").shut()
    talk = Talk(it)
    await talk.open()
    await talk.send(frame("1", invoke=HOLD), frame("1", invoke=ADD))
    assert (await talk.error("1")).reason == "SESSION_PROTOCOL"
    await talk.send(frame("1", cancel=agent_pb.CancelRequest(scope=1)))
    assert (await talk.error("1")).reason == "SESSION_PROTOCOL"
    gate.open()
    assert (await talk.answer("1")).result.invoke.output.text == "hold"
    await talk.close()
    assert await it.count() == 1


async def test_nothing_is_begun_after_close(it: World) -> None:
    gate = it.gate("hold").shut()
    talk = Talk(it)
    await talk.open()
    await talk.send(frame("1", invoke=HOLD), CLOSE, frame("2", invoke=ADD), ping(3, "3"))
    for call_id in ("2", "3"):
        assert (await talk.error(call_id)).reason == "SESSION_PROTOCOL"
    gate.open()
    await talk.answer("1")
    assert (await talk.next()).WhichOneof("frame") == "closed"
    assert await talk.over() is grpc.StatusCode.OK
    assert await it.count() == 1


async def test_a_second_open_is_refused_and_the_session_goes_on(it: World) -> None:
    talk = Talk(it)
    await talk.open()
    await talk.send(frame("o", open=agent_pb.OpenFrame(agent=ref("b"))))
    assert (await talk.error("o")).reason == "SESSION_PROTOCOL"
    await talk.close()


async def test_a_session_has_so_many_calls_in_flight_at_most(it: World) -> None:
    gate = it.gate("hold").shut()
    talk = Talk(it)
    await talk.open()
    await talk.send(*(frame(f"{n}", invoke=HOLD) for n in range(MAX_IN_FLIGHT + 1)))
    seen = await talk.error(f"{MAX_IN_FLIGHT}")
    assert (seen.code, seen.retry_after) == ("RESOURCE_EXHAUSTED", 1.0)
    gate.open()
    for _ in range(MAX_IN_FLIGHT):
        assert (await talk.next()).WhichOneof("frame") == "result"
    await talk.send(frame("again", invoke=ADD))
    assert (await talk.answer("again")).WhichOneof("frame") == "result"
    await talk.close()


@pytest.mark.parametrize("how", ["secret", "cancelled"])
async def test_what_a_handler_raised_stays_in_the_log(it: World, how: str) -> None:
    talk = Talk(it)
    await talk.open()
    request = agent_pb.InvokeRequest(action="fail", input=arguments(how=how))
    await talk.send(frame("1", invoke=request))
    seen = await talk.error("1")
    assert (seen.code, seen.reason) == ("UNKNOWN", "HANDLER_FAILED")
    assert "hunter2" not in repr(seen)
    await talk.send(frame("2", chat=agent_pb.StreamChatRequest(message=text("fail"))))
    failed = (await talk.answer("2")).event.failed.status
    assert unpacked(failed).reason == "HANDLER_FAILED"
    await talk.close()
    assert await it.count() == 0


async def test_a_refused_chat_is_an_error_and_no_event() -> None:
    """Nothing ran, so there is no terminal event, just as there is none in a StreamChat."""
    async with serving(mailbox_size=1) as it:
        gate = it.gate("hold").shut()
        talk = Talk(it)
        await talk.open()
        await talk.send(frame("1", invoke=HOLD))
        await gate.reached()
        await talk.send(frame("2", invoke=ADD), frame("3", chat=chat("hi")))
        seen = await talk.error("3")
        assert (seen.reason, seen.retry_after) == ("MAILBOX_FULL", 0.5)
        gate.open()
        await talk.answer("1")
        await talk.answer("2")
        await talk.close()


async def test_an_answer_beyond_the_limit_fails_its_call_alone(it: World) -> None:
    talk = Talk(it)
    await talk.open()
    request = agent_pb.InvokeRequest(action="big", input=arguments(size=MAX_MESSAGE))
    await talk.send(frame("1", invoke=request))
    assert (await talk.error("1")).reason == "TOO_LARGE"
    await talk.send(frame("2", invoke=ADD))
    await talk.answer("2")
    await talk.close()


async def test_a_client_that_does_not_read_is_let_go() -> None:
    """Its calls are dropped as by a detach, and it learns why when it reads on."""
    async with serving(reader_timeout=FUSE) as it:
        talk = Talk(it)
        await talk.open()
        it.boundary.reader_timeout = 0.05  # from now on nothing is read
        big = agent_pb.InvokeRequest(action="big", input=arguments(size=1_000_000))
        await talk.send(*(frame(f"{n}", invoke=big) for n in range(60)))
        await it.no_calls()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await talk.over()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "let go" in str(caught.value.details())
        await soon(it.stub.Invoke(invoke("add")))


async def test_a_flood_of_frames_waits_for_who_reads(it: World) -> None:
    """Far more pongs than the queue holds, and none is lost: reading waits for room."""
    talk = Talk(it)
    await talk.open(None)
    many = 20_000
    await talk.send(*(ping(n) for n in range(many)))
    assert [(await talk.next()).pong.nonce for _ in range(many)] == list(range(many))
    await talk.close()
