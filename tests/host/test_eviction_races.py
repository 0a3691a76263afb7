"""Seed (b), and what else can come between the steps of an eviction.

Capacity one, agent a idle, somebody wants b. The eviction of a is held at each of its await points
in turn, and work for a arrives there.
"""

from __future__ import annotations

import asyncio

import pytest
from host_kit import World, ending, scene, settle

from innkeeper_server.errors import CapacityExhausted, StoreUnavailable
from innkeeper_server.mailbox import Call


async def idle_and_dirty(world: World) -> None:
    """Agent a, idle, with state that only its checkpoint will save."""
    await world.host.invoke(world.key("a"), "dirty", {"text": "job"}, Call()).outcome()
    await settle()


@pytest.mark.parametrize("point", ["commit", "on_stop a"])
@pytest.mark.parametrize("kind", ["followup", "invoke"])
def test_work_that_meets_an_eviction_runs_exactly_once(point: str, kind: str) -> None:
    """1. a is idle; b is wanted, so a is claimed; its eviction is held at `point`.
    2. Work for a arrives.
    3. The account equals the runtimes that exist.
    4. The eviction goes on: b's caller and a's work are both served, each once.
    5. The next reservation succeeds at the first attempt.
    """

    async def scenario(world: World) -> None:
        await idle_and_dirty(world)
        gate = world.gates[point].shut()
        wanted = world.do("b", "b1")
        await gate.reached()
        work = world.followup("a", "late") if kind == "followup" else world.do("a", "late")
        world.check()
        assert len(world.host.driver.runtimes) == len(world.host.account.slots) == 1
        gate.open()
        assert await ending(wanted) == "b1"
        await ending(work)
        assert world.ran.count("late") == 1
        assert await world.done("a") == ["job", "late"]
        await settle()
        world.check()
        assert await ending(world.do("c", "c1")) == "c1"
        assert world.host.account.refused_total == 0
        await world.at_rest()

    scene(scenario, capacity=1)


@pytest.mark.parametrize("point", ["commit", "on_stop a", "hydrate", "on_start"])
def test_calls_fired_at_each_step_of_a_hand_over_all_end_in_order(point: str) -> None:
    """Row 6: N calls at each await point: N outcomes, in order."""

    async def scenario(world: World) -> None:
        await idle_and_dirty(world)
        gate = world.gates[point].shut()
        wanted = world.do("b", "b1")
        await gate.reached()
        calls = [world.do("a", f"n{n}") for n in range(20)]
        world.check()
        gate.open()
        assert await ending(wanted) == "b1"
        assert [await ending(call) for call in calls] == [f"n{n}" for n in range(20)]
        assert await world.done("a") == ["job", *(f"n{n}" for n in range(20))]
        await world.at_rest()

    scene(scenario, capacity=1)


def test_an_idle_eviction_gives_way_to_work_before_its_fence() -> None:
    """The checkpoint is held; work arrives; the same life goes on."""

    async def scenario(world: World) -> None:
        await idle_and_dirty(world)
        before = world.host.driver.find(world.key("a"))
        gate = world.gates["commit"].shut()
        await asyncio.sleep(world.limits.idle_timeout)
        await gate.reached()
        work = world.do("a", "saved")
        gate.open()
        assert await ending(work) == "saved"
        assert world.host.driver.find(world.key("a")) is before
        assert await world.done("a") == ["job", "saved"]
        await world.at_rest()

    scene(scenario)


def test_a_failed_checkpoint_restores_and_the_next_victim_is_tried() -> None:
    """Row 5: a cannot be saved, so it stays; b, idle too, makes room; nobody is refused."""

    async def scenario(world: World) -> None:
        await idle_and_dirty(world)
        await world.do("b", "b1").outcome()
        world.store.fail["commit"] = [StoreUnavailable("disk full")]
        assert await ending(world.do("c", "c1")) == "c1"
        assert world.resident() == ["a", "c"]
        world.check()
        await world.at_rest()
        assert await world.done("a") == ["job"]

    scene(scenario, capacity=2)


def test_a_limit_is_reported_only_when_every_resident_is_owned() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["run work"].shut()
        owned = world.do("a")
        await gate.reached()
        refused = await ending(world.do("b", "b1"))
        assert isinstance(refused, CapacityExhausted)
        assert "guest/a: 1 call" in refused.message
        assert refused.metadata["capacity"] == "1"
        assert refused.retry_after == 1.0
        gate.open()
        await ending(owned)
        assert await ending(world.do("b", "b2")) == "b2"
        await world.at_rest()

    scene(scenario, capacity=1)


def test_a_stop_hook_that_never_returns_becomes_a_zombie_and_blocks_nobody_else() -> None:
    """Row 5: the runtime is fenced and charged; admission takes another victim; when its code
    really ends, the slot comes back by itself."""

    async def scenario(world: World) -> None:
        gate = world.gates["on_stop a"].shut()
        world.stubborn.add("a")
        await world.do("a").outcome()
        await world.do("b").outcome()
        waiting = world.do("c", "c1")
        await gate.reached()
        assert await ending(waiting) == "c1"
        evicted = await world.host.operators.evict(world.key("c"), mode="force")
        assert evicted.stopped
        await asyncio.sleep(3 * world.limits.stop_timeout)
        assert world.host.account.overrun_total == 1
        assert world.host.operators.explain(world.key("a"))[0].summary.startswith(
            "guest/a cannot be evicted: it is zombie"
        )
        world.check()
        late = world.do("a", "too early")
        assert type(await ending(late)).__name__ == "StillStopping"
        gate.open()
        await settle()
        assert await ending(world.do("a", "again")) == "again"
        await world.at_rest()

    scene(scenario, capacity=2, stop_timeout=2.0, admission_timeout=30.0)


def test_one_raising_stop_hook_keeps_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    """Row 27: the first of three raises; all three leave."""

    async def scenario(world: World) -> None:
        world.raising.add("a")
        for id in "abc":
            await world.do(id).outcome()
        await world.at_rest()
        assert world.host.account.evicted_total == 3

    scene(scenario, capacity=3)
    assert "guest/a raised in on_stop" in caplog.text


def test_a_working_set_of_capacity_plus_one_makes_progress_every_time() -> None:
    """Row 20: just loaded is never evicted before its first use; one eviction for each miss."""

    async def scenario(world: World) -> None:
        for n in range(40):
            assert await ending(world.do("abcd"[n % 4], f"n{n}")) == f"n{n}"
            world.check()
        assert world.host.account.loaded_total == 40
        assert world.host.account.evicted_total == 37
        await world.at_rest()

    scene(scenario, capacity=3)


def test_an_operator_s_forced_eviction_cuts_the_turn_and_keeps_what_waits() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["run cut"].shut()
        cut, kept = world.do("a", "cut"), world.followup("a", "kept")
        await gate.reached()
        evicted = await world.host.operators.evict(world.key("a"), mode="force")
        assert evicted.stopped
        assert type(await ending(cut)).__name__ == "Evicted"
        await ending(kept)
        assert await world.done("a") == ["kept"]
        await world.at_rest()

    scene(scenario)


def test_a_graceful_eviction_lets_work_finish_and_sends_newcomers_to_the_next_life() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["run one"].shut()
        first = world.do("a", "one")
        await gate.reached()
        before = first.runtime_id
        eviction = asyncio.ensure_future(
            world.host.operators.evict(world.key("a"), mode="graceful", patience=100.0)
        )
        await settle()
        second = world.do("a", "two")
        await settle()
        assert second.runtime_id == ""
        gate.open()
        assert (await eviction).stopped
        assert (await ending(first), await ending(second)) == ("one", "two")
        assert second.runtime_id not in ("", before)
        assert await world.done("a") == ["one", "two"]
        await world.at_rest()

    scene(scenario)


def test_a_graceful_eviction_that_runs_out_of_patience_lets_newcomers_in() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["run one"].shut()
        first = world.do("a", "one")
        await gate.reached()
        eviction = asyncio.ensure_future(
            world.host.operators.evict(world.key("a"), mode="graceful", patience=5.0)
        )
        await settle()
        second = world.do("a", "two")
        with pytest.raises(Exception, match="cannot be evicted"):
            await eviction
        gate.open()
        assert (await ending(first), await ending(second)) == ("one", "two")
        assert second.runtime_id == first.runtime_id
        await world.at_rest()

    scene(scenario)


def test_the_caller_of_a_turn_that_will_not_stop_is_told_and_nothing_of_it_is_kept() -> None:
    """1. a turn is deaf to cancellation; an operator forces its agent out. 2. The stop overruns:
    the caller gets its outcome, the slot stays charged. 3. The code ends: nothing was kept."""

    async def scenario(world: World) -> None:
        world.stubborn.add("deaf")
        gate = world.gates["run deaf"].shut()
        deaf = world.do("a", "deaf")
        await gate.reached()
        evicted = await world.host.operators.evict(world.key("a"), mode="force")
        assert not evicted.stopped
        assert type(await ending(deaf)).__name__ == "Evicted"
        assert world.resident() == ["a"]
        world.host.account.check()
        gate.open()
        await settle()
        assert world.resident() == []
        assert await world.done("a") == []
        assert await ending(world.do("a", "again")) == "again"
        assert await world.done("a") == ["again"]

    scene(scenario, stop_timeout=1.0)
