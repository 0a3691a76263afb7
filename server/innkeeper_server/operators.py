"""What operators can do to residency: look, evict, pin, resize, drain.

Owns the operators' verbs as the host offers them. Looking never touches anybody's idle time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Literal

from innkeeper_server import explain
from innkeeper_server.driver import Driver
from innkeeper_server.errors import AgentOwned, Draining, NotResident, StaleRuntime
from innkeeper_server.explain import Explanation, SlotView, Totals
from innkeeper_server.identity import AgentKey
from innkeeper_server.limits import Limits
from innkeeper_server.mailbox import Call
from innkeeper_server.runtime import Runtime
from innkeeper_server.slots import Lease, LeaseKind, Phase, Slot, Transition
from innkeeper_server.visits import Visit, tell_connections

EvictMode = Literal["if_idle", "graceful", "force"]


@dataclass(frozen=True, slots=True)
class ResidentView:
    """One runtime as operators see it: the account's view, and what only the host knows."""

    slot: SlotView
    runtime_id: str
    epoch: int
    queued: int
    active_turn: str
    active_turn_age: float | None


@dataclass(frozen=True, slots=True)
class Eviction:
    """How an eviction ended; not stopped means that it is a zombie now."""

    runtime_id: str
    stopped: bool


class Operators:
    """See the module."""

    def __init__(self, driver: Driver, limits: Limits) -> None:
        self._driver = driver
        self._limits = limits
        self._graceful: Counter[int] = Counter()  # evictions that wait for owners, by runtime

    # -- looking --------------------------------------------------------------------------------

    def totals(self) -> Totals:
        """The account in numbers."""
        return explain.totals(self._driver.account, self._driver.now())

    def residents(self, tenant: str | None = None) -> list[ResidentView]:
        """Everybody in memory, in no particular order; `None` means every tenant."""
        slots = self._driver.account.slots.values()
        return [self._view(slot) for slot in slots if tenant in (None, slot.agent.tenant)]

    def explain(self, agent: AgentKey) -> tuple[Explanation, ResidentView | None]:
        """Why an agent stays or leaves."""
        account, now = self._driver.account, self._driver.now()
        slot = account.slots.get(agent)
        told = explain.explain(account, agent, now)
        if words := self._driver.quarantine.words(agent, now):
            told = replace(told, summary=words)
        return told, self._view(slot) if slot else None

    async def watch(self, after: int | None = None) -> AsyncIterator[Transition]:
        """Transitions as they happen; those after seq `after` first, as far as remembered."""
        story = self._driver.account.story
        seen = after if after is not None else (story[-1].seq if story else 0)
        while True:
            for transition in self._since(seen):
                seen = transition.seq
                yield transition
            if not story or story[-1].seq <= seen:
                await self._driver.changed.next()

    def runtime_id(self, number: int) -> str:
        """The world's name for the account's number of a runtime, alive or not."""
        return f"{self._driver.host_id}-{number}"

    def _since(self, seen: int) -> list[Transition]:
        fresh: list[Transition] = []
        for transition in reversed(self._driver.account.story):
            if transition.seq <= seen:
                break
            fresh.append(transition)
        return fresh[::-1]

    def _view(self, slot: Slot) -> ResidentView:
        now = self._driver.now()
        shown = explain.view(self._driver.account, slot, now)
        runtime = self._driver.runtimes.get(slot.runtime_id)
        if runtime is None:
            return ResidentView(shown, self.runtime_id(slot.runtime_id), 0, 0, "", None)
        active = runtime.mailbox.active
        return ResidentView(
            slot=shown,
            runtime_id=runtime.id,
            epoch=runtime.epoch,
            queued=len(runtime.mailbox),
            active_turn=active.id if active is not None else "",
            active_turn_age=now - runtime.turn_started if active is not None else None,
        )

    # -- evicting -------------------------------------------------------------------------------

    async def evict(
        self,
        agent: AgentKey,
        runtime_id: str = "",
        mode: EvictMode = "if_idle",
        patience: float | None = None,
    ) -> Eviction:
        """End a life. Returns when it has ended, or is a zombie.

        `patience`: seconds that a graceful eviction waits for owners. Raises NotResident,
        StaleRuntime, AgentOwned (with the blockers). If the caller goes away, an
        eviction that is past its fence goes on; a graceful one that still waits is given up.
        """
        driver, account = self._driver, self._driver.account
        runtime = self._living(agent, runtime_id)
        wait = self._limits.stop_timeout if patience is None else patience
        deadline = driver.now() + wait
        pressed = False
        self._graceful[runtime.number] += mode == "graceful"
        try:
            while (slot := account.slots.get(agent)) and slot.runtime_id == runtime.number:
                if slot.phase is Phase.ZOMBIE:
                    return Eviction(runtime.id, stopped=False)
                if slot.phase in (Phase.CLAIMED, Phase.STOPPING):
                    await runtime.signal.next()  # each step of an eviction is bounded
                elif slot.leaving and mode == "graceful" and (left := deadline - driver.now()) > 0:
                    await runtime.signal.wait(left)
                elif pressed or slot.phase is Phase.LOADING:
                    raise self._owned(slot)
                else:
                    pressed = True
                    self._press(runtime, slot, mode)
        finally:
            self._graceful[runtime.number] -= mode == "graceful"
            if not self._graceful[runtime.number]:
                del self._graceful[runtime.number]
                if mode == "graceful":  # it was the last one
                    driver.carry_out(account.stay(agent, runtime.number, driver.now()))
        return Eviction(runtime.id, stopped=True)

    def _press(self, runtime: Runtime, slot: Slot, mode: EvictMode) -> None:
        driver = self._driver
        claim, effects = driver.account.evict(
            slot.agent, driver.now(), graceful=mode == "graceful", force=mode == "force"
        )
        driver.carry_out(effects)
        if claim is None and mode == "graceful":
            tell_connections(runtime, f"{slot.agent} is being evicted by an operator")

    def _owned(self, slot: Slot) -> AgentOwned:
        why = explain.blockers(self._driver.account, slot, self._driver.now())
        metadata = {f"blocker_{n}": text for n, text in enumerate(why[:5], 1)}
        return AgentOwned(f"{slot.agent} cannot be evicted: {'; '.join(why)}", metadata=metadata)

    def _living(self, agent: AgentKey, runtime_id: str) -> Runtime:
        runtime = self._driver.find(agent)
        if runtime is None:
            raise NotResident(f"{agent} is not resident", metadata={"agent": str(agent)})
        if runtime_id and runtime_id != runtime.id:
            raise StaleRuntime(
                f"{agent} lives as {runtime.id} now, not as the runtime that was named",
                metadata={"runtime_id": runtime.id},
            )
        return runtime

    # -- pinning, resizing, repairing -----------------------------------------------------------

    async def pin(self, agent: AgentKey, ttl: float, owner: str, call: Call) -> str:
        """Keep an agent resident for `ttl` seconds from now; return the runtime's id. A pin takes
        the place of its owner's earlier ones. Raises Draining, also if that began meanwhile."""
        visit = Visit(self._driver, LeaseKind.PIN, owner)
        visit.ask(agent, call.deadline, ttl)
        try:
            runtime_id = await visit.ready()
            if self._driver.account.draining:  # it was granted as its agent loaded, and would stay
                raise Draining(explain.DRAINING)
        except BaseException:
            visit.close()
            raise
        if visit.lease is not None and visit.lease.slot is not None:
            self._renewed(visit.lease)
        return runtime_id

    def _renewed(self, pin: Lease) -> None:
        """Take its owner's earlier pins back. Not later ones: two at once would undo each other."""
        assert pin.slot is not None
        leases = list(pin.slot.leases or ())  # in the order of their coming
        for lease in leases[: leases.index(pin)]:
            if lease.kind is LeaseKind.PIN and lease.owner == pin.owner:
                self._driver.release(lease)

    def unpin(self, agent: AgentKey, owner: str = "") -> int:
        """Take pins back: those of `owner`, or all; return how many."""
        slot = self._driver.account.slots.get(agent)
        leases = slot.leases or () if slot is not None else ()
        pins = [
            lease for lease in leases if lease.kind is LeaseKind.PIN and owner in ("", lease.owner)
        ]
        for lease in pins:
            self._driver.release(lease)
        return len(pins)

    def set_capacity(self, capacity: int) -> None:
        """Change the limit; idle agents above it leave now, owned ones when they are free."""
        driver = self._driver
        driver.carry_out(driver.account.set_capacity(capacity, driver.now()))

    def reconcile(self) -> list[str]:
        """Compare the account with the runtimes that exist; mend and return the differences."""
        driver = self._driver
        defects, effects = driver.account.reconcile(driver.runtimes.keys(), driver.now())
        driver.carry_out(effects)
        return defects
