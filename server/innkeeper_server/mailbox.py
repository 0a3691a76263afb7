"""One agent's queue: envelopes waiting, the one that is active, and how each of them settles.

Owns the envelope's life and the order of turns. An envelope is in exactly one place at a time:

    WAITING (for residency) ──▶ QUEUED ──▶ ACTIVE ──▶ SETTLED
        └──────────────────────────┴──────────────────────▲   (and straight to ACTIVE, where
                                                               nothing is before it)

It settles once, with an output or an error, and carries its lease from the mailbox to settlement.
Nothing here awaits, except callers who wait for an envelope.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from innkeeper_server.content import Content
from innkeeper_server.errors import AgentBusy, InnkeeperError, MailboxFull
from innkeeper_server.events import Outbox
from innkeeper_server.identity import AgentKey
from innkeeper_server.signals import Signal
from innkeeper_server.slots import Lease, LeaseKind, Ticket

if TYPE_CHECKING:
    from innkeeper_server.agent import Turn
    from innkeeper_server.store import Outcome, Settled
    from innkeeper_server.work import Work

_NO_METADATA: Mapping[str, str] = MappingProxyType({})

BusyPolicy = Literal["enqueue", "reject"]
OnDisconnect = Literal["cancel", "continue"]


class Stage(Enum):
    """Where an envelope is."""

    WAITING = "waiting"
    QUEUED = "queued"
    ACTIVE = "active"
    SETTLED = "settled"


class Call(NamedTuple):
    """What is known of a caller, copied when the call comes in.

    `deadline` is on the loop's clock. `chain` holds the agents through which a nested call came,
    outermost first.
    """

    principal: str = "local"
    tenant: str = "default"
    request_id: str = ""
    deadline: float | None = None
    metadata: Mapping[str, str] = _NO_METADATA
    chain: tuple[AgentKey, ...] = ()


class Durable(Protocol):
    """What the store knows of a piece of work that it has."""

    async def begin(self) -> None:
        """Count an attempt, before the handler runs. Raises what forbids it."""

    def completed(self, output: Content) -> Settled | Outcome:
        """What is to be committed together with the effect."""

    def ended(self, output: Content, error: InnkeeperError | None) -> None:
        """Its envelope has settled, in this block."""

    def is_wanted(self) -> bool:
        """Whether somebody waits for it besides the caller who sent it."""


class Envelope(Signal):
    """One piece of work on its way to one agent; a signal that it has moved."""

    __slots__ = (
        "agent",
        "busy",
        "call",
        "committing",
        "durable",
        "error",
        "expected_version",
        "expires_at",
        "id",
        "kept",
        "kind",
        "leader",
        "lease",
        "lease_kind",
        "on_disconnect",
        "order",
        "outbox",
        "output",
        "replayed",
        "runtime_id",
        "stage",
        "stop",
        "ticket",
        "turn",
        "work",
    )

    def __init__(
        self,
        id: str,
        agent: AgentKey,
        work: Work,
        call: Call,
        kind: str,
        lease_kind: LeaseKind,
        outbox: Outbox | None = None,
        busy: BusyPolicy = "enqueue",
        *,
        on_disconnect: OnDisconnect = "continue",
        expires_at: float | None = None,
        expected_version: int | None = None,
    ) -> None:
        self._waiters = None  # as of any signal, without the call that super() would cost
        self.id = id
        self.agent = agent
        self.work = work
        self.call = call
        self.kind = kind
        self.lease_kind = lease_kind
        self.outbox = outbox
        self.busy = busy
        self.on_disconnect = on_disconnect
        self.expires_at = expires_at
        self.expected_version = expected_version
        self.durable: Durable | None = None
        self.leader: Envelope | None = None  # whose outcome it waits for, by the same key
        self.replayed = False  # its outcome is that of another call with the same key
        self.kept = False  # the store has it: it is accepted, wherever it stands
        self.stage = Stage.WAITING
        self.order = 0  # among all that was submitted; it keeps it when it is handed over
        self.ticket: Ticket | None = None  # while WAITING
        self.lease: Lease | None = None  # while QUEUED and ACTIVE
        self.turn: Turn | None = None  # once its handler began
        self.stop: InnkeeperError | None = None  # why its turn was told to stop
        self.committing = False  # its handler has ended; it cannot be stopped any more
        self.runtime_id = ""
        self.output: Content = None
        self.error: InnkeeperError | None = None

    def __repr__(self) -> str:
        return f"<envelope {self.id} {self.kind} for {self.agent} {self.stage.value}>"

    async def accepted(self) -> None:
        """Return once the host has it: in a mailbox, or in the store. Raise the error it was
        refused with."""
        while self.stage is Stage.WAITING and not self.kept:
            await self.next()
        if self.error is not None and not self.runtime_id and not self.kept:
            raise self.error

    async def outcome(self) -> Content:
        """Return its output once it is committed; raise the error it ended with."""
        while self.stage is not Stage.SETTLED:
            await self.next()
        if self.error is not None:
            raise self.error
        return self.output

    def anew(self) -> Envelope:
        """Another one for the same work, at the same place in the order: this one came to
        nothing."""
        envelope = Envelope(
            self.id,
            self.agent,
            self.work,
            self.call,
            self.kind,
            self.lease_kind,
            expires_at=self.expires_at,
        )
        envelope.kept = self.kept
        envelope.order = self.order
        return envelope

    def wait_again(self) -> None:
        """QUEUED → WAITING: its runtime ended before its turn came; the next life will run it."""
        assert self.stage is Stage.QUEUED, f"{self} cannot wait again"
        self.stage = Stage.WAITING

    def settle(self, output: Content, error: InnkeeperError | None) -> None:
        """End it. A second time is a defect of the host."""
        assert self.stage is not Stage.SETTLED, f"{self} settles twice"
        self.stage = Stage.SETTLED
        self.output = output
        self.error = error
        if self._waiters is not None:
            self.notify()


class Mailbox:
    """The envelopes of one runtime, first in, first out, one active at a time."""

    __slots__ = ("_queue", "active", "closed", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.active: Envelope | None = None
        self.closed = False
        self._queue: OrderedDict[Envelope, None] | None = None  # None while nothing waits

    def __len__(self) -> int:
        return len(self._queue) if self._queue else 0

    @property
    def is_empty(self) -> bool:
        """Nothing waits and nothing is active."""
        return self.active is None and not self._queue

    def put(self, envelope: Envelope, *, hold: bool = False) -> bool:
        """WAITING → QUEUED; or straight to ACTIVE, and True, where nothing is before it, unless
        `hold`. Raises MailboxFull, or AgentBusy if the caller asked not to wait."""
        assert not self.closed, f"{envelope} came after the fence"
        if self.active is None and self._queue is None and not hold:
            envelope.stage = Stage.ACTIVE
            self.active = envelope
            return True
        if envelope.busy == "reject" and not self.is_empty:
            raise AgentBusy(f"{envelope.agent} is busy", metadata={"agent": str(envelope.agent)})
        if self._queue is not None and len(self._queue) >= self.size:
            raise MailboxFull(
                f"the mailbox of {envelope.agent} is full: {self.size} wait already",
                metadata={"agent": str(envelope.agent), "limit": str(self.size)},
            )
        if self._queue is None:
            self._queue = OrderedDict()
        self._queue[envelope] = None
        envelope.stage = Stage.QUEUED
        return False

    def take(self) -> Envelope | None:
        """The next envelope becomes active, in the block that takes it from the queue."""
        assert self.active is None, "two turns at once"
        if not self._queue:
            return None
        envelope, _ = self._queue.popitem(last=False)
        if not self._queue:
            self._queue = None
        envelope.stage = Stage.ACTIVE
        self.active = envelope
        return envelope

    def remove(self, envelope: Envelope) -> None:
        """Take a queued envelope out, wherever it stands."""
        assert self._queue is not None, f"{envelope} is not queued"
        del self._queue[envelope]
        if not self._queue:
            self._queue = None

    def queued(self) -> list[Envelope]:
        """What waits, in order."""
        return list(self._queue or ())

    def close(self) -> list[Envelope]:
        """Take nothing more; return what waited, in order, for the caller to place or settle."""
        self.closed = True
        waiting, self._queue = self.queued(), None
        return waiting
