"""Races that the exploration of schedules has found, each told as steps."""

from __future__ import annotations

import asyncio

import pytest
from host_kit import World, ending, scene, settle

from innkeeper_server.errors import AgentDeleted, AgentOwned, Evicted, StoreUnavailable
from innkeeper_server.mailbox import Call


def test_what_a_forced_eviction_hands_over_stays_ahead_of_what_comes_meanwhile() -> None:
    """1. a works on one; two and three wait in its mailbox.
    2. It is forced out. Before the eviction's first step, four arrives.
    3. The next life runs two, three, four.
    """

    async def scenario(world: World) -> None:
        gate = world.gates["run one"].shut()
        one, two, three = (world.do("a", text) for text in ("one", "two", "three"))
        await gate.reached()
        [runtime] = world.host.driver.runtimes.values()
        world.host.driver.end(runtime)
        four = world.do("a", "four")
        assert isinstance(await ending(one), Evicted)
        assert [await ending(work) for work in (two, three, four)] == ["two", "three", "four"]
        assert await world.done("a") == ["two", "three", "four"]
        await world.at_rest()

    scene(scenario)


def test_work_kept_outside_by_a_graceful_eviction_stays_behind_older_work() -> None:
    """1. a works on one; two waits in its mailbox.
    2. A graceful eviction begins, so three is kept outside.
    3. Another is forced, and waits for nobody: two is handed over, and still runs before three.
    """

    async def scenario(world: World) -> None:
        gate = world.gates["run one"].shut()
        one, two = world.do("a", "one"), world.do("a", "two")
        await gate.reached()
        operators = world.host.operators
        polite = asyncio.ensure_future(operators.evict(world.key("a"), mode="graceful"))
        await settle()
        three = world.do("a", "three")
        assert (await operators.evict(world.key("a"), mode="force")).stopped
        assert isinstance(await ending(one), Evicted)
        assert (await ending(two), await ending(three)) == ("two", "three")
        assert await world.done("a") == ["two", "three"]
        assert world.host.now() == 0.0
        await polite
        await world.at_rest()

    scene(scenario)


def test_a_checkpoint_keeps_nothing_of_a_turn_that_began_meanwhile() -> None:
    """1. a is idle and is to leave; its checkpoint has not looked at the state yet.
    2. The claim is revoked for a chat, which says its first word.
    3. The chat's commit fails: nothing of it was kept, by anybody.
    """

    async def scenario(world: World) -> None:
        await world.do("a", "zero").outcome()
        operators = world.host.operators
        eviction = asyncio.ensure_future(operators.evict(world.key("a"), mode="if_idle"))
        await asyncio.sleep(0)  # the claim is made; its checkpoint has not begun
        word = world.gates["run two"].shut()
        chat = world.chat("a", "one two")
        await word.reached()
        await settle()
        assert await world.done("a") == ["zero"]
        world.store.fail["commit"] = [StoreUnavailable("full")]
        word.open()
        assert isinstance(await ending(chat), StoreUnavailable)
        assert await world.done("a") == ["zero"]
        with pytest.raises(AgentOwned):
            await eviction
        await world.at_rest()

    scene(scenario)


def test_a_turn_that_fails_takes_nothing_back_of_a_checkpoint_under_way() -> None:
    """1. a is idle and dirty; its checkpoint is held in the store.
    2. Work arrives and revokes the claim. It does not begin before the checkpoint has ended.
    3. It fails, and is rolled back to what the checkpoint kept.
    """

    async def scenario(world: World) -> None:
        await world.host.invoke(world.key("a"), "dirty", {"text": "job"}, Call()).outcome()
        await settle()
        commit = world.gates["commit"].shut()
        eviction = asyncio.ensure_future(world.host.operators.evict(world.key("a")))
        await commit.reached()
        fails = world.host.invoke(world.key("a"), "fail", {"how": "key"}, Call())
        await settle()
        assert fails.turn is None
        commit.open()
        await ending(fails)
        with pytest.raises(AgentOwned):
            await eviction
        await world.do("a", "next").outcome()
        assert await world.done("a") == ["job", "next"]
        await world.at_rest()

    scene(scenario)


def test_an_agent_that_is_deleted_while_it_starts_is_stopped_like_any_other() -> None:
    """1. a is being loaded; it is deleted after its state was read; b waits for its slot.
    2. Its on_start returns: on_stop runs, and only then is its slot given to b.
    """

    async def scenario(world: World) -> None:
        gate = world.gates["on_start"].shut()
        work = world.do("a")
        await gate.reached()
        deletion = asyncio.ensure_future(world.host.delete_agent(world.key("a")))
        wanted = world.do("b", "b1")
        await settle()
        stop = world.gates["on_stop a"].shut()
        gate.open()
        await stop.reached()
        assert world.resident() == ["a"]
        stop.open()
        assert isinstance(await ending(work), AgentDeleted)
        assert await ending(wanted) == "b1"
        assert await deletion
        await world.at_rest()

    scene(scenario, capacity=1)


def test_an_abandoned_start_can_begin_nothing_new() -> None:
    """1. a is deleted while it starts, and then does not stop in time: it is a zombie.
    2. Its mailbox is closed already, so that its code can leave no job behind.
    """

    async def scenario(world: World) -> None:
        world.stubborn.add("a")
        stop = world.gates["on_stop a"].shut()
        start = world.gates["on_start"].shut()
        work = world.do("a")
        await start.reached()
        deletion = asyncio.ensure_future(world.host.delete_agent(world.key("a")))
        await settle()
        start.open()
        assert isinstance(await ending(work), AgentDeleted)
        [runtime] = world.host.driver.runtimes.values()
        assert runtime.mailbox.closed
        stop.open()
        await deletion
        await world.at_rest()

    scene(scenario)
