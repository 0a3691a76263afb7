"""The store in a PostgreSQL database.

Owns the store's life, its connections, and its reads. Writes go through the writer, which groups
them (writer.py); reads have a few connections of their own. Several hosts may share a database:
every write is fenced by its agent's epoch under the lock of the agent's row.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar

import asyncpg

from innkeeper_server.errors import StoreUnavailable
from innkeeper_server.identity import AgentKey
from innkeeper_server.store.faults import Unusable
from innkeeper_server.store.postgres import writes
from innkeeper_server.store.postgres.faults import FAULTS, LOST, unavailable
from innkeeper_server.store.postgres.migrate import migrate
from innkeeper_server.store.postgres.writer import Writer
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
from innkeeper_server.store.statements import page_query

__all__ = ["PostgresStore"]

T = TypeVar("T")

READERS = 4  # connections
PAUSE = 0.1  # seconds between attempts to read from a database that is away
CONNECT_TIMEOUT = 5.0  # seconds
FORGOTTEN = 7 * 86_400.0  # seconds; a writer that was not seen for so long has no open question

_AGENT = "tenant = $1 AND type = $2 AND id = $3"
_ALARM = "tenant, type, id, name, due, every, message"


class PostgresStore:
    """A `Store` in a database, by its URL.

    `patience`: seconds for which a call waits for a database that is away. `max_queued`: how many
    writes may wait; one more is refused at once.
    """

    def __init__(
        self,
        url: str,
        *,
        patience: float = 10.0,
        max_queued: int = 10_000,
        events_kept: int = EVENTS_KEPT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._url = url
        self._patience = patience
        self._max_queued = max_queued
        self._kept = events_kept
        self._clock = clock
        self._writer: Writer | None = None
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None

    async def open(self) -> None:
        """Connect, and bring the schema up to date. StoreUnavailable says what is wrong there."""
        if self._writer is not None:
            raise RuntimeError("the store is open already")
        try:
            connection = await self._connect()
            try:
                await migrate(connection)
            finally:
                await connection.close(timeout=CONNECT_TIMEOUT)
            self._pool = await asyncpg.create_pool(
                self._url,
                min_size=0,
                max_size=READERS,
                timeout=CONNECT_TIMEOUT,
                command_timeout=self._patience,
            )
        except Unusable as error:
            raise StoreUnavailable(f"cannot use the database: {error}") from error
        except FAULTS as error:
            raise unavailable(error) from error
        except ValueError as error:  # asyncpg's word on the URL; it may repeat it
            raise StoreUnavailable("cannot use the database: its URL has a wrong part") from error
        self._writer = Writer(self._connect, size=self._max_queued, patience=self._patience)

    async def close(self) -> None:
        writer, self._writer = self._writer, None
        pool, self._pool = self._pool, None
        done = writer is None or await writer.close()
        if pool is not None:
            pool.terminate()
        if not done:
            raise StoreUnavailable("the store did not finish its work in time")

    async def _connect(self, **settings: str) -> asyncpg.Connection[asyncpg.Record]:
        return await asyncpg.connect(
            self._url,
            timeout=CONNECT_TIMEOUT,
            command_timeout=self._patience,
            server_settings=settings,
        )

    @property
    def groups(self) -> int:
        """How many transactions its writes took."""
        return 0 if self._writer is None else self._writer.groups

    # -- agents ---------------------------------------------------------------------------------

    async def hydrate(self, key: AgentKey, *, interrupted: bytes = b"") -> Hydrated:
        found: Hydrated = await self._write(
            writes.hydrate(key, interrupted, kept=self._kept, now=self._clock())
        )
        return found

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
        write = writes.commit(
            key,
            epoch=epoch,
            version=version,
            state=state,
            settled=settled,
            events=events,
            alarms=alarms,
            kept=self._kept,
            now=self._clock(),
        )
        return int(await self._write(write))

    async def read(self, key: AgentKey) -> Record | None:
        row = await self._read(
            "fetchrow",
            "SELECT epoch, version, state, created_at, updated_at FROM agents "
            f"WHERE {_AGENT} AND NOT deleted",
            *key,
        )
        return None if row is None else Record(key, *row)

    async def list(
        self,
        tenant: str,
        *,
        type: str = "",
        prefix: str = "",
        after: tuple[str, str] | None = None,
        limit: int = 100,
    ) -> Page:
        if type and after is not None and after[0] != type:
            if after[0] > type:
                return []
            after = None
        sql, values = page_query(tenant, type, prefix, after)
        rows = await self._read("fetch", _numbered(sql), *values, max(limit, 0))
        return [
            Record(
                AgentKey(tenant, row["type"], row["id"]),
                row["epoch"],
                row["version"],
                None,
                row["created_at"],
                row["updated_at"],
            )
            for row in rows
        ]

    async def delete(self, key: AgentKey) -> bool:
        return bool(await self._write(writes.delete(key, now=self._clock())))

    # -- events ---------------------------------------------------------------------------------

    async def append(self, key: AgentKey, *, epoch: int, events: Chunk) -> None:
        await self._write(
            writes.append(key, epoch=epoch, events=events, kept=self._kept, now=self._clock())
        )

    async def events(
        self, key: AgentKey, *, turn_id: str = "", after: int = 0, limit: int = 16
    ) -> Chunks:
        rows = await self._read(
            "fetch",
            "SELECT turn, epoch, first, last, data, ended, position FROM events "
            f"WHERE {_AGENT} AND position > $4 AND ($5 = '' OR turn = $5) "
            "ORDER BY position LIMIT $6",
            *key,
            after,
            turn_id,
            limit,
        )
        return [Chunk(*row) for row in rows]

    async def place(self, key: AgentKey, turn_id: str, seq: int) -> int | None:
        found: int | None = await self._read(
            "fetchval",
            "SELECT position - (last - $5) FROM events "
            f"WHERE {_AGENT} AND turn = $4 AND first <= $5 AND last >= $5",
            *key,
            turn_id,
            seq,
        )
        return found

    async def newest(self, key: AgentKey) -> int:
        sql = f"SELECT max(position) FROM events WHERE {_AGENT}"
        return await self._read("fetchval", sql, *key) or 0

    # -- follow-ups -----------------------------------------------------------------------------

    async def accept(self, followup: Followup) -> Followup:
        kept: Followup = await self._write(writes.accept(followup))
        return kept

    async def begin(self, id: str) -> int:
        return int(await self._write(writes.begin(id, now=self._clock())))

    async def give_back(self, id: str) -> None:
        await self._write(writes.give_back(id))

    async def settle(self, settled: Settled) -> bool:
        return bool(await self._write(writes.settle(settled, now=self._clock())))

    async def followup(self, id: str) -> Followup | None:
        row = await self._read("fetchrow", "SELECT * FROM followups WHERE receipt = $1", id)
        return None if row is None else writes.read_followup(row)

    async def pending(self, *, after: int = 0, limit: int = 100) -> Followups:
        rows = await self._read(
            "fetch",
            "SELECT * FROM followups WHERE NOT passive AND settled_at IS NULL AND seq > $1 "
            "ORDER BY seq LIMIT $2",
            after,
            limit,
        )
        return [writes.read_followup(row) for row in rows]

    async def passive(self, key: AgentKey, *, limit: int = 100) -> Followups:
        rows = await self._read(
            "fetch",
            f"SELECT * FROM followups WHERE {_AGENT} AND settled_at IS NULL AND passive "
            "ORDER BY seq LIMIT $4",
            *key,
            limit,
        )
        return [writes.read_followup(row) for row in rows]

    # -- alarms ---------------------------------------------------------------------------------

    async def alarms(self, key: AgentKey) -> Alarms:
        rows = await self._read(
            "fetch", f"SELECT {_ALARM} FROM alarms WHERE {_AGENT} ORDER BY due, name", *key
        )
        return [_alarm(row) for row in rows]

    async def due(
        self, types: Collection[str], *, before: float = float("inf"), limit: int = 100
    ) -> Alarms:
        rows = await self._read(
            "fetch",
            f"SELECT {_ALARM} FROM alarms WHERE due <= $1 AND type = ANY($2::text[]) "
            "ORDER BY due, tenant, type, id, name LIMIT $3",
            before,
            list(types),
            limit,
        )
        return [_alarm(row) for row in rows]

    async def fire(self, alarm: Alarm, id: str, *, following: float | None) -> Followup | None:
        write = writes.fire(alarm, id, following=following, now=self._clock())
        fired: Followup | None = await self._write(write)
        return fired

    # -- outcomes -------------------------------------------------------------------------------

    async def outcome(self, key: AgentKey, idempotency_key: str) -> Outcome | None:
        row = await self._read(
            "fetchrow",
            f"SELECT fingerprint, turn, outcome FROM outcomes WHERE {_AGENT} "
            "AND idempotency_key = $4",
            *key,
            idempotency_key,
        )
        return None if row is None else Outcome(key, idempotency_key, *row)

    async def keep(self, outcome: Outcome) -> bool:
        return bool(await self._write(writes.keep(outcome, now=self._clock())))

    # -- what is old ----------------------------------------------------------------------------

    async def prune(self, before: float, *, limit: int = 1000) -> int:
        now = self._clock()
        await self._read(
            "execute",
            "UPDATE followups SET state = 'expired', settled_at = $1 "
            "WHERE settled_at IS NULL AND passive AND attempt = 0 AND expires_at <= $1",
            now,
        )
        gone = await self._read(
            "fetchval",
            "WITH gone AS (DELETE FROM followups WHERE seq IN (SELECT seq FROM followups "
            "WHERE settled_at < $1 ORDER BY settled_at LIMIT $2) RETURNING 1) "
            "SELECT count(*) FROM gone",
            before,
            limit,
        )
        forgotten = await self._read(
            "fetchval",
            "WITH gone AS (DELETE FROM outcomes WHERE ctid IN (SELECT ctid FROM outcomes "
            "WHERE kept_at < $1 ORDER BY kept_at LIMIT $2) RETURNING 1) "
            "SELECT count(*) FROM gone",
            before,
            limit,
        )
        await self._read("execute", "DELETE FROM writers WHERE seen_at < $1", now - FORGOTTEN)
        return max(int(gone), int(forgotten))

    async def prune_events(self, before: float, *, limit: int = 1000) -> int:
        gone = await self._read(
            "fetchval",
            "WITH gone AS (DELETE FROM events WHERE ctid IN (SELECT ctid FROM events AS old "
            "WHERE logged_at < $1 AND EXISTS (SELECT 1 FROM events AS new "
            "WHERE new.tenant = old.tenant AND new.type = old.type AND new.id = old.id "
            "AND new.position > old.position) ORDER BY logged_at LIMIT $2) RETURNING 1) "
            "SELECT count(*) FROM gone",
            before,
            limit,
        )
        return int(gone)

    async def ping(self) -> None:
        """Ask both ends; a call that writes nothing goes the way of a write."""
        await self._write(writes.give_back(""))
        await self._read("fetchval", "SELECT version FROM schema_version")

    # -- ways -----------------------------------------------------------------------------------

    async def _write(self, write: writes.Write) -> Any:
        if self._writer is None:
            raise StoreUnavailable("the store is not open")
        return await self._writer.call(write)

    async def _read(self, method: str, sql: str, *values: object) -> Any:
        """One statement that may be made again: it reads, or forgets what is old."""
        return await self._patiently(lambda pool: getattr(pool, method)(sql, *values))

    async def _patiently(self, ask: Callable[[asyncpg.Pool[asyncpg.Record]], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience
        while True:
            if self._pool is None:
                raise StoreUnavailable("the store is not open")
            try:
                return await ask(self._pool)
            except LOST as error:
                if loop.time() + PAUSE >= deadline:
                    raise unavailable(error) from error
            except asyncpg.PostgresError as error:
                raise unavailable(error) from error
            await asyncio.sleep(PAUSE)


def _numbered(sql: str) -> str:
    """The same statement with PostgreSQL's marks for its values."""
    parts = sql.split("?")
    marked = "".join(f"{part}${number}" for number, part in enumerate(parts[:-1], 1))
    return (marked + parts[-1]).replace("deleted = 0", "NOT deleted")


def _alarm(row: asyncpg.Record) -> Alarm:
    tenant, type, id, *rest = row
    return Alarm(AgentKey(tenant, type, id), *rest)
