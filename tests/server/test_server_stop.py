"""What is seen of a stop from outside: every call ends, and says why.

Of a crowd each caller has one call under way and makes the next at once, whatever it is told, until
there is no server to connect to. So each sees answers, then refusals by name, then one refused
connection.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2
from server_kit import FUSE, Desk, ref, refusal
from test_server_process import Place, Running, place  # noqa: F401

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import catalog_service_pb2 as catalog_pb
from innkeeper.v1 import residency_service_pb2 as residency_pb

CHANNELS = 8
CALLERS = 48
AGENTS = 4
STOPPED_AFTER = 300  # answers

ANSWER, DRAINING, NO_SERVER = "answer", "draining", "no server"
Call = Callable[[Desk, str], Awaitable[Any]]


async def invoke(desk: Desk, id: str) -> None:
    await desk.agents.Invoke(agent_pb.InvokeRequest(agent=ref(id), action="add"))


async def check(desk: Desk, _: str) -> None:
    await desk.health.Check(health_pb2.HealthCheckRequest())


async def look(desk: Desk, _: str) -> None:
    await desk.catalog.ListAgents(catalog_pb.ListAgentsRequest())


async def converse(desk: Desk, id: str) -> None:
    """Open a session, and leave it at once."""
    session = desk.agents.Session()
    frames = [agent_pb.ClientFrame(open=agent_pb.OpenFrame(agent=ref(id)))]
    await session.write(agent_pb.SessionRequest(frames=frames))
    await session.done_writing()
    async for _ in session:
        pass


def meaning(error: grpc.aio.AioRpcError) -> str:
    """What a call that failed was told; anything unexpected in gRPC's own words."""
    packed = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
    if packed is None:
        refused = (error.details() or "").startswith("failed to connect to all addresses")
        unavailable = error.code() is grpc.StatusCode.UNAVAILABLE
        return NO_SERVER if refused and unavailable else f"{error.code().name}: {error.details()}"
    status = status_pb2.Status.FromString(packed)
    kinds = {detail.TypeName(): detail for detail in status.details}
    info = error_details_pb2.ErrorInfo()
    kinds["google.rpc.ErrorInfo"].Unpack(info)
    if (error.code(), info.reason) != (grpc.StatusCode.UNAVAILABLE, "DRAINING"):
        return f"{error.code().name}: {info.reason}"
    return DRAINING if "google.rpc.RetryInfo" in kinds else "DRAINING without RetryInfo"


class Crowd:
    """Callers that never pause, over some channels, and what each of them was told."""

    def __init__(self, running: Running) -> None:
        self.answers: Counter[str] = Counter()  # by agent, of `invoke`
        self.told: list[list[str]] = []  # by caller, in order
        self._running = running
        self._left = STOPPED_AFTER

    async def call(self, calls: list[Call]) -> None:
        """Have everybody call until there is no server; it is stopped after so many answers."""
        async with AsyncExitStack() as stack:
            desks = [
                await stack.enter_async_context(Desk(self._running.address))
                for _ in range(CHANNELS)
            ]
            async with asyncio.timeout(FUSE):
                await asyncio.gather(
                    *(
                        self._caller(desks[n % CHANNELS], f"a{n % AGENTS}", calls[n % len(calls)])
                        for n in range(CALLERS)
                    )
                )

    async def _caller(self, desk: Desk, id: str, call: Call) -> None:
        told: list[str] = []
        self.told.append(told)
        while NO_SERVER not in told:
            try:
                await call(desk, id)
                told.append(ANSWER)
                self.answers[id] += call is invoke
            except grpc.aio.AioRpcError as error:
                told.append(meaning(error))
            self._left -= 1
            if self._left == 0:
                self._running.process.terminate()


@pytest.mark.parametrize("uvloop", [True, False])
@pytest.mark.parametrize("lame_duck", [0.0, 0.3])
async def test_every_call_into_a_stop_is_answered_or_told_so_by_name(
    place: Place,  # noqa: F811
    uvloop: bool,
    lame_duck: float,
) -> None:
    """And what was answered, and nothing else, is what the store has."""
    async with place.run(uvloop=uvloop, lame_duck=lame_duck) as running:
        crowd = Crowd(running)
        await crowd.call([invoke])
        assert await running.ended() == 0
    total = Counter(word for told in crowd.told for word in told)
    assert total.keys() == {ANSWER, DRAINING, NO_SERVER}, total
    assert total[NO_SERVER] == CALLERS
    assert total[ANSWER] == crowd.answers.total()
    for told in crowd.told:  # in this order, and everybody was told by name before the port closed
        assert told == sorted(told, key=[ANSWER, DRAINING, NO_SERVER].index)
        assert DRAINING in told
    async with place.run() as running, Desk(running.address) as desk:
        for id, answers in crowd.answers.items():
            shown = await desk.catalog.GetAgent(catalog_pb.GetAgentRequest(agent=ref(id)))
            assert shown.agent.state.struct_value["count"] == answers
        running.process.terminate()
        assert await running.ended() == 0


async def test_so_are_sessions_reads_and_checks_of_health(place: Place) -> None:  # noqa: F811
    """These are answered for as long as there is a port, so only the last word is by name."""
    async with place.run() as running:
        crowd = Crowd(running)
        await crowd.call([invoke, check, look, converse])
        assert await running.ended() == 0
    total = Counter(word for told in crowd.told for word in told)
    assert total.keys() == {ANSWER, DRAINING, NO_SERVER}, total
    assert total[NO_SERVER] == CALLERS
    assert all(told[-2:] == [DRAINING, NO_SERVER] for told in crowd.told)


async def test_a_crowd_that_is_refused_does_not_put_off_a_hurried_end(
    place: Place,  # noqa: F811
) -> None:
    """Everybody is turned away for as long as the lame-duck time; a second signal ends it, and
    even then everybody is told so by name."""
    async with place.run(lame_duck=10_000) as running:
        crowd = Crowd(running)
        calling = asyncio.ensure_future(crowd.call([invoke]))
        await running.logged("drained in")
        running.process.terminate()
        await calling
        assert await running.ended() == 0
    total = Counter(word for told in crowd.told for word in told)
    assert total.keys() == {ANSWER, DRAINING, NO_SERVER}, total
    assert all(told[-2:] == [DRAINING, NO_SERVER] for told in crowd.told)


async def test_who_is_still_starting_at_the_deadline_holds_nothing_up(
    place: Place,  # noqa: F811
) -> None:
    limits = {"drain_timeout": 0.1, "start_timeout": 10_000, "admission_timeout": 10_000}
    async with place.run(**limits) as running, Desk(running.address) as desk:
        request = agent_pb.InvokeRequest(agent=ref("a", "sleeper"), action="add")
        starting = desk.agents.Invoke(request)
        await place.reported()
        running.process.terminate()
        assert (await refusal(starting))[:2] == ("UNAVAILABLE", "DRAINING")
        assert await running.ended() == 3


async def test_a_session_that_opens_in_a_drain_is_told_to_go(place: Place) -> None:  # noqa: F811
    """1. A session opens an agent, which starts. A drain begins.
    2. It has started: the session is open, and told at once; it holds nothing up.
    """
    async with place.run() as running, Desk(running.address) as desk:
        session = desk.agents.Session()
        opening = agent_pb.OpenFrame(agent=ref("a", "sleeper"))
        frames = [agent_pb.ClientFrame(open=opening)]
        await session.write(agent_pb.SessionRequest(frames=frames))
        _, agent = await place.reported()
        drain = aiter(desk.residency.Drain(residency_pb.DrainRequest()))
        assert (await anext(drain)).plan.owned == 1
        agent.write(b"go on\n")
        told: list[str | None] = []
        while "going_away" not in told:
            told += [frame.WhichOneof("frame") for frame in (await session.read()).frames]
        assert told[0] == "opened"
        report = [step async for step in drain][-1].report
        assert (report.evicted, report.cut, report.clean) == (1, 0, True)
        running.process.terminate()
        assert await running.ended() == 0
