"""Sessions where something is wrong: what fails a call, what fails the session, who is let go."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from rpc_kit import (
    CLOSE,
    MAX_MESSAGE,
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
    refusal,
    said,
    serving,
    soon,
    text,
    unpacked,
    until,
)

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper_server.rpc.agents import SERVICE
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


async def test_bytes_that_are_no_message_end_the_session(it: World) -> None:
    gate = it.gate("hold").shut()
    call = it.channel.stream_stream(f"/{SERVICE}/Session")()
    opening = [frame(open=agent_pb.OpenFrame(agent=ref())), frame("1", invoke=HOLD)]
    await soon(call.write(agent_pb.SessionRequest(frames=opening).SerializeToString()))
    await gate.reached()
    await soon(call.write(b"\xff\xff\xff"))
    assert await soon(call.read()) != b"", "it was open before"
    seen = await refusal(call.read())
    assert (seen.code, seen.fields) == ("INVALID_ARGUMENT", ("request",))
    await it.no_calls()


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
        (frame("1", invoke=agent_pb.InvokeRequest(idempotency_key="k")), "idempotency_key"),
        (frame("1", invoke=agent_pb.InvokeRequest(busy_policy=3)), "busy_policy"),
        (frame("1", chat=agent_pb.StreamChatRequest(on_disconnect=9)), "on_disconnect"),
        (frame("1", message=agent_pb.MessageFrame(message=arguments(a=1))), "message"),
        (frame("1", message=agent_pb.MessageFrame()), "message"),
        (frame("1", followup=followup("x", passive=True)), "passive"),
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


async def test_the_end_of_an_agents_life_is_announced(it: World) -> None:
    """The session goes on, and what it asks next begins the next life."""
    talk = Talk(it)
    opened = await talk.open()
    await talk.send(frame("1", invoke=ADD))
    await talk.answer("1")
    await soon(it.host.operators.evict(key(), opened.runtime_id, "graceful", None))
    farewell = (await talk.answer("")).going_away
    assert farewell.agent == ref()
    assert farewell.reason != ""
    await talk.send(frame("2", invoke=ADD))
    answer = (await talk.answer("2")).result.invoke
    assert answer.output.json.number_value == 2
    assert answer.runtime_id != opened.runtime_id
    await talk.close()


async def test_a_draining_host_says_farewell_and_refuses(it: World) -> None:
    talk = Talk(it)
    await talk.open(None)
    it.host.drains.begin()
    farewell = (await talk.answer("")).going_away
    assert not farewell.HasField("agent")
    await talk.send(frame("1", invoke=invoke("add")), frame("2", followup=followup("x")))
    answers = {(answer := await talk.next()).call_id: answer for _ in range(2)}
    for answer in answers.values():
        seen = unpacked(answer.error)
        assert (seen.reason, seen.retry_after) == ("DRAINING", 1.0)
    await talk.close()
    for agent in (None, ref()):
        late = Talk(it)
        await late.send(frame(open=agent_pb.OpenFrame(agent=agent)))
        assert (await refusal(late.next())).reason == "DRAINING"


async def test_a_drain_does_not_wait_for_an_opened_agent(it: World) -> None:
    talk = Talk(it)
    await talk.open()
    steps = [step async for step in it.host.drain(20.0)]
    assert getattr(steps[-1], "clean") is True  # noqa: B009
    assert (await talk.answer("")).going_away.agent == ref()
    assert not (await talk.answer("")).going_away.HasField("agent")
    await talk.close()


async def test_a_session_ends_with_the_host(it: World) -> None:
    """What is in flight is answered first; what comes meanwhile is refused."""
    gate = it.gate("hold").shut()
    talk = Talk(it)
    await talk.open()
    await talk.send(frame("1", invoke=HOLD))
    await gate.reached()
    it.ending.end()
    await talk.send(frame("2", invoke=ADD))
    assert (await talk.error("2")).reason == "DRAINING"
    gate.open()
    assert (await talk.answer("1")).result.invoke.output.text == "hold"
    seen = await refusal(talk.next())
    assert (seen.code, seen.reason, seen.retry_after) == ("UNAVAILABLE", "DRAINING", 1.0)


async def test_a_session_that_is_closing_ends_well_though_the_host_ends(it: World) -> None:
    gate = it.gate("hold").shut()
    talk = Talk(it)
    await talk.open()
    await talk.send(frame("1", invoke=HOLD), CLOSE)
    await gate.reached()
    it.ending.end()
    gate.open()
    await talk.answer("1")
    assert (await talk.next()).WhichOneof("frame") == "closed"
    assert await talk.over() is grpc.StatusCode.OK


async def test_a_client_that_does_not_read_is_let_go() -> None:
    """Its calls are dropped as by a detach, and it learns why when it reads on."""
    async with serving(reader_timeout=0.05) as it:
        talk = Talk(it)
        await talk.open()
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
