"""The account of capacity: which runtimes hold slots, who owns them, who waits, who must go.

Owns every decision about residency, and nothing else. It is pure and synchronous: time is an
argument, nothing is awaited, no user code runs, and what must be done in the world is returned as
effects for the host to carry out. Because no operation can be interrupted, there is no moment at
which two parts of the account disagree.

            reserve           loaded             claim            commit           stopped
    absent ───────▶ LOADING ────────▶ RESIDENT ───────▶ CLAIMED ───────▶ STOPPING ───────▶ absent
       ▲              │   │                ▲                │                │ overrun
       │  load_failed │   │ failed, its    └─── restore ────┘                ▼
       └──────────────┘   └ code still runs ─────────────────────────────▶ ZOMBIE ─▶ absent

Every phase counts once. Idle residents stand in one line, so the next victim and the next idle
deadline are both its head. Callers that need a slot stand in another, first come, first served;
slots are handed to them, never raced for. Every operation ends in `_pump`, the only place that
matches slots with tickets, so no wake-up can be lost. An operation with a stale claim, an ended
lease or an unknown runtime changes nothing.

Below it: `ledger.py` (what is), `waiting.py` (who waits), `moves.py` (single steps), `leaving.py`
(who goes). Beside it: `explain.py` words it for people, `audit.py` checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import inf

from innkeeper_server import audit, explain
from innkeeper_server.errors import Draining, InnkeeperError, TooManyWaiting
from innkeeper_server.identity import AgentKey
from innkeeper_server.leaving import Leaving
from innkeeper_server.ledger import void
from innkeeper_server.slots import (
    Claim,
    ClaimReason,
    Discard,
    Effect,
    Lease,
    LeaseKind,
    Phase,
    Ticket,
    TicketState,
)

Effects = list[Effect]

# Work of agents that were admitted already: a drain lets it in, so that they can finish.
_INNER = frozenset({LeaseKind.CALL, LeaseKind.JOB, LeaseKind.ENVELOPE, LeaseKind.TIMER})


class Account(Leaving):
    """See the module. All times are seconds on one monotonic clock of the caller's choice.

    `idle_timeout`: how long an unowned agent stays. `admission_timeout`: how long a ticket waits
    for a slot; an eviction that takes a quarter of it is slow, and another is begun beside it.
    `max_waiting`: bound on waiting tickets. `max_claims`: bound on evictions under way for idleness
    or drain. `hold_time`: how long a runtime whose eviction failed is left alone. `eviction_time`:
    how long an eviction should take at most, for the eyes of operators.
    `live`, once set, tells the runtimes that physically exist; it is asked before any refusal.
    """

    def __init__(
        self,
        *,
        capacity: int,
        idle_timeout: float = 300.0,
        admission_timeout: float = 10.0,
        max_waiting: int = 10_000,
        max_claims: int = 256,
        hold_time: float = 5.0,
        eviction_time: float = 30.0,
        story_length: int = 10_000,
    ) -> None:
        super().__init__(
            capacity=capacity,
            idle_timeout=idle_timeout,
            max_claims=max_claims,
            hold_time=hold_time,
            eviction_time=eviction_time,
            slow_after=admission_timeout / 4,
            story_length=story_length,
        )
        self.admission_timeout = admission_timeout
        self.max_waiting = max_waiting
        self.live: Callable[[], Collection[int]] | None = None
        self.due = inf  # the next deadline, as the last operation left it; it can only be too early
        self.loaded_total = self.evicted_total = self.reconciled_total = 0
        self._compared_at = -inf

    # -- callers --------------------------------------------------------------------------------

    def lease(self, agent: AgentKey, kind: LeaseKind, owner: str, now: float) -> Lease | None:
        """Lease a resident in this call, or return None: then `request` has more to say."""
        slot = self.slots.get(agent)
        if slot is None or slot.phase is not Phase.RESIDENT or slot.leaving:
            return None
        if self.draining and kind not in _INNER:
            return None
        return self._lease(slot, kind, owner, now)

    def join(
        self, agent: AgentKey, runtime_id: int, kind: LeaseKind, owner: str, now: float
    ) -> tuple[Lease | None, Effects]:
        """Lease a runtime for code that runs inside of it already: a job that it spawns. It is no
        newcomer, so it needs no leave of the line, and a polite claim gives way to it. None: the
        runtime is past its fence."""
        slot = self._exact(agent, runtime_id, Phase.LOADING, Phase.RESIDENT, Phase.CLAIMED)
        if slot is None:
            return None, []
        if slot.claim is not None and not slot.claim.force:
            self._unclaim(slot, "a job began", now, keep=True)
        return self._lease(slot, kind, owner, now), self._pump(now)

    def request(
        self,
        agent: AgentKey,
        kind: LeaseKind,
        now: float,
        *,
        owner: str = "",
        deadline: float = inf,
        ttl: float = inf,
        order: float = inf,
        accepted: bool = False,
        visitor: object = None,
    ) -> tuple[Ticket, Effects]:
        """Ask for a lease. The ticket is granted now, or waits, or is refused; effects tell which.

        `deadline` is the caller's own; a wait for a slot ends after `admission_timeout` too.
        `ttl` bounds the lease itself (seconds; pins). `order`: tickets of one agent are granted in
        this order, then in that of their coming. `accepted`: it is for work that an earlier life
        had accepted; then there is no bound but `deadline` on how many wait, and how long.
        """
        ticket = Ticket(
            next(self._numbers),
            agent,
            kind,
            owner,
            now,
            patience=inf if accepted else now + self.admission_timeout,
            deadline=deadline,
            ttl=ttl,
            order=order,
            visitor=visitor,
        )
        slot = self.slots.get(agent)
        if self.draining and kind not in _INNER:
            self._refuse(ticket, Draining(explain.DRAINING))
        elif slot is not None and self._opens(slot, now):
            self._grant(slot, ticket, now)
        elif not accepted and self.waiting >= self.max_waiting and not self._mend(now):
            self._refuse(ticket, TooManyWaiting(explain.too_many_waiting(self)))
        else:
            self._wait(ticket)
            if slot is not None:
                self._file(slot)
        return ticket, self._pump(now)

    def release(self, lease: Lease, now: float) -> Effects:
        """End a lease. The last one to go puts the runtime at the tail of the idle line."""
        if not self._let_go(lease, now):
            return []
        calm = self._is_calm() and not (self.draining or self._out)
        if calm and now < self.due <= now + self.idle_timeout:
            return []  # one more in the idle line, and somebody is due before it
        return self._pump(now)

    def cancel(self, ticket: Ticket, now: float) -> Effects:
        """Withdraw a ticket. If it was granted meanwhile, the grant is given back."""
        if ticket.lease is not None:
            return self.release(ticket.lease, now)
        if ticket.state is not TicketState.WAITING:
            return []
        self._withdraw(ticket, TicketState.WITHDRAWN)
        return self._pump(now)

    # -- the host reports -----------------------------------------------------------------------

    def loaded(self, agent: AgentKey, runtime_id: int, now: float) -> Effects:
        """LOADING → RESIDENT; everybody who joined the load is granted, in order, in this call."""
        slot = self._exact(agent, runtime_id, Phase.LOADING)
        if slot is None:
            known = self.slots.get(agent)
            return [] if known and known.runtime_id == runtime_id else [Discard(runtime_id)]
        self._move(slot, Phase.RESIDENT, "loaded", now)
        slot.loaded_at = now
        self.loaded_total += 1
        self._settle_in(slot, now)
        return self._pump(now)

    def load_failed(
        self,
        agent: AgentKey,
        runtime_id: int,
        error: InnkeeperError,
        now: float,
        *,
        ended: bool = True,
    ) -> Effects:
        """Refuse everybody who joined, all with the same cause, and free the slot.

        `ended=False`: the agent's code still runs. The slot stays charged, as a zombie.
        """
        slot = self._exact(agent, runtime_id, Phase.LOADING)
        if slot is None:
            return []
        for ticket in list((slot.waiting or {}).values()):
            self._withdraw(ticket, TicketState.REFUSED)
            self._refuse(ticket, error)
        if ended:
            self._remove(slot, "load failed", now)
        else:
            self._to_zombie(slot, now)
        return self._pump(now)

    def commit(self, claim: Claim, now: float) -> tuple[bool, Effects]:
        """The fence. True: the runtime is STOPPING and its mailbox must be closed in this block."""
        slot = self._claimed(claim)
        if slot is None:
            return False, []
        if slot.leases and not claim.force:
            self._unclaim(slot, "owned again", now)
            return False, self._pump(now)
        void(slot)
        self._forget(claim)
        self._move(slot, Phase.STOPPING, claim.reason.value, now)
        return True, self._pump(now)

    def restore(self, claim: Claim, now: float, *, hold: bool = False) -> Effects:
        """Give a claim up: RESIDENT again, at its old place in line.

        `hold`: its checkpoint failed; it is no candidate until `hold_time` is over.
        """
        slot = self._claimed(claim)
        if slot is None:
            return []
        self._unclaim(slot, "checkpoint failed" if hold else "restored", now, hold=hold)
        return self._pump(now)

    def overrun(self, agent: AgentKey, runtime_id: int, now: float) -> Effects:
        """STOPPING → ZOMBIE: still charged, still visible, and nobody may live beside it."""
        slot = self._exact(agent, runtime_id, Phase.STOPPING)
        if slot is None:
            return []
        self._to_zombie(slot, now)
        return self._pump(now)

    def stopped(self, agent: AgentKey, runtime_id: int, now: float) -> Effects:
        """Exact removal: the slot of this very runtime goes to the first in line, in this call."""
        slot = self._exact(agent, runtime_id, Phase.STOPPING, Phase.ZOMBIE)
        if slot is None:
            return []
        self.evicted_total += slot.claim is not None  # a start that failed was no eviction
        self._remove(slot, "stopped", now)
        return self._pump(now)

    def tick(self, now: float) -> Effects:
        """Do what time alone demands. Call it at `next_deadline`."""
        return self._pump(now)

    def next_deadline(self) -> float:
        """When `tick` must be called next, if nothing happens before; `inf`: never."""
        due = inf
        if (first := self.deadlines.first()) is not None:
            due = first[0]
        if self.held:
            due = min(due, next(iter(self.held.values()))[0])
        head = self.idle.head
        if head is not None and self._going() < self.max_claims:
            due = min(due, -inf if self.draining else head.idle_since + self.idle_timeout)
        return due

    # -- operators ------------------------------------------------------------------------------

    def evict(
        self, agent: AgentKey, now: float, *, graceful: bool = False, force: bool = False
    ) -> tuple[Claim | None, Effects]:
        """Claim a resident: if idle; or (`graceful`) once its owners have left, taking nothing new
        meanwhile; or (`force`) in spite of them, and of a polite claim that is under way. None:
        nothing could be claimed now."""
        slot = self.slots.get(agent)
        if slot is None or slot.phase not in (Phase.RESIDENT, Phase.CLAIMED):
            return None, []
        if slot.claim is not None and (slot.claim.force or not force):
            return None, []
        if slot.leases and not force:
            slot.leaving = slot.leaving or graceful
            return None, []
        claim = self._claim(slot, ClaimReason.OPERATOR, now, firm=graceful or force, force=force)
        return claim, self._pump(now)

    def stay(self, agent: AgentKey, runtime_id: int, now: float) -> Effects:
        """Give up a graceful eviction that still waits for owners; admit whom it kept outside."""
        slot = self._exact(agent, runtime_id, Phase.RESIDENT)
        if slot is not None and slot.leaving:
            slot.leaving = False
            self._grant_waiting(slot, now)
        return self._pump(now)

    def set_capacity(self, capacity: int, now: float) -> Effects:
        """Change the limit. Above it, idle residents leave at once and owned ones when free."""
        self.capacity = capacity
        return self._pump(now)

    def drain(self, now: float) -> Effects:
        """Refuse what is new and what waits for a slot; everybody idle leaves, soon or later."""
        self.draining = True
        error = Draining(explain.DRAINING)
        for ticket in list(self.tickets()):
            slot = self.slots.get(ticket.agent)
            if ticket.kind not in _INNER and not (slot and slot.phase is Phase.LOADING):
                self._withdraw(ticket, TicketState.REFUSED)
                self._refuse(ticket, error)
        return self._pump(now)

    def undrain(self, now: float) -> Effects:
        """Take work again."""
        self.draining = False
        return self._pump(now)

    def reconcile(self, live: Collection[int], now: float) -> tuple[list[str], Effects]:
        """Compare with the runtimes that exist, mend every difference, and say what it was."""
        defects = self._reconcile(live, now)
        return defects, self._pump(now)

    def check(self) -> None:
        """Raise AssertionError, with the story, if any invariant is broken. Costs O(n)."""
        audit.check(self)

    # -- the pump -------------------------------------------------------------------------------

    def _pump(self, now: float) -> Effects:
        if self.held:
            self._unhold(now)
        if not self._is_calm():
            self._serve(now)
            self._balance(now)
        self.due = self.next_deadline()
        while self.due <= now and (self._expire(now) or self._claim_due(now)):
            self._serve(now)
            self._balance(now)
            self.due = self.next_deadline()
        out, self._out = self._out, []  # also an empty one: a list that was handed out is final
        return out

    def _serve(self, now: float) -> None:
        """Hand free slots to the line, oldest ticket first."""
        while self.wanted and len(self.slots) < self.capacity:
            first = self.line.first()
            assert first is not None, "an agent is wanted and does not stand in line"
            self.line.pop()
            self._reserve(first[1], now)

    def _expire(self, now: float) -> bool:
        """End one pin, ticket, or patience with an eviction, whose time is over; true if there was
        one. One at a time, so that each is judged by what the last has changed."""
        first = self.deadlines.first()
        if first is None or first[0] > now:
            return False
        self.deadlines.pop()
        item = first[1]
        if isinstance(item, Lease):
            self._let_go(item, now)
        elif isinstance(item, Claim):
            self._note_slow(item)
        elif item.deadline > now and self._is_loading(item.agent):
            self._remember(item, item.deadline)  # it has a slot; only its own deadline counts
        elif self._mend(now):
            self._remember(item, now)  # the refusal would have been false: serve, then look again
        else:
            error = explain.refusal(self, item, now)
            self._withdraw(item, TicketState.REFUSED)
            self._refuse(item, error)
        return True

    # -- reconciliation -------------------------------------------------------------------------

    def _mend(self, now: float) -> bool:
        """Before a refusal: is the account true? The full comparison is made when the numbers
        differ, and otherwise at most once a second, so that refusals stay cheap."""
        if self.live is None:
            return False
        live = self.live()
        plausible = len(self.slots) - self.count[Phase.LOADING] <= len(live) <= len(self.slots)
        if now <= self._compared_at or (plausible and now < self._compared_at + 1.0):
            return False
        self._compared_at = now
        return bool(self._reconcile(live, now))

    def _reconcile(self, live: Collection[int], now: float) -> list[str]:
        missing, ghosts = audit.compare(self, live)
        for slot in missing:
            if slot.claim is not None:
                self._forget(slot.claim)
            self._remove(slot, "reconciled", now)
        self._out.extend(Discard(runtime_id) for runtime_id in ghosts)
        self.reconciled_total += len(missing) + len(ghosts)
        without = [f"{slot.agent}: its slot had no runtime {slot.runtime_id}" for slot in missing]
        return without + [f"runtime {runtime_id} had no slot" for runtime_id in ghosts]
