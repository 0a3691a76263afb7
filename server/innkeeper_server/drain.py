"""Emptying a host: refuse first, then finish, then report.

Owns the course of a drain. New work is refused from its first moment; accepted work may finish
until the deadline; what still runs then is cut, and said to be.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from innkeeper_server.driver import Driver
from innkeeper_server.limits import Limits
from innkeeper_server.operators import Operators, ResidentView
from innkeeper_server.slots import Phase
from innkeeper_server.visits import tell_connections


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


class Drain:
    """See the module. `listeners` are told, in the same block, when draining begins and ends."""

    def __init__(self, driver: Driver, operators: Operators, limits: Limits) -> None:
        self._driver = driver
        self._operators = operators
        self._limits = limits
        self.listeners: list[Callable[[bool], None]] = []

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
        """Drain the host, telling the plan, progress and the report. Whoever iterates may leave:
        the host stays closed for new work, and idle agents go on leaving."""
        driver, account = self._driver, self._driver.account
        begun = driver.now()
        deadline = begun + (self._limits.drain_timeout if patience is None else patience)
        evicted_before = account.evicted_total
        yield self.plan()
        self.begin()
        while account.draining and account.slots and driver.now() < deadline:
            yield self._progress(deadline)
            if account.slots:
                await driver.changed.wait(deadline - driver.now())
        cut = self._cut() if account.draining else 0  # undrained meanwhile: nothing is cut
        # Each step of a deactivation is bounded by the stop timeout, and there are four.
        last = driver.now() + 4 * self._limits.stop_timeout
        while account.draining and self._stopping() and driver.now() < last:
            await driver.changed.wait(last - driver.now())
            cut += (
                self._cut() if account.draining else 0
            )  # who was starting, or was called by one of the others
        yield DrainReport(
            evicted=account.evicted_total - evicted_before,
            cut=cut,
            zombies=account.count[Phase.ZOMBIE],
            clean=cut == 0 and not account.slots,
            took=driver.now() - begun,
        )

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
        """Open the gate again; False if it was open."""
        driver = self._driver
        was_draining = driver.account.draining
        driver.carry_out(driver.account.undrain(driver.now()))
        if was_draining:
            self._tell(False)
        return was_draining

    def _cut(self) -> int:
        """Evict by force whoever is still owned; return how many that were."""
        owned = [
            slot
            for slot in self._driver.account.slots.values()
            if slot.phase is Phase.RESIDENT and slot.leases
        ]
        for slot in owned:
            self._driver.end(self._driver.runtimes[slot.runtime_id])
        return len(owned)

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
