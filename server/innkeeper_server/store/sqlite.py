"""The embedded store: one SQLite file, one writing thread, one reading thread.

Owns the store's life and its two lanes. Writes go through the writer, which groups them; reads have
a connection of their own, and a write-ahead log lets them go on while the database is locked.
Nothing here waits on the event loop for a disk or a lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from functools import partial
from typing import TypeVar

from innkeeper_server.errors import StoreUnavailable
from innkeeper_server.identity import AgentKey
from innkeeper_server.store import alarms as bells
from innkeeper_server.store import events as log
from innkeeper_server.store import followups, outcomes, statements
from innkeeper_server.store.database import Database
from innkeeper_server.store.lane import Lane, Operation, Reader
from innkeeper_server.store.protocol import (
    EVENTS_KEPT,
    Alarm,
    AlarmChanges,
    Alarms,
    Chunk,
    Chunks,
    Followup,
    Followups,
    Hydrated,
    Outcome,
    Page,
    Record,
    Settled,
)
from innkeeper_server.store.writer import Writer

__all__ = ["SQLiteStore"]

T = TypeVar("T")

_DISK_PATIENCE = 20.0  # seconds; a disk that needs longer for one group is taken for hung


class SQLiteStore:
    """A `Store` in a file.

    `busy_timeout` (seconds) is how long a write waits for another program's lock on the database.
    `max_queued` is how many calls may wait for each thread; one more is refused at once.
    """

    def __init__(
        self,
        path: str,
        *,
        busy_timeout: float = 5.0,
        max_queued: int = 10_000,
        events_kept: int = EVENTS_KEPT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = path
        self._busy_timeout = busy_timeout
        self._max_queued = max_queued
        self._kept = events_kept
        self._clock = clock
        self._started: list[Lane] = []
        self._writer: Writer | None = None
        self._reader: Reader | None = None

    async def open(self) -> None:
        """Take the file for this host, make it if it is missing, and bring its schema up to date.

        StoreUnavailable names the path and what is wrong there; another host that has the file
        open is one such thing.
        """
        if self._started:
            raise RuntimeError("the store is open already")
        # A call waits for at most two locks, that of the group before and its own, and for disks.
        patience = 2 * self._busy_timeout + _DISK_PATIENCE
        database = Database(self.path, busy_timeout=self._busy_timeout)
        writer = Writer(database, size=self._max_queued, patience=patience)
        reader = Reader(database, size=self._max_queued, patience=patience)
        try:
            for lane in (writer, reader):  # the writer makes what the reader opens
                self._started.append(lane)
                await lane.start()
        except Exception:
            await self.close()
            raise
        except BaseException:
            self._stop()
            raise
        self._writer, self._reader = writer, reader

    async def close(self) -> None:
        self._writer = self._reader = None
        stuck = False
        # One after the other: the connection that closes last empties the write-ahead log, and of
        # two that close at once neither is the last.
        for lane in reversed(self._started):
            lane.stop()
            stuck |= not await lane.ended()
        if stuck:
            raise StoreUnavailable("the store did not finish its work in time")
        self._started = []

    async def hydrate(self, key: AgentKey, *, interrupted: bytes = b"") -> Hydrated:
        return await self.write(
            partial(
                statements.hydrate,
                key=key,
                interrupted=interrupted,
                kept=self._kept,
                now=self._clock(),
            )
        )

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
        return await self.write(
            partial(
                statements.commit,
                key=key,
                epoch=epoch,
                version=version,
                state=state,
                settled=settled,
                events=events,
                alarms=alarms,
                kept=self._kept,
                now=self._clock(),
            )
        )

    async def append(self, key: AgentKey, *, epoch: int, events: Chunk) -> None:
        await self.write(
            partial(
                statements.append,
                key=key,
                epoch=epoch,
                events=events,
                kept=self._kept,
                now=self._clock(),
            )
        )

    async def events(
        self, key: AgentKey, *, turn_id: str = "", after: int = 0, limit: int = 16
    ) -> Chunks:
        return await self.query(
            partial(log.events, key=key, turn_id=turn_id, after=after, limit=limit)
        )

    async def place(self, key: AgentKey, turn_id: str, seq: int) -> int | None:
        return await self.query(partial(log.place, key=key, turn_id=turn_id, seq=seq))

    async def newest(self, key: AgentKey) -> int:
        return await self.query(partial(log.newest, key=key))

    async def read(self, key: AgentKey) -> Record | None:
        return await self.query(partial(statements.read, key=key))

    async def list(
        self,
        tenant: str,
        *,
        type: str = "",
        prefix: str = "",
        after: tuple[str, str] | None = None,
        limit: int = 100,
    ) -> Page:
        return await self.query(
            partial(
                statements.page,
                tenant=tenant,
                type=type,
                prefix=prefix,
                after=after,
                limit=max(limit, 0),  # to SQLite a negative limit is none
            )
        )

    async def delete(self, key: AgentKey) -> bool:
        return await self.write(partial(statements.delete, key=key, now=self._clock()))

    async def accept(self, followup: Followup) -> Followup:
        return await self.write(partial(followups.accept, followup=followup))

    async def begin(self, id: str) -> int:
        return await self.write(partial(followups.begin, id=id, now=self._clock()))

    async def give_back(self, id: str) -> None:
        await self.write(partial(followups.give_back, id=id))

    async def settle(self, settled: Settled) -> bool:
        return await self.write(partial(followups.settle, settled=settled, now=self._clock()))

    async def followup(self, id: str) -> Followup | None:
        return await self.query(partial(followups.followup, id=id))

    async def pending(self, *, after: int = 0, limit: int = 100) -> Followups:
        return await self.query(partial(followups.pending, after=after, limit=limit))

    async def passive(self, key: AgentKey, *, limit: int = 100) -> Followups:
        return await self.query(partial(followups.passive, key=key, limit=limit))

    async def alarms(self, key: AgentKey) -> Alarms:
        return await self.query(partial(bells.alarms, key=key))

    async def due(
        self, types: Collection[str], *, before: float = float("inf"), limit: int = 100
    ) -> Alarms:
        return await self.query(partial(bells.due, types=types, before=before, limit=limit))

    async def fire(self, alarm: Alarm, id: str, *, following: float | None) -> Followup | None:
        return await self.write(
            partial(bells.fire, alarm=alarm, id=id, following=following, now=self._clock())
        )

    async def outcome(self, key: AgentKey, idempotency_key: str) -> Outcome | None:
        return await self.query(partial(outcomes.outcome, key=key, idempotency_key=idempotency_key))

    async def keep(self, outcome: Outcome) -> bool:
        return await self.write(partial(outcomes.keep, outcome=outcome, now=self._clock()))

    async def prune(self, before: float, *, limit: int = 1000) -> int:
        found = await self.write(
            partial(followups.prune, before=before, limit=limit, now=self._clock())
        )
        return max(found, await self.write(partial(outcomes.prune, before=before, limit=limit)))

    async def prune_events(self, before: float, *, limit: int = 1000) -> int:
        return await self.write(partial(log.prune, before=before, limit=limit))

    async def ping(self) -> None:
        """Take the lock for writing, and read through both connections."""
        await self.write(statements.check_writable)
        await self.query(statements.check)

    async def write(self, operation: Operation[T]) -> T:
        """Run the operation in the writer's next transaction; return after its commit.

        It runs in another thread, sees the calls before it, and leaves nothing if it raises.
        """
        if self._writer is None:
            raise StoreUnavailable("the store is not open")
        return await self._writer.call(operation)

    async def query(self, operation: Operation[T]) -> T:
        """Run the operation on the connection that only reads, in another thread."""
        if self._reader is None:
            raise StoreUnavailable("the store is not open")
        return await self._reader.call(operation)

    def _stop(self) -> None:
        for lane in self._started:
            lane.stop()
