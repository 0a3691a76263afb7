"""Agents that do not start: left alone for longer and longer, and in nobody's way."""

from __future__ import annotations

import asyncio

import pytest
from host_kit import World, ending, scene, settle

from innkeeper_server.errors import (
    InnkeeperError,
    Quarantined,
    StartFailed,
    StartTimeout,
    StoreUnavailable,
)
from innkeeper_server.host import Host
from innkeeper_server.identity import AgentKey
from innkeeper_server.mailbox import Call
from innkeeper_server.quarantine import KEPT, Quarantine


async def fails(world: World, id: str, times: int = 1) -> list[InnkeeperError | None]:
    """Call an agent that does not start so often, one call after the other."""
    world.unwilling = [id] * times
    errors = [await ending(world.do(id)) for _ in range(times)]
    assert all(isinstance(error, StartFailed) for error in errors)
    return errors


async def works(world: World, id: str) -> None:
    assert not isinstance(await ending(world.do(id)), InnkeeperError)


def test_after_three_failures_in_a_row_it_is_refused_at_once_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(world: World) -> None:
        first, second, third = await fails(world, "a", 3)
        waits = [error.retry_after for error in (first, second, third) if error is not None]
        assert waits == [1.0, 1.0, 5.0]
        assert "guest/a failed to start 3 times; next try in 5 s" in caplog.text
        begun = world.host.account.loaded_total, len(world.host.account.story)
        await asyncio.sleep(1.5)
        refused = await ending(world.do("a"))
        assert isinstance(refused, Quarantined)
        assert str(refused) == (
            "guest/a is in quarantine: it failed to start 3 times in a row; next try in 3.5 s"
        )
        assert refused.retry_after == 3.5
        assert refused.metadata == {"agent": "guest/a", "failures": "3"}
        # Nothing was begun for it.
        assert (world.host.account.loaded_total, len(world.host.account.story)) == begun
        told, _ = world.host.operators.explain(world.key("a"))
        assert told.summary == str(refused)
        assert world.host.driver.quarantine.count(world.host.now()) == 1
        await world.at_rest()

    scene(scenario)


def test_a_refusal_takes_nobodys_place() -> None:
    async def scenario(world: World) -> None:
        await fails(world, "a", 3)
        await works(world, "b")
        assert isinstance(await ending(world.do("a")), Quarantined)
        assert world.resident() == ["b"]
        await world.at_rest()

    scene(scenario)


def test_when_its_time_is_over_one_try_decides() -> None:
    async def scenario(world: World) -> None:
        await fails(world, "a", 3)
        for pause in (5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0):
            assert world.host.driver.quarantine.left(world.key("a"), world.host.now()) == pause
            await asyncio.sleep(pause)
            await fails(world, "a")
        await asyncio.sleep(300.0)
        gate = world.gates["on_start"].shut()
        tries = [world.do("a") for _ in range(3)]  # they join the one start
        await gate.reached()
        gate.open()
        errors = [await ending(each) for each in tries]
        assert not any(isinstance(error, InnkeeperError) for error in errors)
        await world.host.operators.evict(world.key("a"))
        assert [each.retry_after for each in await fails(world, "a", 3) if each] == [1.0, 1.0, 5.0]
        await world.at_rest()

    scene(scenario)


def test_callers_who_joined_one_start_saw_one_failure() -> None:
    async def scenario(world: World) -> None:
        world.unwilling = ["a"]
        gate = world.gates["on_start"].shut()
        calls = [world.do("a") for _ in range(5)]
        await gate.reached()
        gate.open()
        errors = [await ending(call) for call in calls]
        assert all(isinstance(error, StartFailed) for error in errors)
        await works(world, "a")
        await world.at_rest()

    scene(scenario)


def test_a_start_that_takes_too_long_counts() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["on_start"].shut()
        for _ in range(3):
            assert isinstance(await ending(world.do("a")), StartTimeout)
        assert isinstance(await ending(world.do("a")), Quarantined)
        gate.open()
        await asyncio.sleep(5.0)
        await works(world, "a")
        await world.at_rest()

    scene(scenario, start_timeout=1.0, stop_timeout=1.0)


def test_what_is_not_its_own_fault_does_not_count() -> None:
    async def scenario(world: World) -> None:
        world.store.fail["hydrate"] = [StoreUnavailable("away")] * 5
        for _ in range(5):
            assert isinstance(await ending(world.do("a")), StoreUnavailable)
        gate = world.gates["hydrate"].shut()
        for _ in range(3):
            assert isinstance(await ending(world.do("a")), StartTimeout)
        gate.open()
        await settle()
        world.store.fail.clear()
        await works(world, "a")
        await world.at_rest()

    scene(scenario, start_timeout=1.0)


def test_connections_are_refused_and_a_pin_tries_it_at_once() -> None:
    async def scenario(world: World) -> None:
        await fails(world, "a", 3)
        connection = world.host.connect(
            world.key("a"), Call(), name="session", on_leaving=lambda reason: None
        )
        with pytest.raises(Quarantined):
            await connection.ready()
        connection.close()
        assert await world.host.operators.pin(world.key("a"), 60.0, "me", Call())
        await works(world, "a")
        world.host.operators.unpin(world.key("a"))
        await world.at_rest()

    scene(scenario)


def test_the_work_of_one_that_does_not_start_is_in_nobodys_way() -> None:
    """More of it than may be live at once: it rests in the store, and all of it is done when the
    agent starts again, in order."""

    async def scenario(world: World) -> None:
        await fails(world, "a", 3)
        world.unwilling = ["a"]  # once more
        texts = [f"a{n}" for n in range(5)]
        for text in texts:
            await world.followup("a", text).accepted()
        for n in range(3):
            left = world.followup("b", f"b{n}")
            await left.accepted()
            assert not isinstance(await ending(left), InnkeeperError)
        assert world.ran == ["b0", "b1", "b2"]
        assert world.host.followups._live == {}
        await asyncio.sleep(5.0)
        await settle()
        assert world.ran == ["b0", "b1", "b2"]
        await asyncio.sleep(10.0)
        await settle()
        assert world.ran == ["b0", "b1", "b2", *texts]
        assert await world.done("a") == texts
        await world.at_rest()

    scene(scenario, backlog=2)


def test_work_that_rests_is_the_next_hosts_where_this_one_ends() -> None:
    async def scenario(world: World) -> None:
        await fails(world, "a", 3)
        await world.followup("a", "one").accepted()
        await settle()
        assert await world.host.close()
        world.host = Host(world.registry, world.store, world.limits, clock=world.clock)
        await world.host.start()
        await settle()
        assert await world.done("a") == ["one"]
        await world.at_rest()

    scene(scenario)


def test_an_agent_that_was_deleted_is_none_that_does_not_start() -> None:
    async def scenario(world: World) -> None:
        await fails(world, "a", 2)
        await world.store.delete(world.key("a"))
        assert getattr(await ending(world.do("a")), "reason", "") == "AGENT_DELETED"
        assert world.host.driver.quarantine._records == {}
        await world.at_rest()

    scene(scenario)


def test_as_many_as_fail_only_so_many_are_remembered() -> None:
    quarantine = Quarantine(after=1)
    keys = [AgentKey("t", "guest", str(n)) for n in range(KEPT + 10)]
    for key in keys:
        quarantine.failed(key, 0.0)
    assert quarantine.count(0.0) == KEPT
    assert quarantine.refusal(keys[9], 0.0) is None
    assert quarantine.refusal(keys[10], 0.0) is not None
    assert [quarantine.failed(keys[-1], 0.0) for _ in range(2000)][-1] == (2001, 300.0)
