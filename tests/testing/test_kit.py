"""The test kit tested: virtual time, what cannot go on, and a search that finds what it should."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from innkeeper_server.agent import Agent, action
from innkeeper_server.errors import AgentOwned
from innkeeper_server.slots import LeaseKind
from innkeeper_server.testing import (
    Deadlock,
    Gate,
    Livelock,
    Scene,
    explore,
    hosted,
    replay,
    run,
    settle,
)
from innkeeper_server.testing.explorer import ScheduleFailed


def test_virtual_time_is_exact() -> None:
    async def scenario() -> list[float]:
        loop = asyncio.get_running_loop()
        woken: list[float] = []

        async def sleeper(seconds: float) -> None:
            await asyncio.sleep(seconds)
            woken.append(loop.time())

        await asyncio.gather(sleeper(86_400.0), sleeper(0.25), sleeper(3.0))
        return woken

    assert run(scenario()) == [0.25, 3.0, 86_400.0]


def test_a_scenario_that_can_never_go_on_says_where_it_stands() -> None:
    async def stuck_here() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="stuck_here"):
        run(stuck_here())


def test_a_scenario_that_never_ends_is_ended() -> None:
    async def spins() -> None:
        for _ in itertools.count():
            await asyncio.sleep(0)

    with pytest.raises(Livelock, match="not over after 1000 steps"):
        run(spins(), max_steps=1000)


def test_an_exception_that_nobody_retrieves_is_not_lost() -> None:
    async def scenario() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await settle()

    with pytest.raises(RuntimeError) as caught:
        run(scenario())
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_chooser_decides_who_is_next() -> None:
    async def scenario() -> list[str]:
        said: list[str] = []

        async def say(word: str) -> None:
            said.append(word)

        await asyncio.gather(say("a"), say("b"), say("c"))
        return said

    assert run(scenario()) == ["a", "b", "c"]
    assert run(scenario(), chooser=lambda ready: ready - 1) == ["c", "b", "a"]


async def lost_update(scene: Scene) -> None:
    """Reads, lets the other go first if it has come so far, and writes what it read. In the order
    of arrival the second begins when the first has written."""
    account = {"count": 0}
    turn = asyncio.Event()

    async def first() -> None:
        seen = account["count"]
        await asyncio.sleep(0)
        account["count"] = seen + 1
        turn.set()

    async def second() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        seen = account["count"]
        await asyncio.sleep(0)
        account["count"] = seen + 1

    await asyncio.gather(first(), second())
    assert account["count"] == 2, "an update was lost"


def test_the_search_finds_an_update_that_the_usual_order_never_loses() -> None:
    async def usual(scene: Scene) -> None:
        await lost_update(scene)

    explore(usual, deviations=0, walks=0)
    with pytest.raises(ScheduleFailed, match="an update was lost") as found:
        explore(lost_update, deviations=3, most=5_000)
    schedule = str(found.value).split("'")[1]
    assert schedule
    with pytest.raises(AssertionError, match="an update was lost"):
        replay(lost_update, schedule)
    replay(lost_update, "")


async def leak_on_cancel(scene: Scene) -> None:
    """Takes something, and gives it back only if nobody cancels it in between."""
    taken = [0]

    async def work() -> None:
        taken[0] += 1
        await asyncio.sleep(1)
        taken[0] -= 1

    task = scene.cancellable(asyncio.ensure_future(work()))
    await asyncio.wait([task])
    assert taken == [0], "never given back"


def test_the_search_cancels_at_every_step() -> None:
    with pytest.raises(ScheduleFailed, match="never given back") as found:
        explore(leak_on_cancel)
    schedule = str(found.value).split("'")[1]
    assert "c0" in schedule
    with pytest.raises(AssertionError):
        replay(leak_on_cancel, schedule)


def test_an_invariant_is_checked_after_every_step() -> None:
    async def scenario(scene: Scene) -> None:
        both = [0, 0]

        def equal() -> None:
            assert both[0] == both[1], "torn"

        scene.always(equal)
        both[0] = 1
        await asyncio.sleep(0)
        both[1] = 1

    with pytest.raises(ScheduleFailed, match="torn"):
        explore(scenario)


def test_a_scenario_that_is_not_deterministic_is_refused() -> None:
    number = itertools.count()

    async def scenario(scene: Scene) -> None:
        for _ in range(next(number)):
            await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="not deterministic"):
        explore(scenario)


def test_a_gate_holds_whoever_comes_until_it_is_opened() -> None:
    async def scenario() -> None:
        gate = Gate().shut()
        task = asyncio.ensure_future(gate.pass_through())
        await gate.reached()
        assert (gate.held, gate.passed) == (1, 0)
        gate.open()
        await task
        await gate.pass_through()
        assert (gate.held, gate.passed) == (0, 2)

    run(scenario())


class Diary(Agent[dict[str, int]]):
    @action
    async def note(self) -> int:
        self.state["notes"] = self.state.get("notes", 0) + 1
        return self.state["notes"]

    @action
    def slowly(self) -> str:
        return "from a thread"

    async def chat(self, message: str) -> object:
        return message.upper()

    @action
    async def busy(self) -> None:
        self.spawn(asyncio.sleep(500))


def test_an_author_s_agent_leaves_and_returns_with_its_state() -> None:
    async def scenario() -> None:
        async with hosted(Diary, capacity=1, idle_timeout=60.0) as host:
            assert await host.invoke("diary", "a", "note") == 1
            await asyncio.sleep(61)
            assert host.residents() == []
            assert await host.invoke("diary", "a", "note") == 2
            assert await host.chat("diary", "a", "hello") == ["HELLO"]
            assert await host.invoke("diary", "a", "slowly") == "from a thread"

    run(scenario())


def test_an_author_s_job_keeps_its_agent() -> None:
    async def scenario() -> None:
        async with hosted(Diary, idle_timeout=60.0) as host:
            await host.invoke("diary", "a", "busy")
            assert host.owners("diary", "a") == [LeaseKind.JOB]
            with pytest.raises(AgentOwned):
                await host.evict("diary", "a")
            await asyncio.sleep(499)
            assert host.residents() == ["diary/a"]
            assert "1 background job" in host.why("diary", "a")
            await asyncio.sleep(62)
            assert host.residents() == []

    run(scenario())
