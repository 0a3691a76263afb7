"""The words of the account: phases, slots, leases, claims, tickets, and the effects it returns.

Owns plain records and the two small orderings that the account needs: the idle line and a heap
with lazy removal. Nothing here decides anything; `residency.py` does.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Generic, TypeVar

from innkeeper_server.errors import InnkeeperError
from innkeeper_server.identity import AgentKey


class Phase(Enum):
    """Where a runtime's slot stands. Each phase counts against capacity, exactly once."""

    LOADING = "loading"  # state is being read, the agent is starting
    RESIDENT = "resident"  # takes work
    CLAIMED = "claimed"  # chosen for eviction, revocably; the mailbox is still open
    STOPPING = "stopping"  # past the fence; takes nothing more
    ZOMBIE = "zombie"  # was told to end, its time is over, its code still runs

    __hash__ = object.__hash__  # members are single; the default hashes the name each time


# The one table of legal moves; None is "absent". Reconciliation alone may remove from any phase.
TRANSITIONS: frozenset[tuple[Phase | None, Phase | None]] = frozenset(
    {
        (None, Phase.LOADING),
        (Phase.LOADING, Phase.RESIDENT),
        (Phase.LOADING, None),
        (Phase.LOADING, Phase.ZOMBIE),
        (Phase.RESIDENT, Phase.CLAIMED),
        (Phase.CLAIMED, Phase.RESIDENT),
        (Phase.CLAIMED, Phase.STOPPING),
        (Phase.STOPPING, Phase.ZOMBIE),
        (Phase.STOPPING, None),
        (Phase.ZOMBIE, None),
    }
)


class LeaseKind(Enum):
    """What sort of owner keeps a runtime."""

    REQUEST = "request"  # a unary call, until its work settles
    CONNECTION = "connection"  # an open stream or session
    ENVELOPE = "envelope"  # accepted work that no caller holds any more
    CALL = "call"  # a nested call from another agent
    TIMER = "timer"  # a timer or alarm being delivered
    JOB = "job"  # background work that the agent declared
    PIN = "pin"  # an operator's, with a time limit

    __hash__ = object.__hash__


class ClaimReason(Enum):
    """Why somebody wants a runtime gone."""

    ADMISSION = "admission"  # a waiting ticket needs its slot
    IDLE = "idle"  # its idle time is over
    OPERATOR = "operator"  # somebody asked for it
    DRAIN = "drain"  # the host is emptying
    CAPACITY = "capacity"  # the limit was lowered


class TicketState(Enum):
    """How far a ticket has come; the last three are final."""

    WAITING = "waiting"
    GRANTED = "granted"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"


class Slot:
    """One unit of capacity, held by one runtime from LOADING until it has really stopped."""

    __slots__ = (
        "agent",
        "claim",
        "idle_seq",
        "idle_since",
        "late",
        "leases",
        "leaving",
        "loaded_at",
        "next",
        "phase",
        "prev",
        "runtime_id",
        "since",
        "waiting",
    )

    def __init__(self, agent: AgentKey, runtime_id: int, now: float) -> None:
        self.agent = agent
        self.runtime_id = runtime_id
        self.phase: Phase | None = None
        self.since = now  # of the present phase
        self.loaded_at = now
        self.leases: dict[Lease, None] | None = None  # None while nobody owns it
        self.idle_since = now
        self.idle_seq = 0  # its place in the idle line, kept while it is claimed
        self.claim: Claim | None = None
        self.late = False  # its eviction takes long; nobody counts on it
        self.leaving = False  # a graceful eviction waits for its owners
        self.waiting: dict[int, Ticket] | None = None  # joined to its load, or to its next life
        self.prev: Slot | None = None
        self.next: Slot | None = None

    def __repr__(self) -> str:
        phase = self.phase.value if self.phase else "absent"
        owners = f" leases={len(self.leases)}" if self.leases else ""
        waiting = f" waiting={len(self.waiting)}" if self.waiting else ""
        return f"<{self.agent}#{self.runtime_id} {phase}{owners}{waiting}>"


class Lease:
    """The right to keep a runtime resident. `slot` turns None when it ends, whoever ends it."""

    __slots__ = ("kind", "owner", "since", "slot", "until")

    def __init__(self, slot: Slot, kind: LeaseKind, owner: str, since: float) -> None:
        self.slot: Slot | None = slot
        self.kind = kind
        self.owner = owner
        self.since = since
        self.until = inf  # finite for pins

    def __repr__(self) -> str:
        return f"<lease {self.kind.value} {self.owner!r} on {self.slot}>"


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to evict one runtime. `token` is unique and never reused."""

    token: int
    agent: AgentKey
    runtime_id: int
    reason: ClaimReason
    firm: bool  # work that arrives cannot revoke it
    force: bool  # owners cannot hold it up either
    deadline: float  # when it should have ended; for the eyes of operators


class Ticket:
    """A caller waiting for an agent to be resident."""

    __slots__ = (
        "agent",
        "deadline",
        "kind",
        "lease",
        "order",
        "owner",
        "patience",
        "seq",
        "since",
        "state",
        "ttl",
        "visitor",
    )

    def __init__(
        self,
        seq: int,
        agent: AgentKey,
        kind: LeaseKind,
        owner: str,
        since: float,
        *,
        patience: float,
        order: float,
        deadline: float,
        ttl: float,
        visitor: object,
    ) -> None:
        self.seq = seq
        self.agent = agent
        self.kind = kind
        self.owner = owner
        self.since = since
        self.patience = patience  # when it stops waiting for a slot
        self.order = order  # among the tickets of its agent; those of work, by their submission
        self.deadline = deadline  # when it stops waiting for anything
        self.ttl = ttl  # of the lease it wants; finite for pins
        self.visitor = visitor  # the driver's own; never looked at here
        self.state = TicketState.WAITING
        self.lease: Lease | None = None  # once granted

    def __repr__(self) -> str:
        return f"<ticket {self.seq} {self.kind.value} for {self.agent} {self.state.value}>"


@dataclass(frozen=True, slots=True)
class Load:
    """Effect: start this runtime, then report `loaded` or `load_failed`."""

    agent: AgentKey
    runtime_id: int


@dataclass(frozen=True, slots=True)
class Evict:
    """Effect: begin the eviction that this claim allows."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class Grant:
    """Effect: the ticket has its lease. It must be used, or released, in the same block."""

    ticket: Ticket
    lease: Lease


@dataclass(frozen=True, slots=True)
class Refuse:
    """Effect: the ticket ends with this error, true at this instant."""

    ticket: Ticket
    error: InnkeeperError


@dataclass(frozen=True, slots=True)
class Discard:
    """Effect: this runtime exists but has no slot; end it. Expected never to be seen."""

    runtime_id: int


Effect = Load | Evict | Grant | Refuse | Discard


@dataclass(frozen=True, slots=True)
class Transition:
    """One move of one slot, for the story."""

    seq: int
    agent: AgentKey
    runtime_id: int
    before: Phase | None
    after: Phase | None
    reason: str
    at: float  # the account's clock


class IdleLine:
    """The residents that nobody owns, least recently idle first: a list linked through the slots.

    Its head is both the next victim and the next idle deadline, so nothing is ever scanned.
    """

    __slots__ = ("_size", "_tail", "head")

    def __init__(self) -> None:
        self.head: Slot | None = None
        self._tail: Slot | None = None
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Slot]:
        slot = self.head
        while slot is not None:
            yield slot
            slot = slot.next

    def append(self, slot: Slot) -> None:
        last, self._tail = self._tail, slot
        slot.prev = last
        if last is None:
            self.head = slot
        else:
            last.next = slot
        self._size += 1

    def insert(self, slot: Slot) -> None:
        """Put a slot back at its old place. Costs as many steps as slots stand before it: few,
        since victims come from the head."""
        after = self.head
        while after is not None and after.idle_seq < slot.idle_seq:
            after = after.next
        self._link(slot, after.prev if after else self._tail, after)

    def remove(self, slot: Slot) -> None:
        before, after = slot.prev, slot.next
        if before is None:
            self.head = after
        else:
            before.next = after
        if after is None:
            self._tail = before
        else:
            after.prev = before
        slot.prev = slot.next = None
        self._size -= 1

    def _link(self, slot: Slot, before: Slot | None, after: Slot | None) -> None:
        slot.prev, slot.next = before, after
        if before is None:
            self.head = slot
        else:
            before.next = slot
        if after is None:
            self._tail = slot
        else:
            after.prev = slot
        self._size += 1


T = TypeVar("T")


class LazyHeap(Generic[T]):
    """A heap whose entries may die in place; the dead never outnumber the living by much."""

    __slots__ = ("_alive", "_count", "_entries", "_sweep_at")

    def __init__(self, alive: Callable[[float, T], bool]) -> None:
        self._alive = alive
        self._entries: list[tuple[float, int, T]] = []
        self._count = 0
        self._sweep_at = 64

    def push(self, key: float, item: T) -> None:
        if len(self._entries) >= self._sweep_at:
            self._sweep()
        self._count += 1  # keeps items of equal keys in order, and never compares them
        heapq.heappush(self._entries, (key, self._count, item))

    def first(self) -> tuple[float, T] | None:
        """The least living entry, left where it is."""
        while self._entries:
            key, _, item = self._entries[0]
            if self._alive(key, item):
                return key, item
            heapq.heappop(self._entries)
        return None

    def pop(self) -> None:
        """Take away what `first` has just shown."""
        heapq.heappop(self._entries)

    def _sweep(self) -> None:
        self._entries = [entry for entry in self._entries if self._alive(entry[0], entry[2])]
        heapq.heapify(self._entries)
        self._sweep_at = max(64, 2 * len(self._entries))
