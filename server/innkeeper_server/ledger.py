"""What is: the slots, who leases them, who is idle, and how they came to be so.

Owns the account's records of runtimes, and keeps them true to one another: a phase changes in one
place, which counts it and remembers it; a lease ends once; an unowned resident stands in the idle
line or is held back, never both. It decides nothing: `residency.py` does.
"""

from __future__ import annotations

import itertools
from collections import deque

from innkeeper_server.identity import AgentKey
from innkeeper_server.slots import (
    TRANSITIONS,
    Claim,
    IdleLine,
    Lease,
    LeaseKind,
    Phase,
    Slot,
    Transition,
)


class Ledger:
    """See the module. `slots` is by agent: one life of an agent at a time."""

    def __init__(self, story_length: int) -> None:
        self.slots: dict[AgentKey, Slot] = {}
        self.count = dict.fromkeys(Phase, 0)
        self.late = 0  # of those on their way out, how many nobody counts on
        self.idle = IdleLine()
        # Idle residents whose eviction failed, left alone until the time beside them.
        self.held: dict[int, tuple[float, Slot]] = {}
        self.story: deque[Transition] = deque(maxlen=story_length)
        self._numbers = itertools.count(1)  # of runtimes, tickets, claims; none is used twice

    def _exact(self, agent: AgentKey, runtime_id: int, *phases: Phase) -> Slot | None:
        slot = self.slots.get(agent)
        if slot is None or slot.runtime_id != runtime_id or slot.phase not in phases:
            return None
        return slot

    def _claimed(self, claim: Claim) -> Slot | None:
        slot = self._exact(claim.agent, claim.runtime_id, Phase.CLAIMED)
        if slot is None or slot.claim is None or slot.claim.token != claim.token:
            return None
        return slot

    def _lease(self, slot: Slot, kind: LeaseKind, owner: str, now: float) -> Lease:
        if slot.leases is None:
            if slot.phase is Phase.RESIDENT:
                self._leave_line(slot)
            slot.leases = {}
        lease = Lease(slot, kind, owner, now)
        slot.leases[lease] = None
        return lease

    def _end(self, lease: Lease, now: float) -> bool:
        """True if it was the last one, so that the account changed for others too."""
        slot = lease.slot
        if slot is None:
            return False
        lease.slot = None
        assert slot.leases is not None, "a live lease on a slot without leases"
        del slot.leases[lease]
        if slot.leases:
            return False
        self._rest(slot, now)
        return True

    def _rest(self, slot: Slot, now: float) -> None:
        """Nobody owns it any more: to the tail of the idle line, unless it is on its way out."""
        slot.leases = None
        slot.idle_since = now
        slot.idle_seq = next(self._numbers)
        if slot.phase is Phase.RESIDENT:
            self.idle.append(slot)

    def _leave_line(self, slot: Slot) -> None:
        if self.held.pop(slot.runtime_id, None) is None:
            self.idle.remove(slot)

    def _move(self, slot: Slot, phase: Phase | None, why: str, now: float) -> None:
        """The only place where a phase changes."""
        before = slot.phase
        assert (before, phase) in TRANSITIONS or why == "reconciled", (slot, phase)
        if before is not None:
            self.count[before] -= 1
        if phase is not None:
            self.count[phase] += 1
        if slot.late and phase is not Phase.STOPPING:
            slot.late = False
            self.late -= 1
        slot.phase = phase
        slot.since = now
        seq = self.story[-1].seq + 1 if self.story else 1
        self.story.append(Transition(seq, slot.agent, slot.runtime_id, before, phase, why, now))

    def _unhold(self, now: float) -> None:
        """Candidates again, whose time of being left alone is over."""
        for runtime_id, (until, slot) in list(self.held.items()):
            if until > now:
                return
            del self.held[runtime_id]
            self.idle.insert(slot)

    def _going(self) -> int:
        """How many runtimes are on their way out, and will free their slots or come back."""
        return self.count[Phase.CLAIMED] + self.count[Phase.STOPPING]


def void(slot: Slot) -> None:
    """End every lease of a slot whose runtime cannot honour them any more."""
    for lease in slot.leases or ():
        lease.slot = None
    slot.leases = None
