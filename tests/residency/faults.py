"""Planted faults: accounts that are wrong in the ways in which others have been.

Owns tests of the tests. Each is caught by the search, and the shortest way to it is known.
"""

from __future__ import annotations

from innkeeper_server.identity import AgentKey
from innkeeper_server.residency import Account
from innkeeper_server.slots import (
    Claim,
    ClaimReason,
    Effect,
    Lease,
    LeaseKind,
    Phase,
    Slot,
    Ticket,
)


class IdleByTimestamp(Account):
    """Takes an old timestamp for idleness, whoever owns the agent."""

    def _claim_due(self, now: float) -> bool:
        for slot in list(self.slots.values()):
            old = now - slot.loaded_at >= self.idle_timeout
            if slot.phase is Phase.RESIDENT and old and not self.held:
                self._claim(slot, ClaimReason.IDLE, now)
                return True
        return False

    def next_deadline(self) -> float:
        loaded = [s.loaded_at for s in self.slots.values() if s.phase is Phase.RESIDENT]
        return min([super().next_deadline(), *(at + self.idle_timeout for at in loaded)])


class ClaimLeavesAccount(Account):
    """Forgets a runtime when it is chosen, while it is still loaded."""

    def _claim(self, slot: Slot, reason: ClaimReason, now: float, **how: bool) -> Claim:
        claim = super()._claim(slot, reason, now, **how)
        self.count[Phase.CLAIMED] -= 1
        del self.slots[slot.agent]
        return claim


class RemovalByName(Account):
    """Takes "a is stopped" for the a that lives now."""

    def stopped(self, agent: AgentKey, runtime_id: int, now: float) -> list[Effect]:
        slot = self.slots.get(agent)
        if slot is None:
            return []
        self._move(slot, slot.phase, "reconciled", now)
        self._remove(slot, "reconciled", now)
        return self._pump(now)


class RevokedClaimCommits(Account):
    """Looks at the runtime, and not at the token."""

    def _claimed(self, claim: Claim) -> Slot | None:
        slot = self._exact(claim.agent, claim.runtime_id, Phase.CLAIMED, Phase.RESIDENT)
        if slot is not None and slot.phase is Phase.RESIDENT and slot.leases is None:
            self._leave_line(slot)
            self._move(slot, Phase.CLAIMED, "reconciled", slot.since)
            slot.claim = claim
        return slot


class AwaitBeforeFence(Account):
    """Checks when it claims, fences later, and lets work in between."""

    def _opens(self, slot: Slot, now: float) -> bool:
        if slot.phase is Phase.CLAIMED:
            slot.leases = {} if slot.leases is None else slot.leases
            return True
        return super()._opens(slot, now)

    def commit(self, claim: Claim, now: float) -> tuple[bool, list[Effect]]:
        slot = self._claimed(claim)
        if slot is not None:
            slot.leases = None
        return super().commit(claim, now)

    def check(self) -> None:
        """Believes in itself; the world does not."""


class RestoreWithoutPump(Account):
    """Gives a claim up and tells nobody."""

    def restore(self, claim: Claim, now: float, *, hold: bool = False) -> list[Effect]:
        slot = self._claimed(claim)
        if slot is not None:
            self._unclaim(slot, "restored", now, hold=hold)
        return []


class GrantNotGivenBack(Account):
    """A caller that goes away with its grant keeps the agent for ever."""

    def cancel(self, ticket: Ticket, now: float) -> list[Effect]:
        return [] if ticket.lease is not None else super().cancel(ticket, now)


class NewcomersFirst(Account):
    """Serves whoever came last."""

    def _serve(self, now: float) -> None:
        while self.wanted and len(self.slots) < self.capacity:
            self._reserve(next(reversed(self.wanted)), now)


class StoppedWithoutHandOver(Account):
    """Frees a slot and leaves it to chance who finds it."""

    def stopped(self, agent: AgentKey, runtime_id: int, now: float) -> list[Effect]:
        slot = self._exact(agent, runtime_id, Phase.STOPPING, Phase.ZOMBIE)
        if slot is not None:
            self._remove(slot, "stopped", now)
        return []


class ZombiesAreFree(Account):
    """Takes a runtime that overran its time for gone."""

    def overrun(self, agent: AgentKey, runtime_id: int, now: float) -> list[Effect]:
        slot = self._exact(agent, runtime_id, Phase.STOPPING)
        if slot is None:
            return []
        self._remove(slot, "stopped", now)
        return self._pump(now)


class StoppingIsFree(Account):
    """Hands a slot on as soon as its runtime begins to stop."""

    def _serve(self, now: float) -> None:
        while self.wanted and len(self.slots) - self.count[Phase.STOPPING] < self.capacity:
            first = self.line.first()
            assert first is not None
            self.line.pop()
            self._reserve(first[1], now)


class HeldForEver(Account):
    """Forgets whom it left alone after a failed checkpoint."""

    def _unhold(self, now: float) -> None:
        return

    def next_deadline(self) -> float:
        held, self.held = self.held, {}
        try:
            return super().next_deadline()
        finally:
            self.held = held


class LoadedIsIdle(Account):
    """Lets a runtime be evicted between its load and its first call."""

    def _settle_in(self, slot: Slot, now: float) -> None:
        tickets, slot.waiting = slot.waiting, None
        self._rest(slot, now)
        slot.waiting = tickets


class NewcomersStarveTheLine(Account):
    """Gives every claim up for whoever comes."""

    def _opens(self, slot: Slot, now: float) -> bool:
        if slot.phase is Phase.CLAIMED and slot.claim is not None and not slot.claim.firm:
            self._unclaim(slot, "work arrived", now, keep=True)
            return True
        return super()._opens(slot, now)


class EndsTwice(Account):
    """Counts a lease down each time somebody says that it ended."""

    def release(self, lease: Lease, now: float) -> list[Effect]:
        slot = self.slots.get(lease.slot.agent) if lease.slot else None
        if slot is not None and slot.leases and len(slot.leases) > 1:
            other = next(held for held in slot.leases if held is not lease)
            self._end(other, now)
        return super().release(lease, now)


class ForgetsTheZombiesLoad(Account):
    """Frees the slot of a start that did not end."""

    def load_failed(self, agent, runtime_id, error, now, *, ended=True):  # type: ignore[no-untyped-def]
        return super().load_failed(agent, runtime_id, error, now, ended=True)


class NonRevocable(Account):
    """No fault: claims that nothing revokes. The other way to build it, and it must hold too."""

    def _opens(self, slot: Slot, now: float) -> bool:
        return slot.phase is Phase.RESIDENT and not slot.leaving


class NonRevocableWithoutPump(NonRevocable, RestoreWithoutPump):
    """Where claims cannot be revoked, a missing pump has fewer ways to be healed by luck."""


FAULTS: list[type[Account]] = [
    IdleByTimestamp,
    ClaimLeavesAccount,
    RemovalByName,
    RevokedClaimCommits,
    AwaitBeforeFence,
    RestoreWithoutPump,
    NonRevocableWithoutPump,
    GrantNotGivenBack,
    NewcomersFirst,
    StoppedWithoutHandOver,
    ZombiesAreFree,
    StoppingIsFree,
    HeldForEver,
    LoadedIsIdle,
    EndsTwice,
    ForgetsTheZombiesLoad,
]

__all__ = ["FAULTS", "LeaseKind", "NewcomersStarveTheLine", "NonRevocable"]
