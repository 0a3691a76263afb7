"""Work that no caller holds: jobs, what is handed over, and code that does not listen.

Each owns its agent until it has ended, and each ends: both halves, on virtual time.
"""

from __future__ import annotations

import asyncio

import pytest
from host_kit import World, ending, scene, settle

from innkeeper_server.errors import AgentOwned, DeadlineExceeded, Evicted, WorkCancelled
from innkeeper_server.mailbox import Call
from innkeeper_server.slots import LeaseKind


def owners(world: World, id: str) -> list[LeaseKind]:
    """What keeps an agent."""
    slot = world.host.account.slots[world.key(id)]
    return [lease.kind for lease in slot.leases or ()]


def test_a_job_of_on_start_owns_its_agent_before_anybody_can_want_its_slot() -> None:
    """1. a is wanted, and starts; its caller leaves. b waits for the only slot.
    2. on_start spawns a job and returns. The slot is not idle for a moment.
    3. The job ends: what it did is saved, and b has the slot.
    """

    async def scenario(world: World) -> None:
        world.industrious.add("a")
        start, job = world.gates["on_start"].shut(), world.gates["job of a"].shut()
        gone = world.do("a")
        await start.reached()
        world.host.caller_left(gone)
        other = world.do("b", "b1")
        start.open()
        await job.reached()
        await settle()
        assert (world.resident(), owners(world, "a")) == (["a"], [LeaseKind.JOB])
        job.open()
        assert await ending(other) == "b1"
        assert await world.done("a") == ["job of a"]
        await world.at_rest()

    scene(scenario)


def test_a_job_spawned_while_its_agent_is_to_leave_is_waited_for() -> None:
    """1. a works; an operator evicts it gracefully, which waits.
    2. The work spawns a job and ends. The eviction waits for the job too.
    """

    async def scenario(world: World) -> None:
        work, job = world.gates["run spawn"].shut(), world.gates["late job"].shut()
        turn = world.host.invoke(world.key("a"), "spawn_late", {"text": "spawn"}, Call())
        await work.reached()
        evict = world.host.operators.evict(world.key("a"), mode="graceful", patience=1000.0)
        eviction = asyncio.ensure_future(evict)
        await settle()
        work.open()
        await turn.outcome()
        await job.reached()
        assert owners(world, "a") == [LeaseKind.JOB]
        assert not eviction.done()
        job.open()
        assert (await eviction).stopped
        assert await world.done("a") == ["spawn", "late job"]
        await world.at_rest()

    scene(scenario)


def test_a_job_spawned_under_a_polite_claim_ends_the_claim() -> None:
    """1. a is idle, dirty, and claimed; its checkpoint is held in the store.
    2. Code of it that nobody knows of spawns a job: a is owned, and stays.
    """

    async def scenario(world: World) -> None:
        await world.host.invoke(world.key("a"), "dirty", {"text": "first"}, Call()).outcome()
        await settle()
        commit, job = world.gates["commit"].shut(), world.gates["second"].shut()
        eviction = asyncio.ensure_future(world.host.operators.evict(world.key("a")))
        await commit.reached()
        [runtime] = world.host.driver.runtimes.values()
        runtime.spawn(runtime.instance._job("second"))
        await job.reached()
        commit.open()
        with pytest.raises(AgentOwned, match="background job"):
            await eviction
        assert world.resident() == ["a"]
        job.open()
        await world.at_rest()
        assert await world.done("a") == ["first", "second"]

    scene(scenario)


def test_a_job_that_is_cancelled_before_its_first_step_leaves_nothing_behind() -> None:
    async def scenario(world: World) -> None:
        await world.host.invoke(world.key("a"), "change_its_mind", None, Call()).outcome()
        await world.at_rest()
        assert await world.done("a") == []

    scene(scenario)


def test_a_followup_that_is_handed_over_waits_for_as_long_as_it_takes() -> None:
    """1. a works; a follow-up is accepted behind it. b waits for the only slot.
    2. a is forced out. b has its slot, and keeps it far beyond anybody's patience.
    3. b leaves: the follow-up runs.
    """

    async def scenario(world: World) -> None:
        first, long = world.gates["run one"].shut(), world.gates["run long"].shut()
        one, later = world.do("a", "one"), world.followup("a", "later")
        await later.accepted()
        await first.reached()
        other = world.do("b", "long")
        await world.host.operators.evict(world.key("a"), mode="force")
        assert isinstance(await ending(one), Evicted)
        await long.reached()
        await asyncio.sleep(100 * world.limits.admission_timeout)
        assert world.host.account.waiting == 1
        long.open()
        assert await ending(other) == "long"
        assert await ending(later) is None
        assert await world.done("a") == ["later"]
        await world.at_rest()

    scene(scenario)


def test_what_is_handed_over_is_not_counted_against_the_bound_of_the_line() -> None:
    async def scenario(world: World) -> None:
        first = world.gates["run one"].shut()
        one, later = world.do("a", "one"), world.followup("a", "later")
        await first.reached()
        others = [world.do("b", "b1"), world.do("c", "c1")]
        await world.host.operators.evict(world.key("a"), mode="force")
        assert isinstance(await ending(one), Evicted)
        assert [await ending(work) for work in (*others, later)] == ["b1", "c1", None]
        await world.at_rest()

    scene(scenario, max_waiting=2)


@pytest.mark.parametrize("how", ["cancel", "turn_timeout"])
def test_code_that_goes_on_though_it_was_told_to_stop_is_abandoned(how: str) -> None:
    """1. a works and is deaf to its cancellation. Its caller is told after the stop timeout.
    2. It owns its agent still: nobody evicts it, and nothing runs beside it.
    3. It ends: nothing of it was kept, and what waited runs.
    """

    async def scenario(world: World) -> None:
        world.stubborn.add("deaf")
        gate = world.gates["run deaf"].shut()
        deaf, after = world.do("a", "deaf"), world.do("a", "after")
        await gate.reached()
        began = world.host.now()
        if how == "cancel":
            world.host.cancel(world.key("a"), "turn")
            assert isinstance(await ending(deaf), WorkCancelled)
            assert world.host.now() - began == world.limits.stop_timeout
        else:
            assert isinstance(await ending(deaf), DeadlineExceeded)
            limits = world.limits
            assert world.host.now() - began == limits.turn_timeout + limits.stop_timeout
        await asyncio.sleep(10 * world.limits.idle_timeout)
        with pytest.raises(AgentOwned):
            await world.host.operators.evict(world.key("a"))
        assert world.ran == ["deaf"]
        gate.open()
        assert await ending(after) == "after"
        assert await world.done("a") == ["after"]
        await world.at_rest()

    scene(scenario, turn_timeout=600.0)


def test_code_that_swallows_one_cancellation_is_cancelled_again() -> None:
    async def scenario(world: World) -> None:
        world.once.add("hesitates")
        gate = world.gates["run hesitates"].shut()
        work = world.do("a", "hesitates")
        await gate.reached()
        world.host.cancel(world.key("a"), "turn")
        assert isinstance(await ending(work), WorkCancelled)
        await settle()
        assert owners(world, "a") == []
        assert await world.done("a") == []
        gate.open()
        await world.at_rest()

    scene(scenario)
