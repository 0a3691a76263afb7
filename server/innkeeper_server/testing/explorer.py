"""A search through the schedules of a scenario: other orders, and cancellations anywhere.

Owns the search. A schedule is what deviates from first come, first served: at step n, take the
k-th ready callback instead of the first, or cancel the k-th of the tasks that may be cancelled. It
is written as `12:1,40:c0`, and `replay` plays it again. First all schedules with few deviations are
played, depth first; then walks at random, from a seed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from innkeeper_server.testing.loop import VirtualLoop, run

MAX_STEPS = 100_000  # of one course; one that makes more does not end

# What to do at which step: the index of a ready callback, or of a task to cancel as "c0".
Schedule = tuple[tuple[int, str], ...]


class Scene:
    """What a scenario tells the search: which tasks may be cancelled, and what must always hold."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.tasks: list[asyncio.Task[Any]] = []

    def cancellable(self, task: asyncio.Task[Any]) -> asyncio.Task[Any]:
        """This task may be cancelled, once, at any step."""
        self.tasks.append(task)
        return task

    def always(self, check: Callable[[], None]) -> None:
        """Call `check` after every step."""
        self._loop.after_step = check


Scenario = Callable[[Scene], Coroutine[Any, Any, None]]


class ScheduleFailed(AssertionError):
    """The scenario fails under `schedule`, a string for `replay`. Raised from the failure."""

    def __init__(self, schedule: str, fault: BaseException) -> None:
        super().__init__(f"fails under schedule {schedule!r}: {fault}")
        self.schedule = schedule


@dataclass
class Explored:
    """What a search has played."""

    schedules: int = 0
    steps: int = 0
    cancellations: int = 0


@dataclass
class _Played:
    choices: list[tuple[int, int, int]]  # step, ready callbacks, tasks that could be cancelled
    steps: int


def explore(
    scenario: Scenario,
    *,
    deviations: int = 1,
    most: int = 2_000,
    walks: int = 100,
    seed: int = 1,
) -> Explored:
    """Play a scenario under at most `most` schedules of up to so many deviations, then at random.

    The schedules of one deviation come first: every other order, and every cancellation, at every
    step. What is left of `most` goes to those of more.

    Raises ScheduleFailed, from the failure, with the schedule that leads to it; and RuntimeError if
    the scenario does not take the same course twice, since then no schedule would mean anything.
    """
    explored = Explored()
    first = _play(scenario, (), explored)
    if _play(scenario, (), explored).choices != first.choices:
        raise RuntimeError("the scenario takes another course each time: it is not deterministic")
    for schedule in _nearby(scenario, first, deviations, explored, most):
        explored.cancellations += "c" in schedule[-1][1]
    for number in range(walks):
        _walk(scenario, random.Random(f"{seed} {number}"), explored)
    return explored


def replay(scenario: Scenario, schedule: str) -> None:
    """Play a schedule as `ScheduleFailed` prints it; raises what the scenario raises."""
    steps = [entry.split(":") for entry in schedule.split(",") if entry]
    loop, _ = _loop(tuple((int(step), choice) for step, choice in steps))
    _course(scenario, loop)


def _nearby(
    scenario: Scenario, first: _Played, deviations: int, explored: Explored, most: int
) -> Iterator[Schedule]:
    """Schedules that deviate a little, each played once: all of them where there are at most
    `most`, otherwise so many, spread evenly from the first step to the last."""
    frontier: list[tuple[Schedule, _Played]] = [((), first)]
    for depth in range(deviations):
        left = most - explored.schedules
        share = left // (deviations - depth) if depth else left
        schedules = [s for base, played in frontier for s in _variations(base, played)]
        frontier = []
        for schedule in _spread(schedules, share):
            result = _play(scenario, schedule, explored)
            yield schedule
            frontier.append((schedule, result))


def _spread(schedules: list[Schedule], most: int) -> list[Schedule]:
    if len(schedules) <= most:
        return schedules
    return [schedules[number * len(schedules) // most] for number in range(most)]


def _variations(base: Schedule, played: _Played) -> Iterator[Schedule]:
    last = base[-1][0] if base else -1
    for step, ready, tasks in played.choices:
        if step > last:
            for index in range(1, ready):
                yield (*base, (step, str(index)))
            for index in range(tasks):
                yield (*base, (step, f"c{index}"))


def _walk(scenario: Scenario, chance: random.Random, explored: Explored) -> None:
    """One course at random: every choice is free, and now and then a task is cancelled."""
    made: list[tuple[int, str]] = []

    def choose(step: int, ready: int, tasks: int) -> str:
        if tasks and chance.random() < 0.01:
            choice = f"c{chance.randrange(tasks)}"
        else:
            choice = str(chance.randrange(ready))
        if choice != "0":
            made.append((step, choice))
        return choice

    loop = _ChoosingLoop(choose)
    try:
        _run(scenario, loop, made, explored)
    except ScheduleFailed as failure:
        raise _shortened(scenario, failure) from failure.__cause__


def _shortened(scenario: Scenario, failure: ScheduleFailed) -> ScheduleFailed:
    """The same with only those deviations without which it would not fail."""
    entries = [entry for entry in failure.schedule.split(",") if entry]
    size = len(entries)
    while size:
        for start in reversed(range(0, len(entries), size)):
            fewer = entries[:start] + entries[start + size :]
            try:
                replay(scenario, ",".join(fewer))
            except Exception as fault:
                entries, failure = fewer, ScheduleFailed(",".join(fewer), fault)
                failure.__cause__ = fault
        size //= 2
    return failure


def _play(scenario: Scenario, schedule: Schedule, explored: Explored) -> _Played:
    loop, choices = _loop(schedule)
    _run(scenario, loop, list(schedule), explored)
    return _Played(choices, loop.steps)


def _run(
    scenario: Scenario, loop: _ChoosingLoop, made: list[tuple[int, str]], explored: Explored
) -> None:
    explored.schedules += 1
    try:
        _course(scenario, loop)
    except Exception as fault:
        written = ",".join(f"{step}:{choice}" for step, choice in made)
        raise ScheduleFailed(written, fault) from fault
    finally:
        explored.steps += loop.steps


def _course(scenario: Scenario, loop: _ChoosingLoop) -> None:
    run(_begun(scenario, loop), loop=loop)
    if loop.faults:
        raise AssertionError(f"nobody heard of {loop.faults[0]}")


def _loop(schedule: Schedule) -> tuple[_ChoosingLoop, list[tuple[int, int, int]]]:
    wanted = dict(schedule)
    choices: list[tuple[int, int, int]] = []

    def choose(step: int, ready: int, tasks: int) -> str:
        choices.append((step, ready, tasks))
        return wanted.get(step, "0")

    return _ChoosingLoop(choose), choices


class _ChoosingLoop(VirtualLoop):
    """Asks at every step, also where there is one callback only: a task may be cancelled there."""

    def __init__(self, choose: Callable[[int, int, int], str]) -> None:
        super().__init__(max_steps=MAX_STEPS)
        self._choose = choose
        self.scene = Scene(self)

    def _run_once(self) -> None:
        self._fire_timers()
        while not self._ready:
            self._advance()
        open_tasks = [task for task in self.scene.tasks if not task.done()]
        choice = self._choose(self.steps, len(self._ready), len(open_tasks))
        if choice.startswith("c"):
            if (index := int(choice[1:])) < len(open_tasks):
                self.scene.tasks.remove(open_tasks[index])
                open_tasks[index].cancel()
        elif 0 < (index := int(choice)) < len(self._ready):
            handle = self._ready[index]
            del self._ready[index]
            self._ready.appendleft(handle)
        super()._run_once()


async def _begun(scenario: Scenario, loop: _ChoosingLoop) -> None:
    await scenario(loop.scene)
