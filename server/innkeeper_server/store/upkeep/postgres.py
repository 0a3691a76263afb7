"""Upkeep of a store in a PostgreSQL database.

Owns how a snapshot and a transaction are had there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

import asyncpg

from innkeeper_server.errors import StoreUnavailable
from innkeeper_server.store.faults import Unusable
from innkeeper_server.store.migrate import steps
from innkeeper_server.store.postgres.faults import FAULTS, unavailable
from innkeeper_server.store.postgres.migrate import migrate, schema_version
from innkeeper_server.store.upkeep.tables import TABLES, Row, Table

__all__ = ["PostgresUpkeep"]

_CONNECT_TIMEOUT = 5.0  # seconds
_AT_ONCE = 16  # rows; a state may have megabytes
_ALL = ", ".join(table.name for table in TABLES)

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


class PostgresUpkeep:
    """See `Upkeep`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.known = len(steps("postgresql"))

    async def version(self) -> int:
        async with self._connected() as connection:
            return await schema_version(connection)

    async def migrate(self) -> tuple[int, int]:
        async with self._connected() as connection:
            return await migrate(connection)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[_Postgres]:
        async with (
            self._connected() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            yield _Postgres(connection)

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[_Postgres]:
        async with self._connected() as connection:
            await migrate(connection)
            async with connection.transaction():
                await connection.execute(f"LOCK TABLE {_ALL} IN SHARE ROW EXCLUSIVE MODE")
                yield _Postgres(connection)
                await connection.execute(
                    "SELECT setval(pg_get_serial_sequence('followups', 'seq'), max(seq)) "
                    "FROM followups HAVING max(seq) IS NOT NULL"
                )

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        try:
            connection = await self._connect()
            try:
                yield connection
            finally:
                await connection.close(timeout=_CONNECT_TIMEOUT)
        except Unusable as error:
            raise StoreUnavailable(f"cannot use the database: {error}") from error
        except FAULTS as error:
            raise unavailable(error) from error

    async def _connect(self) -> Connection:
        try:
            return await asyncpg.connect(self._url, timeout=_CONNECT_TIMEOUT)
        except ValueError as error:  # asyncpg's word on the URL; it may repeat it
            raise StoreUnavailable("cannot use the database: its URL has a wrong part") from error


class _Postgres:
    """A `Reading` and a `Changing` over one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def number(self, sql: str) -> int:
        return int(await self._connection.fetchval(sql))

    async def rows(self, table: Table) -> AsyncIterator[Row]:
        async for row in self._connection.cursor(table.select, prefetch=_AT_ONCE):
            yield tuple(row)

    async def damage(self) -> list[str]:
        return []  # the server's own tools look into its files

    async def put(self, table: Table, rows: Sequence[Row]) -> None:
        try:
            await self._connection.copy_records_to_table(
                table.name, records=rows, columns=table.names
            )
        except (asyncpg.IntegrityConstraintViolationError, asyncpg.DataError) as error:
            raise ValueError(f"rows that {table.name} cannot hold together") from error
