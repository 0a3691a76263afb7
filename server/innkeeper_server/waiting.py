"""Who waits: the tickets of callers whose agent is not there for them yet.

Owns where a ticket stands, in exactly one place, and for how long:

    its agent has no slot                in line, ordered by the oldest ticket of each agent
    its agent is LOADING                 joined to the load
    its agent is on its way out          parked at the slot, for the next life

It decides nothing: `residency.py` does.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from innkeeper_server.identity import AgentKey
from innkeeper_server.ledger import Ledger, void
from innkeeper_server.slots import Claim, LazyHeap, Lease, Phase, Slot, Ticket, TicketState


class Waiting(Ledger):
    """See the module."""

    def __init__(self, story_length: int) -> None:
        super().__init__(story_length)
        self.waiting = 0
        # Agents without a slot, each with the tickets that want it; `line` orders them.
        self.wanted: dict[AgentKey, dict[int, Ticket]] = {}
        self.line: LazyHeap[AgentKey] = LazyHeap(self._stands_in_line)
        # Slots on their way out, and counted on, whose agent is wanted again.
        self.returning: set[Slot] = set()
        # When a ticket, a pin, or the patience with an eviction ends.
        self.deadlines: LazyHeap[Ticket | Lease | Claim] = LazyHeap(self._still_counts)

    def tickets(self) -> Iterable[Ticket]:
        """Everybody who waits, in no particular order."""
        for tickets in self.wanted.values():
            yield from tickets.values()
        for slot in self.slots.values():
            if slot.waiting:
                yield from slot.waiting.values()

    def _wait(self, ticket: Ticket) -> None:
        slot = self.slots.get(ticket.agent)
        if slot is not None:
            if slot.waiting is None:
                slot.waiting = {}
            slot.waiting[ticket.seq] = ticket
        elif ticket.agent in self.wanted:
            self.wanted[ticket.agent][ticket.seq] = ticket
        else:
            self._want(ticket.agent, {ticket.seq: ticket})
        self.waiting += 1
        self._remember(ticket, min(ticket.patience, ticket.deadline))

    def _want(self, agent: AgentKey, tickets: dict[int, Ticket]) -> None:
        self.wanted[agent] = tickets
        self.line.push(next(iter(tickets)), agent)

    def _stands_in_line(self, seq: float, agent: AgentKey) -> bool:
        tickets = self.wanted.get(agent)
        return tickets is not None and next(iter(tickets)) == seq

    def _remember(self, item: Ticket | Lease | Claim, due: float) -> None:
        if due != inf:
            self.deadlines.push(due, item)

    def _withdraw(self, ticket: Ticket, state: TicketState) -> None:
        """Take a waiting ticket from wherever it stands."""
        ticket.state = state
        self.waiting -= 1
        slot = self.slots.get(ticket.agent)
        if slot is not None:
            assert slot.waiting is not None, "a waiting ticket stands nowhere"
            del slot.waiting[ticket.seq]
            if not slot.waiting:
                slot.waiting = None
            return
        tickets = self.wanted[ticket.agent]
        was_first = next(iter(tickets)) == ticket.seq
        del tickets[ticket.seq]
        if not tickets:
            del self.wanted[ticket.agent]
        elif was_first:  # the next one keeps its own place, not this one's
            self.line.push(next(iter(tickets)), ticket.agent)

    def _is_loading(self, agent: AgentKey) -> bool:
        slot = self.slots.get(agent)
        return slot is not None and slot.phase is Phase.LOADING

    def _remove(self, slot: Slot, why: str, now: float) -> None:
        """Take a slot out of everything; whoever waited for the agent's next life joins the line
        at the place of their tickets."""
        if slot.phase is Phase.RESIDENT and slot.leases is None:
            self._leave_line(slot)
        void(slot)
        slot.claim = None
        self.returning.discard(slot)
        del self.slots[slot.agent]
        self._move(slot, None, why, now)
        if slot.waiting:
            self._want(slot.agent, slot.waiting)
            slot.waiting = None

    def _still_counts(self, _due: float, item: Ticket | Lease | Claim) -> bool:
        if isinstance(item, Lease):
            return item.slot is not None
        if isinstance(item, Ticket):
            return item.state is TicketState.WAITING
        slot = self.slots.get(item.agent)
        if slot is None or slot.claim is not item or slot.late:
            return False
        return slot.phase is not Phase.ZOMBIE
