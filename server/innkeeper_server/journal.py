"""What turns say, logged before anybody hears it.

Owns the way from a turn to the log:

    a turn ──▶ pending ──▶ the store, in chunks ──▶ the turn's own reader
                                              └──▶ a word to whoever follows the log (following.py)

What is said while one chunk is being written goes with the next, so a turn that says a lot writes
seldom. Its last events are logged in the commit of its effect, with the one that ends it. A turn
whose events cannot be logged is stopped: nobody must hear what cannot be told again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from innkeeper_server.agent import Turn
from innkeeper_server.driver import Driver
from innkeeper_server.errors import (
    AgentDeleted,
    InnkeeperError,
    StaleEpoch,
    StoreUnavailable,
    TooLarge,
)
from innkeeper_server.events import SOFT_CHARS, SOFT_EVENTS, Body, Event, weight
from innkeeper_server.identity import AgentKey
from innkeeper_server.letters import write_events
from innkeeper_server.signals import Signal
from innkeeper_server.store import Chunk, Store

__all__ = ["Journal", "TurnLog", "Watch"]

MAX_CHUNK = 512  # events
MAX_PENDING = 65_536  # events of a turn that never waits; more are refused

log = logging.getLogger("innkeeper.host")


class Watch(Signal):
    """Notified when an agent's log has grown, or one of its turns has ended; `count` tells how
    often, so that nothing is missed between a look and a wait."""

    __slots__ = ("count", "watchers")

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.watchers = 0


class Journal:
    """See the module. `on_fault` is told, once for a turn, that its events cannot be logged."""

    def __init__(self, driver: Driver, store: Store) -> None:
        self.driver = driver
        self.store = store
        self.on_fault: Callable[[Turn, InnkeeperError], None]
        self._live: set[str] = set()
        self._watches: dict[AgentKey, Watch] = {}

    def open(self, turn: Turn) -> TurnLog:
        """A log for a turn that says something, or may."""
        return TurnLog(self, turn)

    def begun(self, turn_id: str) -> None:
        """A turn that can be followed has been asked for, and will end."""
        self._live.add(turn_id)

    def ended(self, key: AgentKey, turn_id: str) -> None:
        """It has ended; what there is of it is in the log."""
        self._live.discard(turn_id)
        self.grown(key)

    def is_live(self, turn_id: str) -> bool:
        """Whether more may come of a turn."""
        return turn_id in self._live

    def grown(self, key: AgentKey) -> None:
        """There is more to read of an agent."""
        watch = self._watches.get(key)
        if watch is not None:
            watch.count += 1
            watch.notify()

    @contextmanager
    def watching(self, key: AgentKey) -> Iterator[Watch]:
        """Be told when an agent's log grows."""
        watch = self._watches.setdefault(key, Watch())
        watch.watchers += 1
        try:
            yield watch
        finally:
            watch.watchers -= 1
            if not watch.watchers:
                del self._watches[key]


class TurnLog:
    """The events of one turn on their way into the store."""

    __slots__ = ("_chars", "_fault", "_journal", "_pending", "_progress", "_turn", "_writing")

    def __init__(self, journal: Journal, turn: Turn) -> None:
        self._journal = journal
        self._turn = turn
        self._pending: list[Event] = []
        self._chars = 0  # of these
        self._writing: asyncio.Task[None] | None = None
        self._progress = Signal()
        self._fault: InnkeeperError | None = None

    def put(self, event: Event) -> None:
        """Have an event logged, and then told; never waits. Raises TooLarge for a turn that says
        more than memory should hold without ever waiting."""
        if self._fault is not None:
            return
        if len(self._pending) >= MAX_PENDING:
            raise TooLarge(f"{MAX_PENDING} events wait to be logged; wait with `turn.say`")
        self._pending.append(event)
        self._chars += weight(event)
        if self._writing is None:
            name = f"log {self._turn.id}"
            self._writing = self._journal.driver.own(self._write(), name)

    async def room(self) -> None:
        """Return when not too much waits to be logged."""
        while len(self._pending) >= SOFT_EVENTS or self._chars >= SOFT_CHARS:
            if self._writing is None:
                return
            await self._progress.next()

    async def rest(self, end: Body) -> Chunk:
        """What is left to be logged, with the turn's end as its last event: the caller's to log,
        and then to tell. Raises why an earlier part could not be logged."""
        await self._written()
        if self._fault is not None:
            raise self._fault
        return self._last(end)

    async def failed(self, end: Body, error: InnkeeperError) -> None:
        """Log what is left of a turn that came to nothing, if that can be done."""
        await self._written()
        if isinstance(error, StaleEpoch | AgentDeleted):
            return  # another writer's log begins where this one ended
        turn = self._turn
        try:
            await self._journal.store.append(turn.key, epoch=turn.epoch, events=self._last(end))
        except InnkeeperError as fault:
            log.warning("the end of %s could not be logged: %s", turn.id, fault.message)
        else:
            self.told()

    def told(self) -> None:
        """What was left has been logged: the turn's reader hears it, but for the end, which is
        told when the turn settles."""
        said, self._pending, self._chars = self._pending, [], 0
        self._tell(said)

    async def _written(self) -> None:
        while self._writing is not None:
            await self._progress.next()

    def _last(self, end: Body) -> Chunk:
        turn = self._turn
        last = Event(turn.epoch, turn.id, turn.last_seq + 1, end)
        return write_events([*self._pending, last])

    async def _write(self) -> None:
        turn, store = self._turn, self._journal.store
        try:
            while said := self._next():
                await store.append(turn.key, epoch=turn.epoch, events=write_events(said))
                del self._pending[: len(said)]
                self._chars -= sum(map(weight, said))
                self._tell(said)
                self._progress.notify()
        except InnkeeperError as error:
            self._give_up(error)
        except Exception as fault:
            self._give_up(StoreUnavailable("what the turn said could not be logged"))
            raise fault
        finally:
            self._writing = None
            self._progress.notify()

    def _next(self) -> list[Event]:
        """What goes together: no more than a reader should be given at once."""
        said: list[Event] = []
        chars = 0
        for event in self._pending[:MAX_CHUNK]:
            said.append(event)
            chars += weight(event)
            if chars >= SOFT_CHARS:
                break
        return said

    def _give_up(self, error: InnkeeperError) -> None:
        self._fault = error
        self._pending.clear()
        self._chars = 0
        self._journal.on_fault(self._turn, error)

    def _tell(self, said: list[Event]) -> None:
        if self._turn.outbox is not None:
            for event in said:
                self._turn.outbox.put(event)
        self._journal.grown(self._turn.key)
