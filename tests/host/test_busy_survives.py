"""Seed (a), for every kind of owner: the busy survive any clock, and the idle leave.

1. An agent is owned in some way, and blocked where no timestamp moves.
2. The clock passes every limit; an operator asks for an eviction.
3. It is still there, and nothing of its work is lost.
4. The owner goes; the idle time passes; it leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from host_kit import World, ending, scene, settle

from innkeeper_server.errors import AgentOwned
from innkeeper_server.mailbox import Call

LONG = 3000.0  # virtual seconds: fifty idle times, and less than the limit for one turn


async def blocked_call(world: World) -> Callable[[], Awaitable[None]]:
    gate = world.gates["run work"].shut()
    envelope = world.do("a")
    await gate.reached()

    async def release() -> None:
        gate.open()
        assert await ending(envelope) == "work"

    return release


async def blocked_call_whose_caller_left(world: World) -> Callable[[], Awaitable[None]]:
    gate = world.gates["run work"].shut()
    envelope = world.do("a")
    await gate.reached()
    world.host.caller_left(envelope)

    async def release() -> None:
        gate.open()
        assert await ending(envelope) == "work"

    return release


async def queued_followup(world: World) -> Callable[[], Awaitable[None]]:
    gate = world.gates["run first"].shut()
    first, second = world.followup("a", "first"), world.followup("a", "second")
    await first.accepted()
    await second.accepted()

    async def release() -> None:
        gate.open()
        await ending(second)
        assert await world.done("a") == ["first", "second"]

    return release


async def open_stream(world: World) -> Callable[[], Awaitable[None]]:
    gate = world.gates["run two"].shut()
    envelope = world.chat("a", "one two")
    await gate.reached()

    async def release() -> None:
        gate.open()
        assert await ending(envelope) == "onetwo"

    return release


async def open_session(world: World) -> Callable[[], Awaitable[None]]:
    connection = world.host.connect(
        world.key("a"), Call(), name="s1", on_leaving=lambda reason: None
    )
    await connection.ready()

    async def release() -> None:
        connection.close()

    return release


async def nested_call(world: World) -> Callable[[], Awaitable[None]]:
    """b calls a, which blocks."""
    world.host.operators.set_capacity(2)
    gate = world.gates["run for b"].shut()
    envelope = world.host.invoke(world.key("b"), "ask", {"ids": ["a"]}, Call())
    await gate.reached()

    async def release() -> None:
        gate.open()
        assert await ending(envelope) == "for b"

    return release


async def waiting_parent(world: World) -> Callable[[], Awaitable[None]]:
    """a calls b, which blocks: a does nothing itself."""
    world.host.operators.set_capacity(2)
    gate = world.gates["run for a"].shut()
    envelope = world.host.invoke(world.key("a"), "ask", {"ids": ["b"]}, Call())
    await gate.reached()

    async def release() -> None:
        gate.open()
        assert await ending(envelope) == "for a"

    return release


async def background_job(world: World) -> Callable[[], Awaitable[None]]:
    gate = world.gates["job"].shut()
    await world.host.invoke(world.key("a"), "dirty", {"text": "by a job"}, Call()).outcome()
    await gate.reached()

    async def release() -> None:
        gate.open()

    return release


async def pin(world: World) -> Callable[[], Awaitable[None]]:
    await world.host.operators.pin(world.key("a"), 10 * LONG, "ops", Call())

    async def release() -> None:
        assert world.host.operators.unpin(world.key("a"), "ops") == 1

    return release


OWNERS = [
    blocked_call,
    blocked_call_whose_caller_left,
    queued_followup,
    open_stream,
    open_session,
    nested_call,
    waiting_parent,
    background_job,
    pin,
]


@pytest.mark.parametrize("own", OWNERS, ids=lambda own: own.__name__)
def test_an_owned_agent_survives_any_clock_and_leaves_once_released(own: object) -> None:
    async def scenario(world: World) -> None:
        release = await own(world)  # type: ignore[operator]
        await asyncio.sleep(LONG)
        world.check()
        assert "a" in world.resident()
        with pytest.raises(AgentOwned) as refused:
            await world.host.operators.evict(world.key("a"))
        assert refused.value.metadata["blocker_1"]
        assert world.alive["a"] == 1

        await release()
        await settle()
        idle = world.limits.idle_timeout
        await asyncio.sleep(idle - 1)
        assert "a" in world.resident()
        await asyncio.sleep(2)
        assert "a" not in world.resident()
        assert world.alive["a"] == 0
        await world.at_rest()

    scene(scenario, capacity=1, turn_timeout=10 * LONG)


def test_a_job_s_state_is_saved_when_its_agent_leaves() -> None:
    async def scenario(world: World) -> None:
        release = await background_job(world)
        await release()
        await world.at_rest()
        assert await world.done("a") == ["by a job"]

    scene(scenario)


def test_looking_at_an_idle_agent_ten_thousand_times_does_not_keep_it() -> None:
    """Row 2: reads never touch."""

    async def scenario(world: World) -> None:
        await world.do("a").outcome()
        for n in range(10_000):
            if n % 1000 == 0:
                await asyncio.sleep(world.limits.idle_timeout / 11)
            world.host.operators.residents()
            world.host.operators.explain(world.key("a"))
            world.host.operators.totals()
            if n % 100 == 0:
                await world.host.get_agent(world.key("a"))
                await world.host.list_agents("default")
        assert world.resident() == ["a"]
        await asyncio.sleep(world.limits.idle_timeout / 11 + 1)
        assert world.resident() == []

    scene(scenario)


def test_a_step_of_the_wall_clock_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 29: the account knows one clock, and it is monotonic."""
    import time

    async def scenario(world: World) -> None:
        await world.do("a").outcome()
        real = time.time()
        for step in (3600.0, -3600.0):
            monkeypatch.setattr(time, "time", lambda step=step: real + step)
            await asyncio.sleep(1)
            assert world.resident() == ["a"]
        await asyncio.sleep(world.limits.idle_timeout)
        assert world.resident() == []

    scene(scenario)
