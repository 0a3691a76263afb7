"""Single steps of the account: each moves one slot or one ticket, and records the effect.

Owns the steps, which keep the records true to one another and say what the host must do. Which
step is to be taken, and when, is `residency.py`'s to decide.
"""

from __future__ import annotations

from math import inf

from innkeeper_server.errors import InnkeeperError
from innkeeper_server.identity import AgentKey
from innkeeper_server.ledger import void
from innkeeper_server.slots import (
    Claim,
    ClaimReason,
    Effect,
    Evict,
    Grant,
    Lease,
    Load,
    Phase,
    Refuse,
    Slot,
    Ticket,
    TicketState,
)
from innkeeper_server.waiting import Waiting

_FOR_LINE = frozenset({ClaimReason.ADMISSION, ClaimReason.CAPACITY})


class Moves(Waiting):
    """See the module. All times are seconds."""

    def __init__(
        self, hold_time: float, eviction_time: float, slow_after: float, story_length: int
    ) -> None:
        super().__init__(story_length)
        self.hold_time = hold_time
        self.eviction_time = eviction_time
        self.slow_after = slow_after
        self.refused_total = self.overrun_total = 0
        # Claims that are given up as soon as the line can do without them, youngest last; and
        # those that are so only once there is no line: promised, or with callers of their own.
        self._for_line: dict[int, Slot] = {}
        self._while_line: dict[int, Slot] = {}
        self._out: list[Effect] = []

    def _refuse(self, ticket: Ticket, error: InnkeeperError) -> None:
        ticket.state = TicketState.REFUSED
        self.refused_total += 1
        self._out.append(Refuse(ticket, error))

    def _grant(self, slot: Slot, ticket: Ticket, now: float) -> None:
        lease = self._lease(slot, ticket.kind, ticket.owner, now)
        if ticket.ttl != inf:
            lease.until = now + ticket.ttl
            self._remember(lease, lease.until)
        ticket.state = TicketState.GRANTED
        ticket.lease = lease
        self._out.append(Grant(ticket, lease))

    def _grant_waiting(self, slot: Slot, now: float) -> None:
        tickets, slot.waiting = slot.waiting or {}, None
        self.returning.discard(slot)
        self.waiting -= len(tickets)
        # What was handed over from an earlier life came before what arrived while that life ended.
        for ticket in sorted(tickets.values(), key=_order):
            self._grant(slot, ticket, now)

    def _let_go(self, lease: Lease, now: float) -> bool:
        """End a lease; true if it was the last one, so that the account changed for others too."""
        slot = lease.slot
        if slot is None or not self._end(lease, now):
            return False
        if slot.leaving:
            self._claim(slot, ClaimReason.OPERATOR, now, firm=True)
        return True

    def _to_zombie(self, slot: Slot, now: float) -> None:
        self.overrun_total += 1
        void(slot)  # of the jobs of a start that failed
        self._move(slot, Phase.ZOMBIE, "overran its time to stop", now)
        self._file(slot)

    def _reserve(self, agent: AgentKey, now: float) -> None:
        slot = Slot(agent, next(self._numbers), now)
        slot.waiting = self.wanted.pop(agent)
        self.slots[agent] = slot
        self._move(slot, Phase.LOADING, "wanted", now)
        self._out.append(Load(agent, slot.runtime_id))

    def _settle_in(self, slot: Slot, now: float) -> None:
        """A loaded runtime belongs to whoever waited for it, before anybody can think of evicting
        it, and to the jobs that it began; if they have all left, it is idle."""
        slot.leases = slot.leases or {}
        self._grant_waiting(slot, now)
        if not slot.leases:
            self._rest(slot, now)

    def _claim(
        self,
        slot: Slot,
        reason: ClaimReason,
        now: float,
        *,
        firm: bool = False,
        force: bool = False,
    ) -> Claim:
        """RESIDENT → CLAIMED; or a claim by force in the place of a polite one, which is dead."""
        deadline = now + self.eviction_time
        token = next(self._numbers)
        claim = Claim(token, slot.agent, slot.runtime_id, reason, firm, force, deadline)
        if slot.claim is not None:
            self._forget(slot.claim)
        elif slot.leases is None:
            self._leave_line(slot)
        slot.claim = claim
        slot.leaving = False
        if slot.phase is Phase.RESIDENT:
            self._move(slot, Phase.CLAIMED, f"claimed: {reason.value}", now)
        self._file(slot)
        self._remember(claim, now + self.slow_after)
        self._out.append(Evict(claim))
        return claim

    def _unclaim(
        self, slot: Slot, why: str, now: float, *, hold: bool = False, keep: bool = False
    ) -> None:
        """CLAIMED → RESIDENT. `keep`: the caller leases it in the same block."""
        assert slot.claim is not None, "no claim to give up"
        self._forget(slot.claim)
        slot.claim = None
        self._move(slot, Phase.RESIDENT, why, now)
        if slot.waiting:
            slot.leases = {} if slot.leases is None else slot.leases
            self._grant_waiting(slot, now)
        elif slot.leases is None and hold:
            self.held[slot.runtime_id] = (now + self.hold_time, slot)
        elif slot.leases is None and keep:
            slot.leases = {}
        elif slot.leases is None:
            self.idle.insert(slot)

    def _note_slow(self, claim: Claim) -> None:
        """Its eviction takes long: nobody counts on it any more."""
        slot = self.slots[claim.agent]
        slot.late = True
        self.late += 1
        self._file(slot)

    def _withdraw(self, ticket: Ticket, state: TicketState) -> None:
        super()._withdraw(ticket, state)
        slot = self.slots.get(ticket.agent)
        if slot is not None:
            self._file(slot)

    def _file(self, slot: Slot) -> None:
        """Put a slot where it belongs, after its claim or its waiting tickets changed."""
        claim = slot.claim
        if claim is None:
            return
        self._forget(claim)
        if slot.waiting and not slot.late and slot.phase in (Phase.CLAIMED, Phase.STOPPING):
            self.returning.add(slot)  # it needs a slot once more: for its next life
        else:
            self.returning.discard(slot)
        if slot.phase is not Phase.CLAIMED:
            return
        if claim.reason not in _FOR_LINE:
            if slot.waiting and not claim.firm:
                self._while_line[claim.token] = slot
        elif slot.waiting or (claim.firm and not slot.late):
            self._while_line[claim.token] = slot
        else:
            self._for_line[claim.token] = slot

    def _forget(self, claim: Claim) -> None:
        """It will not be given up for the line any more."""
        self._for_line.pop(claim.token, None)
        self._while_line.pop(claim.token, None)


def _order(ticket: Ticket) -> float:
    return ticket.order
