"""How a session begins and ends, against a host that follows a script."""

from __future__ import annotations

import asyncio

import pytest
from grpc import StatusCode
from scripted import Refusal, World
from session_kit import CLOSED, Desk, Frame, host, refused, result, session

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import common_pb2 as common_pb
from innkeeper_client import errors


async def test_an_opening_is_tried_again_whatever_went_wrong(it: World) -> None:
    async def play(desk: Desk) -> None:
        await desk.opens()
        await desk.closes()

    async def refuses(desk: Desk) -> None:
        await desk.hears("open")
        await desk.says(refused("", StatusCode.UNAVAILABLE, "DRAINING", retry=1.0))

    async def breaks(desk: Desk) -> None:
        await desk.hears("open")

    it.agents.will(Refusal(StatusCode.CANCELLED))
    async with session(it, refuses, breaks, play):
        pass
    assert len(it.naps.taken) == 3


async def test_an_opening_that_is_refused_for_good_raises_why(it: World) -> None:
    it.agents.will(Refusal(StatusCode.NOT_FOUND, "UNKNOWN_AGENT_TYPE"))
    with pytest.raises(errors.UnknownAgentType):
        await it.client.agent("nobody", "a").session().open()


async def test_an_opening_has_a_deadline(it: World) -> None:
    async def never(desk: Desk) -> None:
        await desk.hears("open")
        await asyncio.Event().wait()

    s = session(it, never)
    with pytest.raises(errors.DeadlineExceeded, match="opening"):
        await s.open(timeout=0.05)


async def test_calls_in_flight_of_a_broken_session_have_an_unknown_outcome(it: World) -> None:
    async def breaks(desk: Desk) -> None:
        await desk.opens()
        await desk.hears("invoke")
        await desk.hears("chat")
        raise_it = Refusal(StatusCode.UNAVAILABLE, message="Socket closed")
        await raise_it(desk._context)

    async with session(it, breaks) as s:
        calls = await asyncio.gather(
            s.invoke("add"), s.chat("hello").text(), return_exceptions=True
        )
        assert [type(error) for error in calls] == [errors.OutcomeUnknown] * 2
        with pytest.raises(errors.ClientClosed, match="Socket closed"):
            await s.invoke("add")
        with pytest.raises(errors.OutcomeUnknown):
            await anext(s.events())
        assert not await s.close()


async def test_a_session_that_the_host_ends_for_a_reason_tells_it(it: World) -> None:
    async def ends(desk: Desk) -> None:
        await desk.opens()
        await desk.says(refused("", StatusCode.FAILED_PRECONDITION, "SESSION_PROTOCOL"))

    async with session(it, ends) as s:
        with pytest.raises(errors.SessionProtocol):
            await anext(s.events())


async def test_leaving_by_an_exception_detaches(it: World) -> None:
    left = asyncio.Event()

    async def play(desk: Desk) -> None:
        await desk.opens()
        try:
            await desk.hears("close")
        except (StopAsyncIteration, asyncio.CancelledError):
            left.set()
            raise

    with pytest.raises(ZeroDivisionError):
        async with session(it, play):
            raise ZeroDivisionError
    await left.wait()


async def test_closing_lets_calls_in_flight_end_first(it: World) -> None:
    async def play(desk: Desk) -> None:
        await desk.opens()
        frame = await desk.hears("invoke")
        await desk.hears("close")
        await desk.says(result(frame.call_id, 7), CLOSED)

    async with session(it, play) as s:
        call = asyncio.create_task(s.invoke("add"))
        await asyncio.sleep(0)
    assert await call == 7


async def test_a_host_that_never_confirms_the_end_is_not_waited_for(it: World) -> None:
    async def deaf(desk: Desk) -> None:
        await desk.opens()
        await asyncio.Event().wait()

    s = session(it, deaf)
    await s.open()
    call = asyncio.create_task(s.invoke("add"))
    await asyncio.sleep(0)
    assert not await s.close(timeout=0.05)
    with pytest.raises(errors.ClientClosed):
        await call


async def test_a_session_without_an_agent_names_one_in_every_call(it: World) -> None:
    async def play(desk: Desk) -> None:
        opened = await desk.hears("open")
        assert not opened.open.HasField("agent")
        await desk.says(Frame(opened=agent_pb.OpenedFrame(session_id="s2")))
        frame = await desk.hears("invoke")
        assert frame.invoke.agent == common_pb.AgentRef(type="counter", id="b/c")
        await desk.says(result(frame.call_id, 1))
        await desk.closes()

    it.agents.will(host(play))
    async with it.client.session() as s:
        assert s.agent is None
        assert await s.invoke("add", agent="counter/b/c") == 1


async def test_a_session_that_is_not_open_says_so(it: World) -> None:
    s = it.client.agent("counter", "a").session()
    with pytest.raises(errors.ClientClosed, match="not open"):
        await s.invoke("add")
    assert not await s.close()
