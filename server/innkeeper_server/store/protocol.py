"""What a store promises, whatever keeps the data.

Owns the `Store` protocol and its records. A store keeps one row for each agent that ever lived:

    epoch     raised by every hydration; the number of the writer that may commit
    version   raised by every commit; 0 until the first
    state     the bytes of the last commit, None before it
    deleted   a tombstone: the row stays, the state goes, and nothing revives the agent

And one row for each outcome of a call with an idempotency key, and one for each follow-up that
was accepted, until their retention is over; of a follow-up:

    seq       the order of acceptance over all agents
    attempt   how often its turn was begun; counted before the handler runs
    state     accepted, or how it ended; it ends once

And the events of turns, in chunks of consecutive ones of one turn, in the order in which an agent
said them, until their retention is over. An agent keeps the newest `events_kept` at most.

And one row for each alarm that an agent has set, by its name; at most `ALARMS_KEPT` of one agent.
An alarm that fires becomes a follow-up, in one transaction.

Every write carries the epoch and the version that the writer holds, and the store refuses it if
either has moved. So a runtime that was replaced, paused or cut off can do no harm.

Every method may raise `StoreUnavailable`: the data cannot be reached now, and nothing that was
acknowledged is lost. The call that failed was not kept; only if the words say that the outcome is
unknown may it turn out to be kept. A later commit with the old version is then refused as
`StaleEpoch`, and never written over it. A call whose caller is cancelled may be kept or not, but
never in part.

Any other exception than those named is a defect.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from innkeeper_server.identity import AgentKey

__all__ = [
    "ALARMS_KEPT",
    "EVENTS_KEPT",
    "Alarm",
    "AlarmChanges",
    "Alarms",
    "Chunk",
    "Chunks",
    "Followup",
    "FollowupState",
    "Followups",
    "Hydrated",
    "Outcome",
    "Page",
    "Record",
    "Settled",
    "Store",
]

EVENTS_KEPT = 10_000  # of each agent, where a store is told nothing else
ALARMS_KEPT = 1000  # of each agent

FollowupState = Literal["accepted", "completed", "failed", "cancelled", "expired", "dead_lettered"]


@dataclass(frozen=True, slots=True)
class Hydrated:
    """What a new writer of an agent starts from. `created_at` is in seconds of Unix time.
    `passive`: passive follow-ups wait for the agent."""

    epoch: int
    version: int
    state: bytes | None
    created_at: float
    passive: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """One agent as it is stored. Times are in seconds of Unix time.

    `updated_at` is the time of the last commit, or of creation before the first.
    """

    key: AgentKey
    epoch: int
    version: int
    state: bytes | None
    created_at: float
    updated_at: float
    deleted: bool = False


Page = list[Record]


@dataclass(frozen=True, slots=True)
class Followup:
    """One follow-up as it is stored. Times are in seconds of Unix time.

    `message` and `outcome` are bytes that the host alone understands. `expires_at`: if it has not
    begun by then, it never will. `passive`: it waits for the agent's next turn.
    """

    id: str
    key: AgentKey
    message: bytes
    accepted_at: float
    expires_at: float | None = None
    passive: bool = False
    seq: int = 0
    attempt: int = 0
    state: FollowupState = "accepted"
    started_at: float | None = None
    settled_at: float | None = None
    outcome: bytes | None = None
    idempotency_key: str = ""
    fingerprint: bytes = b""


Followups = list[Followup]


@dataclass(frozen=True, slots=True)
class Settled:
    """How a follow-up ended."""

    id: str
    state: FollowupState
    outcome: bytes | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call with an idempotency key ended. `fingerprint` tells its request from others;
    `outcome` is bytes that the host alone understands."""

    key: AgentKey
    idempotency_key: str
    fingerprint: bytes
    turn_id: str
    outcome: bytes


@dataclass(frozen=True, slots=True)
class Chunk:
    """Events `first` to `last` of one turn, as they are logged together.

    `data` is bytes that the host alone understands. `ended`: the last one ends the turn.
    `position`: the number of its last event among all that the agent ever said, counted from 1
    without holes; 0 before it is logged.
    """

    turn_id: str
    epoch: int
    first: int
    last: int
    data: bytes
    ended: bool = False
    position: int = 0


Chunks = list[Chunk]


@dataclass(frozen=True, slots=True)
class Alarm:
    """One alarm as it is stored. `due` is in seconds of Unix time; `every` is the seconds from one
    time to the next, None where it fires once. `message` is bytes that the host alone
    understands, as in `Followup`."""

    key: AgentKey
    name: str
    due: float
    every: float | None
    message: bytes


Alarms = list[Alarm]
AlarmChanges = Mapping[str, Alarm | None]  # by their names; None cancels


class Store(Protocol):
    """Agents' states, fenced by epochs. Used on the loop that opened it, which it never blocks."""

    async def open(self) -> None:
        """Make the store ready. StoreUnavailable says what is wrong with the place, by name."""

    async def close(self) -> None:
        """Refuse new calls, finish the accepted ones, let the data go. Idempotent and bounded.

        StoreUnavailable if the accepted calls could not be finished in time.
        """

    async def hydrate(self, key: AgentKey, *, interrupted: bytes = b"") -> Hydrated:
        """Take the next epoch for the agent, durably, and return what its new writer starts from.

        An agent that never lived is created, with epoch 1. If the log of events breaks off in the
        middle of a turn, `interrupted` is what ends it there, as its last event. Raises
        AgentDeleted.
        """

    async def commit(
        self,
        key: AgentKey,
        *,
        epoch: int,
        version: int,
        state: bytes | None,
        settled: Settled | Outcome | None = None,
        events: Chunk | None = None,
        alarms: AlarmChanges | None = None,
    ) -> int:
        """Keep `state`, durably, and return the new version; both as they were where it is None.
        In the same transaction the follow-up ends whose turn it was, or the outcome is kept, the
        last events of the turn are logged, and alarms are set and cancelled.

        Raises StaleEpoch if `epoch` or `version` is not the stored one, or if the follow-up has
        ended already, or the key has an outcome; AgentDeleted; and TooLarge if the agent would
        have too many alarms.
        """

    async def read(self, key: AgentKey) -> Record | None:
        """The agent as it is stored; None if it never lived or was deleted. Creates nothing."""

    async def list(
        self,
        tenant: str,
        *,
        type: str = "",
        prefix: str = "",
        after: tuple[str, str] | None = None,
        limit: int = 100,
    ) -> Page:
        """At most `limit` living agents of a tenant, in order of (type, id), without their states.

        `type` and `prefix` narrow the list: the whole type, the literal beginning of the id.
        `after` is the (type, id) that the page before ended with. Order is by code points.
        """

    async def delete(self, key: AgentKey) -> bool:
        """Leave a tombstone and raise the epoch, so that a living writer is fenced off. Follow-ups
        that have not ended are cancelled with it, and alarms.

        True if the agent lived until now. An id that never lived gets no tombstone.
        """

    async def append(self, key: AgentKey, *, epoch: int, events: Chunk) -> None:
        """Log events, durably. Raises StaleEpoch if `epoch` is not the stored one, and
        AgentDeleted."""

    async def events(
        self, key: AgentKey, *, turn_id: str = "", after: int = 0, limit: int = 16
    ) -> Chunks:
        """The oldest chunks behind a position, of an agent or of one of its turns."""

    async def place(self, key: AgentKey, turn_id: str, seq: int) -> int | None:
        """The number of an event among all that the agent ever said; None if it is not kept."""

    async def newest(self, key: AgentKey) -> int:
        """The position of the newest chunk; 0 if there is none."""

    async def accept(self, followup: Followup) -> Followup:
        """Keep a follow-up, durably, and return it with its seq; or return the one that its agent
        has under the same idempotency key. The agent need not live yet. Raises AgentDeleted."""

    async def begin(self, id: str) -> int:
        """Count an attempt, durably, and return how many there were; 0 if it has ended already."""

    async def give_back(self, id: str) -> None:
        """An attempt that was begun does not count: it was cut, and that was not its own fault."""

    async def settle(self, settled: Settled) -> bool:
        """End a follow-up outside of a commit; False if it has ended already, or never was."""

    async def followup(self, id: str) -> Followup | None:
        """One follow-up; None if it never was, or is kept no longer."""

    async def pending(self, *, after: int = 0, limit: int = 100) -> Followups:
        """The oldest that have not ended and are not passive, from those after seq `after`."""

    async def passive(self, key: AgentKey, *, limit: int = 100) -> Followups:
        """The oldest passive ones of an agent that have not ended."""

    async def alarms(self, key: AgentKey) -> Alarms:
        """The alarms of an agent, the one that is due first before the others."""

    async def due(
        self, types: Collection[str], *, before: float = float("inf"), limit: int = 100
    ) -> Alarms:
        """Those that are due first, of agents of these types, and until `before`."""

    async def fire(self, alarm: Alarm, id: str, *, following: float | None) -> Followup | None:
        """Accept the alarm's message as a follow-up with this id, and have the alarm be due again
        at `following`, or be gone.

        None if it is not due then any more: it was fired, set anew or cancelled, or its agent was
        deleted. None also while the follow-up of its time before has not ended: that stands for
        this one too.
        """

    async def outcome(self, key: AgentKey, idempotency_key: str) -> Outcome | None:
        """What a call with that key came to; None if there was none, or it is kept no longer."""

    async def keep(self, outcome: Outcome) -> bool:
        """Keep an outcome outside of a commit: of a turn that failed. False if there is one."""

    async def prune(self, before: float, *, limit: int = 1000) -> int:
        """Forget follow-ups and outcomes that ended before that time, `limit` of each at most;
        return how many of the more numerous kind. Passive ones that nobody woke their agent for
        end here, as expired."""

    async def prune_events(self, before: float, *, limit: int = 1000) -> int:
        """Forget chunks that were logged before that time, `limit` at most; return how many. The
        newest one of each agent stays, so that its events are counted on."""

    async def ping(self) -> None:
        """Return if the data can be read and written now."""
