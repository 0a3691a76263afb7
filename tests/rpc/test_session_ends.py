"""How sessions end: by a broken message, with the host, with the agent's life."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from rpc_kit import (
    CLOSE,
    MAX_MESSAGE,
    Talk,
    World,
    followup,
    frame,
    invoke,
    key,
    ping,
    ref,
    refusal,
    soon,
    unpacked,
)

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper_server.errors import InvalidRequest
from innkeeper_server.mailbox import Call
from innkeeper_server.rpc.agents import SERVICE
from innkeeper_server.rpc.boundary import Reply
from innkeeper_server.rpc.conversation import Session

ADD = agent_pb.InvokeRequest(action="add")
HOLD = agent_pb.InvokeRequest(action="hold")


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


async def test_what_was_said_before_a_session_broke_comes_first(it: World) -> None:
    for _ in range(20):
        call = it.channel.stream_stream(f"/{SERVICE}/Session")()
        opening = [frame(open=agent_pb.OpenFrame()), *(ping(n) for n in range(100))]
        await soon(call.write(agent_pb.SessionRequest(frames=opening).SerializeToString()))
        await soon(call.write(b"\xff\xff\xff"))
        frames: list[agent_pb.ServerFrame] = []
        while len(frames) < 101:
            frames += agent_pb.SessionResponse.FromString(await soon(call.read())).frames
        assert frames[0].WhichOneof("frame") == "opened"
        assert [each.pong.nonce for each in frames[1:]] == list(range(100))
        assert (await refusal(call.read())).fields == ("request",)


@pytest.mark.parametrize("breaks", [True, False])
async def test_a_write_that_is_under_way_is_not_cut(it: World, breaks: bool) -> None:
    """gRPC can send no status after a first write that was cancelled, and the client would hang."""
    writing, taken = asyncio.Event(), asyncio.Event()
    incoming = iter([agent_pb.SessionRequest(frames=[frame(open=agent_pb.OpenFrame())])])
    written: list[Reply] = []

    async def read() -> agent_pb.SessionRequest | None:
        for message in incoming:
            return message
        await writing.wait()
        if breaks:
            raise InvalidRequest.of("request", "is broken")
        return None

    async def write(reply: Reply) -> None:
        writing.set()
        await taken.wait()
        written.append(reply)

    session = Session(it.host, "s", Call(), max_message_bytes=MAX_MESSAGE)
    run = asyncio.create_task(session.run(read, write))
    await soon(writing.wait())
    for _ in range(10):  # the reader ends, and the session learns of it
        await asyncio.sleep(0)
    taken.set()
    if breaks:
        with pytest.raises(InvalidRequest):
            await soon(run)
    else:
        await soon(run)
    assert len(written) == 1


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
