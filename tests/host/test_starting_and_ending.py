"""Lives that begin badly, end by force, or meet another host; and the end of a whole host."""

from __future__ import annotations

import asyncio

import pytest
from host_kit import World, ending, scene, settle

from innkeeper_server.agent import Agent, action
from innkeeper_server.drain import DrainPlan, DrainReport
from innkeeper_server.errors import (
    AgentDeleted,
    AgentNotFound,
    CapacityExhausted,
    Draining,
    Evicted,
    StaleEpoch,
    StaleRuntime,
    StartFailed,
    StartTimeout,
    StoreUnavailable,
)
from innkeeper_server.host import Host
from innkeeper_server.identity import AgentKey
from innkeeper_server.mailbox import Call


def test_five_callers_that_joined_a_failed_start_get_the_same_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Row 25: and the slot is free, and the next call starts afresh."""

    async def scenario(world: World) -> None:
        class Broken(Agent[None]):
            healthy = False

            async def on_start(self) -> None:
                await world.gates["broken"].pass_through()
                if not self.healthy:
                    raise RuntimeError("secret text")

            @action
            async def work(self) -> str:
                return "well"

        world.registry.register(Broken)
        key = AgentKey("default", "broken", "x")
        gate = world.gates["broken"].shut()
        calls = [world.host.invoke(key, "work", None, Call()) for _ in range(5)]
        await gate.reached()
        gate.open()
        errors = [await ending(call) for call in calls]
        assert all(isinstance(error, StartFailed) for error in errors)
        assert len({str(error) for error in errors}) == 1
        assert "secret text" not in str(errors[0])
        assert "secret text" in caplog.text
        assert world.host.account.slots == {}
        assert world.host.driver.runtimes == {}
        Broken.healthy = True
        assert await ending(world.host.invoke(key, "work", None, Call())) == "well"
        await world.at_rest()

    scene(scenario)


def test_twenty_first_calls_make_one_load() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["hydrate"].shut()
        calls = [world.do("a", f"n{n}") for n in range(20)]
        await gate.reached()
        await settle()
        assert gate.held == 1
        gate.open()
        assert [await ending(call) for call in calls] == [f"n{n}" for n in range(20)]
        assert world.host.account.loaded_total == 1
        await world.at_rest()

    scene(scenario)


def test_a_store_that_cannot_be_read_refuses_the_start_and_keeps_no_slot() -> None:
    async def scenario(world: World) -> None:
        world.store.fail["hydrate"] = [StoreUnavailable("locked")]
        assert isinstance(await ending(world.do("a")), StoreUnavailable)
        assert world.resident() == []
        assert await ending(world.do("a")) == "work"
        await world.at_rest()

    scene(scenario)


def test_a_start_that_takes_too_long_is_given_up() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["on_start"].shut()
        error = await ending(world.do("a"))
        assert isinstance(error, StartTimeout)
        assert world.host.now() == pytest.approx(5.0)
        gate.open()
        assert world.resident() == []
        assert await ending(world.do("a")) == "work"
        await world.at_rest()

    scene(scenario, start_timeout=5.0, admission_timeout=60.0)


def test_a_start_that_does_not_even_end_when_cancelled_keeps_its_slot_as_a_zombie() -> None:
    """Its code runs, so there can be no second life beside it, and the capacity is really used."""

    async def scenario(world: World) -> None:
        gate = world.gates["stuck"].shut()

        class Stuck(Agent[None]):
            async def on_start(self) -> None:
                await gate.pass_stubbornly()

            @action
            async def work(self) -> str:
                return "well"

        world.registry.register(Stuck)
        key = AgentKey("default", "stuck", "x")
        assert isinstance(await ending(world.host.invoke(key, "work", None, Call())), StartTimeout)
        refused = await ending(world.do("b"))
        assert isinstance(refused, CapacityExhausted)
        assert "zombie" in refused.message
        gate.open()
        await settle()
        assert await ending(world.do("b")) == "work"
        await world.at_rest()

    scene(scenario, start_timeout=5.0, stop_timeout=1.0)


def test_reading_an_unknown_agent_disturbs_nobody_who_starts_it() -> None:
    """Row 24: a read beside the first call of the same id."""

    async def scenario(world: World) -> None:
        gate = world.gates["hydrate"].shut()
        call = world.do("a")
        await gate.reached()
        with pytest.raises(AgentNotFound):
            await world.host.get_agent(world.key("a"))
        gate.open()
        assert await ending(call) == "work"
        assert (await world.host.get_agent(world.key("a"))).record.version == 1
        with pytest.raises(AgentNotFound):
            await world.host.get_agent(world.key("nobody"))
        assert [view.record.key.id for view in await world.host.list_agents("default")] == ["a"]
        await world.at_rest()

    scene(scenario)


def test_a_host_that_lost_an_agent_to_another_can_write_nothing_more() -> None:
    """Row 7: 1. host A is paused in its commit. 2. host B takes the agent. 3. A goes on: its
    write is refused, its caller told so, its life over. 4. Its next call starts from B's state."""

    async def scenario(world: World) -> None:
        other = Host(world.registry, world.store, world.limits)
        gate = world.gates["commit"].shut()
        paused = world.do("a", "by A")
        await gate.reached()
        gate_b = other.invoke(world.key("a"), "work", {"text": "by B"}, Call())
        await settle()
        gate.open()
        assert await ending(gate_b) == "by B"
        error = await ending(paused)
        assert isinstance(error, StaleEpoch)
        assert error.retry_after is not None
        await settle()
        assert world.resident() == []
        assert await world.done("a") == ["by B"]
        assert await ending(world.do("a", "by A again")) == "by A again"
        assert await world.done("a") == ["by B", "by A again"]
        late = other.invoke(world.key("a"), "work", {"text": "late B"}, Call())
        assert isinstance(await ending(late), StaleEpoch)
        assert await world.done("a") == ["by B", "by A again"]

    scene(scenario, capacity=1)


def test_a_deleted_agent_ends_at_once_and_nothing_revives_it() -> None:
    async def scenario(world: World) -> None:
        await world.do("a", "one").outcome()
        gate = world.gates["run two"].shut()
        running, queued = world.do("a", "two"), world.do("a", "three")
        await gate.reached()
        assert await world.host.delete_agent(world.key("a"))
        assert isinstance(await ending(running), AgentDeleted)
        assert isinstance(await ending(queued), AgentDeleted)
        assert world.resident() == []
        assert isinstance(await ending(world.do("a", "four")), AgentDeleted)
        assert not await world.host.delete_agent(world.key("a"))
        with pytest.raises(AgentNotFound):
            await world.host.get_agent(world.key("a"))
        await world.at_rest()

    scene(scenario)


def test_an_eviction_that_names_another_life_touches_nothing() -> None:
    async def scenario(world: World) -> None:
        first = world.do("a", "one")
        await first.outcome()
        await world.host.operators.evict(world.key("a"), first.runtime_id)
        second = world.do("a", "two")
        await second.outcome()
        with pytest.raises(StaleRuntime) as refused:
            await world.host.operators.evict(world.key("a"), first.runtime_id, mode="force")
        assert refused.value.metadata["runtime_id"] == second.runtime_id
        assert world.resident() == ["a"]
        await world.at_rest()

    scene(scenario)


def test_finished_agents_make_room_and_a_refusal_names_who_does_not() -> None:
    """Row 4."""

    async def scenario(world: World) -> None:
        for id in "ab":
            await world.do(id).outcome()
        gate = world.gates["run c1"].shut()
        third = world.do("c", "c1")
        await gate.reached()
        connection = world.host.connect(
            world.key("b"), Call(), name="the console of ops", on_leaving=lambda reason: None
        )
        await connection.ready()
        refused = await ending(world.do("d"))
        assert isinstance(refused, CapacityExhausted)
        assert "guest/b: 1 connection (the console of ops)" in refused.message
        assert "guest/c: 1 call" in refused.message
        connection.close()
        assert await ending(world.do("d")) == "work"
        gate.open()
        await ending(third)
        await world.at_rest()

    scene(scenario, capacity=2)


def test_a_pin_keeps_its_agent_for_its_time_and_no_longer() -> None:
    async def scenario(world: World) -> None:
        await world.host.operators.pin(world.key("a"), 500.0, "ops", Call())
        await asyncio.sleep(499)
        assert world.resident() == ["a"]
        assert "1 pin (ops)" in world.host.operators.explain(world.key("a"))[0].summary
        await asyncio.sleep(2 + world.limits.idle_timeout)
        assert world.resident() == []

    scene(scenario)


def test_a_drain_refuses_first_then_finishes_then_reports() -> None:
    """Row 8: what was accepted before has an outcome, and nothing is accepted after."""

    async def scenario(world: World) -> None:
        told: list[bool] = []
        world.host.drains.listeners.append(told.append)
        await world.do("idle").outcome()
        gate = world.gates["run one"].shut()
        running, queued = world.do("a", "one"), world.do("a", "two")
        await gate.reached()
        steps = []

        async def drain() -> None:
            async for step in world.host.drain(20.0):
                steps.append(step)

        draining = asyncio.ensure_future(drain())
        await settle()
        assert told == [True]
        assert isinstance(await ending(world.do("a", "late")), Draining)
        assert world.resident() == ["a"]
        gate.open()
        await draining
        assert (await ending(running), await ending(queued)) == ("one", "two")
        assert isinstance(steps[0], DrainPlan)
        assert (steps[0].idle, steps[0].owned) == (1, 1)
        assert isinstance(steps[-1], DrainReport)
        assert (steps[-1].clean, steps[-1].cut, steps[-1].evicted) == (True, 0, 2)
        assert world.host.undrain()
        assert await ending(world.do("a", "after")) == "after"
        await world.at_rest()

    scene(scenario, capacity=2)


def test_a_drain_cuts_what_is_still_running_at_its_deadline() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["run one"].shut()
        running, queued = world.do("a", "one"), world.do("a", "two")
        await gate.reached()
        steps = [step async for step in world.host.drain(20.0)]
        assert isinstance(await ending(running), Evicted)
        assert isinstance(await ending(queued), Draining)
        report = steps[-1]
        assert isinstance(report, DrainReport)
        assert (report.clean, report.cut, report.zombies) == (False, 1, 0)
        assert report.took == pytest.approx(20.0)
        assert world.resident() == []
        assert await world.done("a") == []

    scene(scenario)


def test_a_pin_does_not_hold_up_a_drain() -> None:
    async def scenario(world: World) -> None:
        await world.host.operators.pin(world.key("a"), 5000.0, "ops", Call())
        steps = [step async for step in world.host.drain(20.0)]
        report = steps[-1]
        assert isinstance(report, DrainReport)
        assert (report.clean, report.evicted, report.took) == (True, 1, 0.0)

    scene(scenario)


def test_nested_calls_of_accepted_work_still_run_during_a_drain() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["ask p"].shut()
        parent = world.host.invoke(world.key("p"), "ask", {"ids": ["c"]}, Call())
        await gate.reached()
        drain = asyncio.ensure_future(anext(world.host.drain(20.0)))
        await drain
        world.host.drains.begin()
        gate.open()
        assert await ending(parent) == "for p"
        await settle()
        assert world.resident() == []

    scene(scenario, capacity=2)


def test_an_undrained_host_cuts_nothing() -> None:
    """1. a drain begins. 2. it is taken back. 3. its deadline passes: new work goes on."""

    async def scenario(world: World) -> None:
        gate = world.gates["run one"].shut()
        first = world.do("a", "one")
        await gate.reached()
        drain = asyncio.ensure_future(_drained(world, 20.0))
        await settle()
        assert world.host.undrain()
        second = world.do("a", "two")
        await asyncio.sleep(30)
        assert drain.done()
        assert drain.result().cut == 0
        gate.open()
        assert (await ending(first), await ending(second)) == ("one", "two")
        await world.at_rest()

    scene(scenario)


async def _drained(world: World, patience: float) -> DrainReport:
    steps = [step async for step in world.host.drain(patience)]
    assert isinstance(steps[-1], DrainReport)
    return steps[-1]


def test_a_forced_eviction_does_not_wait_for_a_graceful_one() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["run one"].shut()
        running = world.do("a", "one")
        await gate.reached()
        graceful = asyncio.ensure_future(
            world.host.operators.evict(world.key("a"), mode="graceful", patience=50.0)
        )
        await settle()
        begun = world.host.now()
        assert (await world.host.operators.evict(world.key("a"), mode="force")).stopped
        assert world.host.now() == begun
        assert isinstance(await ending(running), Evicted)
        assert (await graceful).stopped
        await world.at_rest()

    scene(scenario)


def test_a_deletion_that_meets_an_eviction_ends_the_agent_and_every_call() -> None:
    """1. a, whose state is dirty, is being evicted; its checkpoint is held. 2. It is deleted.
    3. Work arrives and revokes the claim. 4. The work is told, and the life ends."""

    async def scenario(world: World) -> None:
        await world.host.invoke(world.key("a"), "dirty", {"text": "job"}, Call()).outcome()
        await settle()
        gate = world.gates["commit"].shut()
        eviction = asyncio.ensure_future(world.host.operators.evict(world.key("a")))
        await gate.reached()
        deletion = asyncio.ensure_future(world.host.delete_agent(world.key("a")))
        await settle()
        late = world.do("a", "late")
        await settle()
        gate.open()
        assert isinstance(await ending(late), AgentDeleted)
        assert await deletion
        await asyncio.wait([eviction])
        eviction.exception()
        await world.at_rest()

    scene(scenario)


def test_a_hook_sees_nothing_of_the_turn_that_woke_its_agent() -> None:
    async def scenario(world: World) -> None:
        seen: list[object] = []

        class Peek(Agent[None]):
            async def on_start(self) -> None:
                try:
                    seen.append(self.turn)
                except RuntimeError:
                    seen.append(None)

            @action
            async def work(self, text: str = "") -> str:
                return text

        class Parent(Agent[None]):
            @action
            async def work(self) -> str:
                return str(await self.host.agent("peek", "x").invoke("work", text="done"))

        world.registry.register(Peek)
        world.registry.register(Parent)
        key = AgentKey("default", "parent", "p")
        assert await ending(world.host.invoke(key, "work", None, Call())) == "done"
        assert seen == [None]
        await world.at_rest()

    scene(scenario, capacity=2)
