"""Single steps of the account: each moves one slot or one ticket, and records the effect.

Owns the steps, which keep the records true to one another and say what the host must do. Which
step is to be taken, and when, is `residency.py`'s to decide.
"""

from __future__ import annotations

from math import inf

from innkeeper_server.errors import InnkeeperError
from innkeeper_server.identity import AgentKey
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


class Moves(Waiting):
    """See the module. `eviction_time` and `hold_time` are seconds."""

    def __init__(self, hold_time: float, eviction_time: float, story_length: int) -> None:
        super().__init__(story_length)
        self.hold_time = hold_time
        self.eviction_time = eviction_time
        self.refused_total = self.overrun_total = 0
        # Revocable claims made for the line, youngest last.
        self._for_line: dict[int, Slot] = {}
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
        for ticket in tickets.values():
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
        self._move(slot, Phase.ZOMBIE, "overran its time to stop", now)
        self.returning.discard(slot)

    def _reserve(self, agent: AgentKey, now: float) -> None:
        slot = Slot(agent, next(self._numbers), now)
        slot.waiting = self.wanted.pop(agent)
        self.slots[agent] = slot
        self._move(slot, Phase.LOADING, "wanted", now)
        self._out.append(Load(agent, slot.runtime_id))

    def _settle_in(self, slot: Slot, now: float) -> None:
        """A loaded runtime belongs to whoever waited for it, before anybody can think of evicting
        it; if they have all left, it is idle."""
        slot.leases = {}
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
        if slot.leases is None:
            self._leave_line(slot)
        deadline = now + self.eviction_time
        token = next(self._numbers)
        claim = Claim(token, slot.agent, slot.runtime_id, reason, firm, force, deadline)
        slot.claim = claim
        slot.leaving = False
        if reason in (ClaimReason.ADMISSION, ClaimReason.CAPACITY):
            self._for_line[token] = slot
        self._move(slot, Phase.CLAIMED, f"claimed: {reason.value}", now)
        self._note_return(slot)
        self._out.append(Evict(claim))
        return claim

    def _unclaim(
        self, slot: Slot, why: str, now: float, *, hold: bool = False, keep: bool = False
    ) -> None:
        """CLAIMED → RESIDENT. `keep`: the caller leases it in the same block."""
        assert slot.claim is not None, "no claim to give up"
        self._for_line.pop(slot.claim.token, None)
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
