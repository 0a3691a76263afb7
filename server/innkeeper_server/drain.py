"""Emptying a host: refuse first, then finish, then report.

Owns the course of a drain, which is the host's: those who follow it can leave, and a slow one
holds nothing up. New work is refused from its first moment; accepted work may finish until the
deadline; whoever is still there then is cut, and said to be.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from innkeeper_server import explain
from innkeeper_server.driver import Driver
from innkeeper_server.errors import Draining
from innkeeper_server.limits import Limits
from innkeeper_server.operators import Operators, ResidentView
from innkeeper_server.slots import Phase
from innkeeper_server.visits import tell_connections

log = logging.getLogger("innkeeper.host")


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """What a drain will meet."""

    idle: int
    owned: int
    waiting: int
    blockers: tuple[ResidentView, ...]


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """How far it has come; `time_left` in seconds."""

    remaining: int
    owned: int
    time_left: float


@dataclass(frozen=True, slots=True)
class DrainReport:
    """How it ended; `took` in seconds."""

    evicted: int
    cut: int
    zombies: int
    clean: bool
    took: float


DrainStep = DrainPlan | DrainProgress | DrainReport


@dataclass(slots=True)
class _Course:
    """One drain, from its beginning to its report. Times are on the host's clock."""

    begun: float
    deadline: float
    evicted_before: int
    cut: int = 0
    report: DrainReport | None = None


class Drain:
    """See the module. `listeners` are told, in the same block, when draining begins and ends."""

    def __init__(self, driver: Driver, operators: Operators, limits: Limits) -> None:
        self._driver = driver
        self._operators = operators
        self._limits = limits
        self.listeners: list[Callable[[bool], None]] = []
        self.report: DrainReport | None = (
            None  # of the last one, until another begins or it is undone
        )
        self._course: _Course | None = None  # the one under way

    def plan(self) -> DrainPlan:
        """What a drain would meet now."""
        views = self._operators.residents()
        owned = [view for view in views if view.slot.blockers]
        return DrainPlan(
            idle=len(views) - len(owned),
            owned=len(owned),
            waiting=self._driver.account.waiting,
            blockers=tuple(owned[:100]),
        )

    async def run(self, patience: float | None = None) -> AsyncIterator[DrainStep]:
        """Drain the host, telling the plan, progress and the report; `patience` in seconds. It
        begins with the first step that is asked for; whoever iterates may leave. One who comes
        while a drain is under way follows that one, and can only shorten it."""
        driver = self._driver
        wait = self._limits.drain_timeout if patience is None else patience
        plan = self.plan()
        course = self._begun(driver.now() + wait)
        yield plan
        while course.report is None:
            yield self._progress(course.deadline)
            if course.report is None:
                await driver.changed.next()
        yield course.report

    def _begun(self, deadline: float) -> _Course:
        driver, course = self._driver, self._course
        if course is not None:
            if deadline < course.deadline:
                course.deadline = deadline
                driver.changed.notify()
            return course
        course = _Course(driver.now(), deadline, driver.account.evicted_total)
        self._course, self.report = course, None
        self.begin()
        driver.own(self._take(course), "drain")
        return course

    async def _take(self, course: _Course) -> None:
        """The course itself. An undrain ends it at once, and nothing is cut."""
        driver, account = self._driver, self._driver.account
        try:
            while self._course is course and account.slots and driver.now() < course.deadline:
                await driver.changed.wait(course.deadline - driver.now())
            # Each step of a deactivation is bounded by the stop timeout, and there are four.
            last = driver.now() + 4 * self._limits.stop_timeout
            while self._course is course and self._stopping() and driver.now() < last:
                course.cut += self._cut()  # also who was called by another meanwhile
                if self._stopping():
                    await driver.changed.wait(last - driver.now())
        finally:
            course.report = DrainReport(
                evicted=account.evicted_total - course.evicted_before,
                cut=course.cut,
                zombies=account.count[Phase.ZOMBIE],
                clean=course.cut == 0 and not account.slots,
                took=driver.now() - course.begun,
            )
            if self._course is course:
                self._course, self.report = None, course.report
            driver.changed.notify()

    def begin(self) -> None:
        """Close the gate. Everything that was accepted goes on."""
        driver = self._driver
        if driver.account.draining:
            return
        driver.carry_out(driver.account.drain(driver.now()))
        for runtime in list(driver.runtimes.values()):
            self._operators.unpin(runtime.key)  # a pin keeps its agent on a host that stays
            tell_connections(runtime, "the host is draining")
        self._tell(True)

    def end(self) -> bool:
        """Open the gate again; False if it was open. A course under way is over: who drains again
        begins another."""
        driver = self._driver
        was_draining = driver.account.draining
        self._course = self.report = None
        driver.carry_out(driver.account.undrain(driver.now()))
        if was_draining:
            driver.changed.notify()  # an undrain moves nobody, so nothing else wakes the course
            self._tell(False)
        return was_draining

    def _cut(self) -> int:
        """End by force whoever is still here, owned or not, also while it starts. Return how many
        were starting, owned, or kept because their state could not be saved."""
        driver, cut = self._driver, 0
        for slot in list(driver.account.slots.values()):
            runtime = driver.runtimes.get(slot.runtime_id)
            if runtime is None or slot.phase not in (Phase.LOADING, Phase.RESIDENT):
                continue
            why = explain.blockers(driver.account, slot, driver.now())
            if slot.phase is Phase.RESIDENT:
                driver.end(runtime)
            elif not driver.give_up(runtime, Draining(explain.DRAINING)):
                continue  # it was told before
            if why:
                log.warning("the time to drain is over: %s is cut: %s", slot.agent, "; ".join(why))
                cut += 1
        return cut

    def _stopping(self) -> bool:
        count = self._driver.account.count
        return sum(count.values()) > count[Phase.ZOMBIE]

    def _progress(self, deadline: float) -> DrainProgress:
        slots = self._driver.account.slots.values()
        return DrainProgress(
            remaining=len(slots),
            owned=sum(1 for slot in slots if slot.leases),
            time_left=max(0.0, deadline - self._driver.now()),
        )

    def _tell(self, draining: bool) -> None:
        for listener in self.listeners:
            listener(draining)
