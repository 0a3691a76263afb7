"""Planted faults: accounts that are wrong in the ways in which others have been.

Owns tests of the tests. Each of them must be found by the search; `test_planted_faults.py` says in
which world. Those at the end are no faults, or faults that only a fair observer can see.
"""

from __future__ import annotations

from typing import Any

from innkeeper_server.identity import AgentKey
from innkeeper_server.ledger import void
from innkeeper_server.residency import Account
from innkeeper_server.slots import (
    Claim,
    ClaimReason,
    Effect,
    Evict,
    Lease,
    Phase,
    Slot,
    Ticket,
    TicketState,
)

# -- who is idle ----------------------------------------------------------------------------------


class IdleByTimestamp(Account):
    """Takes an old timestamp for idleness, whoever owns the agent."""

    def _claim_due(self, now: float) -> bool:
        for slot in self.slots.values():
            if slot.phase is Phase.RESIDENT and now - slot.loaded_at >= self.idle_timeout:
                self._claim(slot, ClaimReason.IDLE, now)
                return True
        return False

    def next_deadline(self) -> float:
        loaded = [slot.loaded_at for slot in self.slots.values()]
        return min([super().next_deadline(), *(at + self.idle_timeout for at in loaded)])


class BusyIsClaimed(IdleByTimestamp):
    """The same, by a host that looks at the clock of the last call."""

    def next_deadline(self) -> float:
        return super(IdleByTimestamp, self).next_deadline()

    def tick(self, now: float) -> list[Effect]:
        for slot in self.slots.values():
            if slot.phase is Phase.RESIDENT and slot.leases and slot.loaded_at < now:
                self._claim(slot, ClaimReason.IDLE, now)
        return super().tick(now)

    def check(self) -> None:
        """Believes in itself; the world does not."""


class IdleSinceTheCallBegan(Account):
    """Counts idle time from the start of the last call, so a long one is idle when it ends."""

    def _end(self, lease: Lease, now: float) -> bool:
        return super()._end(lease, lease.since)


class LoadedIsIdle(Account):
    """Lets a runtime be evicted between its load and its first call."""

    def _settle_in(self, slot: Slot, now: float) -> None:
        tickets, slot.waiting = slot.waiting, None
        self._rest(slot, now)
        slot.waiting = tickets


class EndsTwice(Account):
    """Counts a lease down each time somebody says that it ended."""

    def release(self, lease: Lease, now: float) -> list[Effect]:
        for slot in self.slots.values():
            if lease.slot is None and slot.leases:
                return super().release(next(iter(slot.leases)), now)
        return super().release(lease, now)


class GrantNotGivenBack(Account):
    """A caller that goes away with its grant keeps the agent for ever."""

    def cancel(self, ticket: Ticket, now: float) -> list[Effect]:
        return [] if ticket.lease is not None else super().cancel(ticket, now)


class PinsForEver(Account):
    """Forgets that a pin has a time limit."""

    def _remember(self, item: Any, due: float) -> None:
        if not isinstance(item, Lease):
            super()._remember(item, due)


# -- who is there ---------------------------------------------------------------------------------


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
        self._remove(slot, "reconciled", now)
        return self._pump(now)


class ZombiesAreFree(Account):
    """Takes a runtime that overran its time for gone: a second life begins beside it."""

    def overrun(self, agent: AgentKey, runtime_id: int, now: float) -> list[Effect]:
        slot = self._exact(agent, runtime_id, Phase.STOPPING)
        if slot is None:
            return []
        self._remove(slot, "stopped", now)
        return self._pump(now)


class ZombiesCountTwice(Account):
    """Charges a zombie as stopping too."""

    def _to_zombie(self, slot: Slot, now: float) -> None:
        super()._to_zombie(slot, now)
        self.count[Phase.STOPPING] += 1


class HungStartsAreFree(Account):
    """Frees the slot of a start that failed and did not end."""

    def load_failed(
        self, agent: AgentKey, runtime_id: int, error: Any, now: float, *, ended: bool = True
    ) -> list[Effect]:
        return super().load_failed(agent, runtime_id, error, now)


class StoppingIsFree(Account):
    """Hands a slot on as soon as its runtime begins to stop."""

    def _serve(self, now: float) -> None:
        while self.wanted and len(self.slots) - self.count[Phase.STOPPING] < self.capacity:
            first = self.line.first()
            assert first is not None
            self.line.pop()
            self._reserve(first[1], now)


# -- who goes -------------------------------------------------------------------------------------


class RevokedClaimCommits(Account):
    """Looks at the runtime, and not at whether the claim still stands."""

    def _claimed(self, claim: Claim) -> Slot | None:
        slot = self._exact(claim.agent, claim.runtime_id, Phase.CLAIMED, Phase.RESIDENT)
        if slot is not None and slot.phase is Phase.RESIDENT and slot.leases is None:
            self._leave_line(slot)
            self._move(slot, Phase.CLAIMED, "reconciled", slot.since)
            slot.claim = claim
        return slot


class AnyTokenWillDo(Account):
    """Takes an old claim for the one that stands."""

    def _claimed(self, claim: Claim) -> Slot | None:
        return self._exact(claim.agent, claim.runtime_id, Phase.CLAIMED)


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
            void(slot)
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


class HoldForgotten(Account):
    """Tries a runtime again at once whose checkpoint has just failed."""

    def restore(self, claim: Claim, now: float, *, hold: bool = False) -> list[Effect]:
        return super().restore(claim, now)


class HeldForEver(Account):
    """Never tries it again."""

    def _unhold(self, now: float) -> None:
        return

    def next_deadline(self) -> float:
        held, self.held = self.held, {}
        try:
            return super().next_deadline()
        finally:
            self.held = held


class NeedlessClaimsStand(Account):
    """Sends a runtime away for a caller who has left."""

    def _balance(self, now: float) -> None:
        claims, self._for_line = self._for_line, {}
        super()._balance(now)
        claims.update(self._for_line)
        self._for_line = claims


class ForcedCallersStay(Account):
    """A forced eviction leaves the leases of those that it cuts."""

    def commit(self, claim: Claim, now: float) -> tuple[bool, list[Effect]]:
        slot = self._claimed(claim)
        leases = dict(slot.leases or {}) if slot is not None else {}
        fenced, effects = super().commit(claim, now)
        for lease in leases:
            lease.slot = slot
        if slot is not None and leases:
            slot.leases = leases
        return fenced, effects


class SlowEvictionsHoldUpTheLine(Account):
    """Waits for an eviction that hangs, while others could go."""

    def _note_slow(self, claim: Claim) -> None:
        return


# -- who comes ------------------------------------------------------------------------------------


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


class NextLifeForgotten(Account):
    """Loses those who waited for the agent's next life."""

    def _remove(self, slot: Slot, why: str, now: float) -> None:
        for ticket in list((slot.waiting or {}).values()):
            self._withdraw(ticket, TicketState.WITHDRAWN)
        super()._remove(slot, why, now)


class StartingIsNoSlot(Account):
    """Refuses those who wait for a start as if they had no slot."""

    def _is_loading(self, agent: AgentKey) -> bool:
        return False


class StaysShut(Account):
    """Gives a graceful eviction up, and leaves those outside whom it kept there."""

    def _grant_waiting(self, slot: Slot, now: float) -> None:
        if not any(lease for lease in slot.leases or ()):
            super()._grant_waiting(slot, now)


class ForcedTwice(Account):
    """A stronger claim leaves the polite one alive."""

    def evict(
        self, agent: AgentKey, now: float, *, graceful: bool = False, force: bool = False
    ) -> tuple[Claim | None, list[Effect]]:
        slot = self.slots.get(agent)
        polite = slot.claim if slot is not None and slot.phase is Phase.CLAIMED else None
        claim, effects = super().evict(agent, now, graceful=graceful, force=force)
        if slot is not None and polite is not None and claim is not None:
            slot.claim = polite
        return claim, effects


# -- what only a fair observer sees ---------------------------------------------------------------


class NewcomersRevokeAlways(Account):
    """Gives every claim up for whoever comes, whoever stands in line."""

    def _opens(self, slot: Slot, now: float) -> bool:
        if slot.phase is Phase.CLAIMED and slot.claim is not None and not slot.claim.firm:
            self._unclaim(slot, "work arrived", now, keep=True)
            return True
        return super()._opens(slot, now)


class PromisesNothing(Account):
    """Lets newcomers take the replacement too, and the next one, and so on."""

    def _opens(self, slot: Slot, now: float) -> bool:
        opens = super()._opens(slot, now)
        for effect in self._out:
            if isinstance(effect, Evict) and effect.claim.firm:
                promised = self.slots[effect.claim.agent]
                if promised.claim is effect.claim:
                    self._unclaim(promised, "not promised", now)
        return opens


# -- no faults ------------------------------------------------------------------------------------


class NonRevocable(Account):
    """Claims that no newcomer revokes: the other way to build it, and it must hold too."""

    def _opens(self, slot: Slot, now: float) -> bool:
        return slot.phase is Phase.RESIDENT and not slot.leaving


class NonRevocableWithoutPump(NonRevocable, RestoreWithoutPump):
    """Where nothing is revoked, a missing pump has fewer ways to be healed by luck."""
