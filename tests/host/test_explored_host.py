"""The host under a controlled loop: other orders than first come, first served, every caller
cancelled at every step, and worlds put together at random. After each step the account is true and
agrees with the lives that exist; at the end everything accepted has settled once, in order, and
what was kept is what was told.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
from explored_kit import Play, any_caller

from innkeeper_server.errors import StoreUnavailable
from innkeeper_server.mailbox import Call
from innkeeper_server.testing import Scene, explore

Scenario = Callable[[Scene], Coroutine[Any, Any, None]]


async def hand_over(scene: Scene) -> None:
    """Capacity one: b evicts a while work for a keeps arriving."""
    play = await Play.begun(scene, "a", capacity=1)
    play.start(play.invoke("b", "b1"), play.followup("a", "a1"), play.invoke("a", "a2"))
    await play.finish()


async def streams_and_sessions(scene: Scene) -> None:
    """Two slots, three agents: readers that leave, a session, a follow-up behind a stream."""
    play = await Play.begun(scene, capacity=2)
    play.start(play.chat("a", "a1 a2", "cancel"), play.chat("b", "b1 b2", "continue"))
    play.start(play.followup("a", "a3"), play.session("c"))
    await play.finish()


async def a_polite_eviction(scene: Scene) -> None:
    """An idle agent is to leave, and work arrives."""
    play = await Play.begun(scene, "a", capacity=1)
    play.start(play.evict("a", "if_idle"), play.invoke("a", "a1"), play.followup("a", "a2"))
    await play.finish()


async def a_graceful_eviction(scene: Scene) -> None:
    """An agent that works is to leave once it is free; more work arrives; a session stays on."""
    play = await Play.begun(scene, "a", capacity=1)
    play.start(play.session("a", 3.0), play.invoke("a", "a1"), play.evict("a", "graceful"))
    play.start(play.invoke("a", "a2"), play.invoke("b", "b1"))
    await play.finish()


async def a_forced_eviction(scene: Scene) -> None:
    """A running turn is cut; what waits behind it goes to the next life, in order."""
    play = await Play.begun(scene, "a", capacity=1)
    play.start(play.invoke("a", "a1"), play.invoke("a", "a2"), play.followup("a", "a3"))
    play.start(play.evict("a", "force"), play.invoke("a", "a4"))
    await play.finish()


async def operators_at_work(scene: Scene) -> None:
    """A pin and every kind of eviction of an agent that others call, beside one that is idle."""
    play = await Play.begun(scene, "a", "b", capacity=2)
    play.start(play.evict("a", "graceful"), play.pin("a"), play.invoke("c", "c1"))
    play.start(play.evict("a", "force"), play.unpin("a"), play.cancel("c"))
    await play.finish()


async def a_shrinking_host(scene: Scene) -> None:
    """Fewer slots in the middle of everything, and more again."""
    play = await Play.begun(scene, "a", "b", capacity=2)
    play.start(play.invoke("a", "a1"), play.resize(1), play.invoke("b", "b1"))
    play.start(play.invoke("c", "c1"), play.resize(2))
    await play.finish()


async def cancels_and_failures(scene: Scene) -> None:
    """A store that fails at its first reads and writes, a stop hook that raises, and a cancel."""
    play = await Play.begun(scene, capacity=1)
    play.world.store.fail = {
        "hydrate": [StoreUnavailable("locked")],
        "commit": [StoreUnavailable("disk full")],
    }
    play.world.raising.add("a")
    play.start(play.invoke("a", "a1"), play.invoke("a", "a2"), play.invoke("b", "b1"))
    play.start(play.cancel("a"))
    await play.finish()


async def a_start_that_fails(scene: Scene) -> None:
    """Whoever waits for a load that fails is told; whoever waits for its slot gets it."""
    play = await Play.begun(scene, capacity=1)
    play.world.unwilling.append("a")
    play.start(play.invoke("a", "a1"), play.chat("a", "a2", "continue"), play.session("a"))
    play.start(play.invoke("b", "b1"), play.invoke("a", "a3"))
    await play.finish()


async def a_stop_that_hangs(scene: Scene) -> None:
    """Somebody is evicted, does not stop in time, and stays charged until it does."""
    play = await Play.begun(scene, "a", capacity=1)
    play.world.stubborn.add("a")
    play.world.gates["on_stop a"].shut()
    play.start(play.invoke("b", "b1", 3.0), play.invoke("a", "a1"), play.evict("a", "if_idle"))
    await play.finish()


async def state_left_behind(scene: Scene) -> None:
    """A job changes the state outside of turns, and the store fails when it is to be saved."""
    play = await Play.begun(scene, capacity=2)
    await play.world.host.invoke(play.world.key("a"), "dirty", {"text": "job1"}, Call()).outcome()
    await play.world.do("b", "b0").outcome()
    play.before["b"] = ["b0"]
    play.world.store.fail = {"commit": [StoreUnavailable("full")]}
    play.start(play.invoke("c", "c1"), play.followup("a", "a1"))
    await play.finish()


async def a_checkpoint_beside_a_turn(scene: Scene) -> None:
    """Work arrives for somebody whose state is to be saved, and cannot be kept itself."""
    play = await Play.begun(scene, "a", capacity=1, pauses=0)
    play.world.store.fail = {"commit": [StoreUnavailable("full")]}
    play.start(play.evict("a", "if_idle"), play.chat("a", "a1 a2", "continue"))
    play.start(play.job("a", "job1"), play.invoke("a", "a3"))
    await play.finish()


async def repeated_calls(scene: Scene) -> None:
    """The same call is sent three times with one key, amid an eviction and a failing commit."""
    play = await Play.begun(scene, "a", capacity=1)
    play.world.store.fail = {"commit": [None, StoreUnavailable("full")]}
    play.start(play.repeat("a", "a1"), play.repeat("a", "a1"), play.evict("a", "force"))
    play.start(play.repeat("a", "a1"), play.cancel("a", "turn"), play.invoke("a", "a2"))
    await play.finish()


async def calls_from_agent_to_agent(scene: Scene) -> None:
    """Two parents hold the slots that their children need, and somebody calls one of these."""
    play = await Play.begun(scene, capacity=2)
    play.start(play.ask("a", "c"), play.ask("b", "a"), play.invoke("c", "c1"))
    await play.finish()


async def a_deletion(scene: Scene) -> None:
    """An identity ends while it works, and while more arrives for it."""
    play = await Play.begun(scene, "a", capacity=1)
    play.start(play.invoke("a", "a1"), play.delete("a"), play.followup("a", "a2"))
    play.start(play.invoke("b", "b1"), play.invoke("a", "a3"))
    await play.finish()


async def a_deletion_of_somebody_who_starts(scene: Scene) -> None:
    """An identity ends while it is being loaded."""
    play = await Play.begun(scene, capacity=1)
    play.start(play.invoke("a", "a1"), play.followup("a", "a2"), play.delete("a"))
    play.start(play.invoke("b", "b1"))
    await play.finish()


async def alarms_and_evictions(scene: Scene) -> None:
    """Alarms are set, and come, amid evictions, a cancellation and a commit that fails."""
    play = await Play.begun(scene, "a", capacity=1)
    play.world.store.fail = {"commit": [None, StoreUnavailable("full")]}
    play.start(play.remind("a", "a1"), play.remind("b", "b1"), play.evict("a", "force"))
    play.start(play.remind("a", "a2"), play.cancel("a", "turn"), play.invoke("b", "b2"))
    await play.finish()


async def an_alarm_and_a_deletion(scene: Scene) -> None:
    """An identity ends while its alarms are set and come."""
    play = await Play.begun(scene, "a", capacity=1)
    play.start(play.remind("a", "a1"), play.invoke("b", "b1"), play.delete("a", after=1.0))
    play.start(play.followup("a", "a2"), play.remind("a", "a3"))
    await play.finish()


async def streams_picked_up(scene: Scene) -> None:
    """Readers come back to turns that went on, or were cut, and one hears all that a says."""
    play = await Play.begun(scene, "a", capacity=1)
    play.follow("a")
    play.start(play.pick_up("a", "a1 a2 a3"), play.pick_up("b", "b1 b2"))
    play.start(play.evict("a", "force"), play.chat("a", "a4 a5", "cancel"))
    await play.finish()


async def a_drain(scene: Scene) -> None:
    """A drain that begins in the middle of everything, and its end."""
    play = await Play.begun(scene, "b", capacity=2)
    play.start(play.invoke("a", "a1"), play.followup("a", "a2"), play.drain())
    play.start(play.invoke("b", "b1"), play.session("b", 20.0))
    await play.finish()


async def a_store_that_fails(scene: Scene, operation: str, nth: int) -> None:
    """Everything that reads or writes, and the store fails once, at the nth operation."""
    play = await Play.begun(scene, "a", capacity=1)
    play.world.store.fail = {operation: [*[None] * nth, StoreUnavailable("full")]}
    play.follow("a")
    play.start(play.invoke("a", "a1"), play.job("a", "job1"), play.repeat("b", "b1"))
    play.start(play.pick_up("a", "a2 a3"), play.followup("a", "a4"), play.remind("a", "a5"))
    play.start(play.evict("b", "if_idle"))
    if operation == "delete":
        play.start(play.delete("b"))
    if operation == "pending":
        play.start(play.drain())
    await play.finish()
    Play.seen[f"failed to {operation}"] += not play.world.store.fail[operation]


async def any_world(scene: Scene, seed: int) -> None:
    """A few callers of any kind, on agents of any condition."""
    chance = random.Random(seed)
    residents = chance.sample("abc", chance.choice([0, 1, 2]))
    capacity, id = chance.choice([1, 2]), chance.choice("abc")
    play = await Play.begun(scene, *residents, capacity=capacity, pauses=chance.choice([0, 1, 3]))
    world = play.world
    if chance.random() < 0.3:
        world.store.fail["commit"] = [*[None] * chance.randrange(3), StoreUnavailable("full")]
    if chance.random() < 0.2:
        world.store.fail["hydrate"] = [*[None] * chance.randrange(3), StoreUnavailable("locked")]
    match chance.randrange(10):
        case 0:
            world.unwilling.append(id)
        case 1:
            world.raising.add(id)
        case 2:
            world.stubborn.add(id)
            world.gates[f"on_stop {id}"].shut()
        case 3:
            world.gates[f"on_stop {id}"].shut()
        case 4:
            world.gates["on_start"].shut()
    play.start(*[any_caller(play, chance, number) for number in range(chance.randint(3, 7))])
    await play.finish()


SCENARIOS = [
    hand_over,
    streams_and_sessions,
    a_polite_eviction,
    a_graceful_eviction,
    a_forced_eviction,
    operators_at_work,
    a_shrinking_host,
    cancels_and_failures,
    a_start_that_fails,
    a_stop_that_hangs,
    state_left_behind,
    a_checkpoint_beside_a_turn,
    repeated_calls,
    calls_from_agent_to_agent,
    alarms_and_evictions,
    an_alarm_and_a_deletion,
    streams_picked_up,
    a_deletion,
    a_deletion_of_somebody_who_starts,
    a_drain,
]


@pytest.fixture(autouse=True)
def quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_no_schedule_breaks_the_host(scenario: Scenario, report: list[str]) -> None:
    explored = explore(scenario, deviations=2, most=500, walks=40)
    report.append(
        f"host: {explored.schedules} schedules ({explored.cancellations} end in a cancellation), "
        f"{explored.steps} steps: {scenario.__name__}"
    )
    assert explored.schedules > 400
    assert explored.cancellations > 100


# How often each is called in nearly every course of `a_store_that_fails`.
CALLED = {
    "hydrate": 2,
    "commit": 5,
    "append": 2,
    "accept": 1,
    "begin": 2,
    "pending": 1,
    "outcome": 1,
    "due": 4,
    "fire": 1,
    "delete": 1,
}


@pytest.mark.parametrize(("operation", "calls"), CALLED.items())
def test_a_store_that_fails_anywhere_breaks_nothing(
    operation: str, calls: int, report: list[str]
) -> None:
    """Once, at each of its calls, under each schedule."""
    schedules = steps = 0
    for nth in range(calls):
        before = Play.seen[f"failed to {operation}"]
        scenario = partial(a_store_that_fails, operation=operation, nth=nth)
        explored = explore(scenario, deviations=1, most=80, walks=10)
        schedules, steps = schedules + explored.schedules, steps + explored.steps
        failed = Play.seen[f"failed to {operation}"] - before
        assert failed > explored.schedules / 2, f"it hardly ever failed for the {nth + 1}th time"
    report.append(f"host: {schedules} schedules, {steps} steps: a store that fails to {operation}")


def test_no_world_put_together_at_random_breaks(report: list[str]) -> None:
    schedules = steps = 0
    for seed in range(200):
        world = partial(any_world, seed=seed)
        explored = explore(world, deviations=0, walks=4, seed=seed)
        schedules, steps = schedules + explored.schedules, steps + explored.steps
    report.append(f"host: {schedules} schedules, {steps} steps: 200 worlds put together at random")
