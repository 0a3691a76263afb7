"""What a turn says, and the bounded way from the turn to its one reader.

Owns the event types and the outbox. The producer never waits for a reader that left, and waits
for a slow one for a bounded time; then the reader is let go and the turn goes on without it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from innkeeper_server.content import Content
from innkeeper_server.errors import InnkeeperError, SlowReader
from innkeeper_server.signals import Signal

# Where a producer that can wait begins to wait, and where a reader is let go in any case.
SOFT_EVENTS = 256
SOFT_CHARS = 1 << 20
HARD_EVENTS = 8_192
HARD_CHARS = 8 << 20


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the reply's text."""

    delta: str


@dataclass(frozen=True, slots=True)
class Custom:
    """Anything else that the agent chose to say."""

    name: str
    data: Any  # JSON, once it is on its way


@dataclass(frozen=True, slots=True)
class Completed:
    """Terminal: the turn was committed."""

    output: Content


@dataclass(frozen=True, slots=True)
class Failed:
    """Terminal: the turn failed; nothing of it was kept."""

    error: InnkeeperError


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Terminal: the turn was cancelled; nothing of it was kept."""

    reason: str


@dataclass(frozen=True, slots=True)
class Gap:
    """In place of events that the log keeps no longer; `missed` of them, 0 where that is unknown.
    It is never logged itself."""

    missed: int


Body = Text | Custom | Completed | Failed | Cancelled | Gap
TERMINAL = (Completed, Failed, Cancelled)


@dataclass(slots=True)
class Event:
    """One thing said, with its place: (epoch, turn, seq), seq counted from 1 without holes."""

    epoch: int
    turn_id: str
    seq: int
    body: Body


class Outbox:
    """The buffer between one turn and its one reader.

    `reader_timeout`: seconds for which a producer waits for room before the reader is let go.
    """

    __slots__ = ("_buffer", "_chars", "_drained", "_ended", "_lost", "_ready", "_timeout")

    def __init__(self, reader_timeout: float) -> None:
        self._timeout = reader_timeout
        self._buffer: deque[Event] = deque()
        self._chars = 0
        self._ended = False  # the terminal event has been put
        self._lost: SlowReader | None = None  # the reader was let go, or left
        self._ready = Signal()  # for the reader
        self._drained = Signal()  # for producers

    def put(self, event: Event) -> None:
        """Add an event; never waits. Beyond the hard bounds the reader is let go."""
        if self._lost is not None or self._ended:
            return
        self._buffer.append(event)
        self._ended = isinstance(event.body, TERMINAL)
        self._chars += weight(event)
        too_much = self._chars > HARD_CHARS and len(self._buffer) > 1
        if len(self._buffer) > HARD_EVENTS or too_much:
            self._let_go()
        self._ready.notify()

    async def room(self) -> None:
        """Return when there is room, or when there is no reader to wait for any more."""
        if self._has_room() or self._lost is not None:
            return
        await self._drained.wait(self._timeout)
        if not self._has_room() and not self._ended:
            self._let_go()
            self._ready.notify()

    async def read(self) -> list[Event]:
        """All that is ready, at least one event; empty once the terminal event was read.

        Raises SlowReader if the reader was let go. There must be one reader only.
        """
        while not self._buffer:
            if self._lost is not None:
                raise self._lost
            if self._ended:
                return []
            await self._ready.next()
        events = list(self._buffer)
        self._buffer.clear()
        self._chars = 0
        self._drained.notify()
        return events

    def _has_room(self) -> bool:
        return len(self._buffer) < SOFT_EVENTS and self._chars < SOFT_CHARS

    def detach(self) -> None:
        """The reader left: what follows is dropped."""
        self._let_go()

    def _let_go(self) -> None:
        self._lost = SlowReader("the reader did not keep up with the events and was let go")
        self._buffer.clear()
        self._chars = 0
        self._drained.notify()


def weight(event: Event) -> int:
    """About how many characters an event has."""
    body = event.body
    if isinstance(body, Text):
        return len(body.delta)
    if isinstance(body, Custom):
        return len(repr(body.data))
    return 0
