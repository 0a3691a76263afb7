"""How a host is emptied: the course is its own, it ends, and whoever is cut is said to be."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from host_kit import World, ending, scene, settle

from innkeeper_server.drain import DrainPlan, DrainReport
from innkeeper_server.errors import (
    AgentOwned,
    CallCycle,
    Draining,
    InnkeeperError,
    StoreUnavailable,
)
from innkeeper_server.mailbox import Call


async def drained(world: World, patience: float) -> DrainReport:
    steps = [step async for step in world.host.drain(patience)]
    assert isinstance(steps[-1], DrainReport)
    return steps[-1]


async def spoil(world: World, id: str, value: Any) -> None:
    """Leave something in an agent's state that no turn would commit, as a job can."""
    await world.do(id, "fine").outcome()
    runtime = world.host.driver.find(world.key(id))
    assert runtime is not None
    runtime.instance.state.done = value


def test_a_drain_goes_on_though_nobody_follows_it() -> None:
    """1. A drain is followed to its first step and no further.
    2. Its deadline passes: whoever is still there is cut.
    """

    async def scenario(world: World) -> None:
        gate = world.gates["run long"].shut()
        work = world.do("a", "long")
        await gate.reached()
        steps = world.host.drain(20.0)
        assert isinstance(await anext(steps), DrainPlan)
        await anext(steps)
        assert isinstance(await ending(work), InnkeeperError)
        assert world.host.now() == 20.0
        await settle()
        assert world.resident() == []
        await steps.aclose()  # type: ignore[attr-defined]

    scene(scenario)


def test_a_second_drain_follows_the_first_and_can_only_shorten_it() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["run long"].shut()
        world.do("a", "long")
        await gate.reached()
        first = asyncio.ensure_future(drained(world, 500.0))
        later = asyncio.ensure_future(drained(world, 900.0))
        await asyncio.sleep(5.0)
        third = await drained(world, 10.0)
        assert (third.cut, third.clean, third.took) == (1, False, 15.0)
        assert await first == await later == third

    scene(scenario)


@pytest.mark.parametrize("value", [object(), ["x" * 5_000_000]], ids=["no JSON", "too large"])
def test_a_state_that_can_never_be_saved_keeps_nobody(
    value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """What a job did is undone, as a failing turn's is; the log says so, without the state."""

    async def scenario(world: World) -> None:
        await spoil(world, "a", value)
        assert (await world.host.operators.evict(world.key("a"))).stopped
        assert await world.done("a") == ["fine"]
        await spoil(world, "a", value)
        report = await drained(world, 20.0)
        assert (report.clean, report.took) == (True, 0.0)
        assert world.host.lives.lost_total == 2

    scene(scenario)
    told = [record.message for record in caplog.records]
    assert len([text for text in told if "could not be saved" in text]) == 2
    lost = "what guest/a did to its state since its last commit is lost: "
    assert len([text for text in told if text.startswith(lost)]) == 2
    assert "xxx" not in caplog.text


def test_a_state_that_cannot_be_saved_now_is_cut_at_the_deadline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """1. The store fails. a, whom nobody owns, is kept: its state is tried again and again.
    2. The deadline of a drain passes: a is cut, and counted as cut; the log says what that cost.
    """

    async def scenario(world: World) -> None:
        await spoil(world, "a", ["more"])
        world.store.fail["commit"] = [StoreUnavailable("full")] * 100
        report = await drained(world, 20.0)
        assert (report.cut, report.clean, report.took) == (1, False, 20.0)
        assert world.resident() == []
        assert world.host.lives.lost_total == 1
        world.store.fail.clear()
        assert await world.done("a") == ["fine"]

    scene(scenario)
    assert "guest/a is cut: its checkpoint failed" in caplog.text
    assert "since its last commit is lost: STORE_UNAVAILABLE" in caplog.text


def test_a_last_save_that_does_not_end_is_said_to_be_lost(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        await spoil(world, "a", ["more"])
        gate = world.gates["commit"].shut()
        await world.host.operators.evict(world.key("a"), mode="force")
        assert world.resident() == []
        assert world.host.now() == world.limits.stop_timeout
        assert world.host.lives.lost_total == 1
        gate.open()

    scene(scenario)
    assert "is lost: its last save took longer than 10 s" in caplog.text


def test_agents_that_call_each_other_as_they_stop_do_not_hold_up_a_drain() -> None:
    """1. a and b stop, and each calls the other from on_stop.
    2. Without a drain that brings the other back. In a drain it is refused.
    """

    async def scenario(world: World) -> None:
        await world.do("a", "a1").outcome()
        await world.do("b", "b1").outcome()
        world.parting.update({"a": "b", "b": "a"})
        report = await drained(world, 20.0)
        assert (report.clean, report.took, report.evicted) == (True, 0.0, 2)
        assert [type(error) for error in world.refusals] == [Draining, Draining]

    scene(scenario, capacity=2)


def test_an_agent_may_call_another_as_it_stops_while_the_host_goes_on() -> None:
    async def scenario(world: World) -> None:
        await world.do("a", "a1").outcome()
        world.parting["a"] = "b"
        await world.host.operators.evict(world.key("a"))
        assert await world.done("b") == ["farewell of a"]
        assert world.refusals == []
        await world.at_rest()

    scene(scenario, capacity=2)


@pytest.mark.parametrize("way", [["a"], ["b", "a"]], ids=["itself", "by another"])
def test_an_agent_that_needs_itself_to_start_is_told_so_at_once(way: list[str]) -> None:
    async def scenario(world: World) -> None:
        world.greeting["a"] = way
        error = await ending(world.do("a"))
        assert isinstance(error, CallCycle)
        assert [type(refusal) for refusal in world.refusals] == [CallCycle]
        assert world.host.now() == 0.0
        world.greeting.clear()
        await world.at_rest()

    scene(scenario, capacity=2)


def test_a_job_of_on_start_may_call_its_own_agent() -> None:
    """It waits for the start like any other caller."""

    async def scenario(world: World) -> None:
        world.sending["a"] = "note to self"
        assert await ending(world.do("a", "first")) == "first"
        await settle()
        assert await world.done("a") == ["first", "note to self"]
        await world.at_rest()

    scene(scenario)


def test_two_graceful_evictions_each_wait_for_as_long_as_they_were_told() -> None:
    """1. a works. One operator waits 5 s for it to be free, another 100 s.
    2. The first gives up. The second waits on; new work is still kept outside.
    3. a is free: it goes, and the new work runs in the next life.
    """

    async def scenario(world: World) -> None:
        gate = world.gates["run one"].shut()
        one = world.do("a", "one")
        await gate.reached()
        evict, key = world.host.operators.evict, world.key("a")
        first = asyncio.ensure_future(evict(key, mode="graceful", patience=5.0))
        second = asyncio.ensure_future(evict(key, mode="graceful", patience=100.0))
        await settle()
        two = world.do("a", "two")
        with pytest.raises(AgentOwned):
            await first
        assert world.host.now() == 5.0
        with pytest.raises(AgentOwned, match="call"):
            await evict(key)  # if idle: refused at once
        assert world.host.now() == 5.0
        await settle()
        assert not second.done()
        assert two.turn is None
        gate.open()
        assert (await second).stopped
        assert world.host.now() == 5.0  # not by its idle time
        assert (await ending(one), await ending(two)) == ("one", "two")
        assert one.runtime_id != two.runtime_id
        await world.at_rest()

    scene(scenario)


def test_a_pin_takes_the_place_of_its_owners_earlier_one() -> None:
    async def scenario(world: World) -> None:
        pin, key = world.host.operators.pin, world.key("a")
        for ttl in (100.0, 200.0, 50.0):
            await pin(key, ttl, "me", Call())
        await pin(key, 70.0, "you", Call())
        leases = world.host.account.slots[key].leases or ()
        assert [(lease.owner, lease.until) for lease in leases] == [("me", 50.0), ("you", 70.0)]
        await asyncio.sleep(70.0)
        assert world.host.account.slots[key].leases is None
        await world.at_rest()

    scene(scenario)


def test_a_start_that_is_cut_and_comes_to_its_end_all_the_same_is_stopped() -> None:
    """1. a's on_start takes too long, is cancelled, and is deaf to it for a moment.
    2. It ends well, too late: on_stop runs, and the slot is free.
    """

    async def scenario(world: World) -> None:
        world.once.add("on_start")
        gate = world.gates["on_start"].shut()
        work = world.do("a")
        await gate.reached()
        await asyncio.sleep(world.limits.start_timeout)
        gate.open()
        assert isinstance(await ending(work), InnkeeperError)
        assert world.gates["on_stop a"].passed == 1
        await world.at_rest()

    scene(scenario)


@pytest.mark.parametrize("at_once", [True, False])
def test_who_drains_again_after_an_undrain_begins_anew(at_once: bool) -> None:
    """1. A drain of 20 s is under way, and is taken back. 2. Another, of 30 s, is begun.
    3. New work is refused again, and what runs has all of the second drain's time.
    """

    async def scenario(world: World) -> None:
        gate = world.gates["run long"].shut()
        work = world.do("a", "long")
        await gate.reached()
        first = asyncio.ensure_future(drained(world, 20.0))
        await settle()
        assert world.host.undrain()
        if not at_once:
            await settle()
            assert first.done()
        second = asyncio.ensure_future(drained(world, 30.0))
        await settle()
        assert isinstance(await ending(world.do("b")), Draining)
        report = await second
        assert (report.cut, report.took) == (1, 30.0)
        assert ((await first).cut, (await first).took) == (0, 0.0)
        assert isinstance(await ending(work), InnkeeperError)

    scene(scenario)


def test_a_drain_has_begun_once_its_plan_is_told() -> None:
    async def scenario(world: World) -> None:
        steps = world.host.drain(20.0)
        assert isinstance(await anext(steps), DrainPlan)
        await steps.aclose()  # type: ignore[attr-defined]
        assert isinstance(await ending(world.do("a")), Draining)

    scene(scenario)


def test_who_is_still_starting_at_the_deadline_is_cut_and_the_host_waits_for_nobody() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["on_start"].shut()
        work = world.do("a")
        await gate.reached()
        report = await drained(world, 3.0)
        assert (report.cut, report.clean, report.took) == (1, False, 3.0)
        assert isinstance(await ending(work), Draining)
        assert not await world.host.close()
        assert world.host.now() == 3.0

    scene(scenario, start_timeout=300.0, admission_timeout=600.0)


def test_a_stop_waits_once_for_what_cannot_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """1. An eviction never ends, by a defect. 2. A drain has waited for it as long as it may.
    3. The host is closed: it does not drain again.
    """

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    async def scenario(world: World) -> None:
        await world.do("a").outcome()
        monkeypatch.setattr(world.host.lives, "_deactivate", never)
        report = await drained(world, 20.0)
        limit = world.limits.stop_timeout
        assert (report.clean, report.took) == (False, 20.0 + 4 * limit)
        assert not await world.host.close()
        assert world.host.now() == 20.0 + 5 * limit

    scene(scenario)


def test_more_idle_agents_than_may_leave_at_once_all_leave_at_the_deadline() -> None:
    """Nothing is lost by it, so nothing counts as cut."""

    async def scenario(world: World) -> None:
        ids = [f"a{n}" for n in range(6)]
        for id in ids:
            await world.do(id).outcome()
            world.gates[f"on_stop {id}"].shut()
        world.host.account.max_claims = 2
        report = await drained(world, 3.0)
        limit = world.limits.stop_timeout
        assert (report.evicted, report.cut, report.clean) == (6, 0, True)
        assert report.took == 3.0 + limit

    scene(scenario, capacity=6)


@pytest.mark.parametrize("deaf", ["on_stop", "on_start"])
def test_a_zombie_has_had_its_time_and_gets_no_more_when_the_host_closes(deaf: str) -> None:
    async def scenario(world: World) -> None:
        if deaf == "on_stop":
            world.stubborn.add("a")
            await world.do("a").outcome()
            world.gates["on_stop a"].shut()
        else:
            world.once.add("on_start")
            gate = world.gates["on_start"].shut()
            world.do("a")
            await gate.reached()
        report = await drained(world, 20.0)
        assert (report.zombies, report.clean) == (1, False)
        ended = world.host.now()
        assert not await world.host.close()
        assert world.host.now() == ended
        world.gates[deaf if deaf == "on_start" else "on_stop a"].open()
        await settle()
        assert world.resident() == []

    scene(scenario, start_timeout=300.0, admission_timeout=600.0)
