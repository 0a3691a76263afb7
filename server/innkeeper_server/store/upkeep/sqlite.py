"""Upkeep of a store in a file. Owns how a snapshot and a transaction are had there."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

from innkeeper_server.errors import StoreUnavailable
from innkeeper_server.store.database import Database
from innkeeper_server.store.faults import FAULTS, words
from innkeeper_server.store.migrate import schema_version, steps
from innkeeper_server.store.upkeep.tables import Row, Table

__all__ = ["SQLiteUpkeep"]

_BUSY_TIMEOUT = 5.0  # seconds
_AT_ONCE = 16  # rows; a state may have megabytes
_DAMAGES = 20  # findings that are told at most


class SQLiteUpkeep:
    """See `Upkeep`."""

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(os.path.expanduser(path))
        self.known = len(steps("sqlite"))

    async def version(self) -> int:
        if not self._exists():
            return 0
        with self._reader() as connection:
            return schema_version(connection)

    async def migrate(self) -> tuple[int, int]:
        before = await self.version()
        with self._writer():
            return before, self.known

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[_SQLite]:
        with self._reader() as connection:
            connection.execute("BEGIN")
            yield _SQLite(connection)

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[_SQLite]:
        with self._writer() as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield _SQLite(connection)
            connection.execute("COMMIT")

    def _exists(self) -> bool:
        return os.path.exists(self._path)

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        with self._told():
            if not self._exists():
                raise FileNotFoundError(None, "there is no such file")
            connection = Database(self._path, busy_timeout=_BUSY_TIMEOUT).reader()
            try:
                yield connection
            finally:
                connection.close()

    @contextmanager
    def _writer(self) -> Iterator[sqlite3.Connection]:
        """With the file taken, so that no host has it, and its schema up to date."""
        database = Database(self._path, busy_timeout=_BUSY_TIMEOUT)
        with self._told():
            try:
                connection = database.writer()
                try:
                    yield connection
                finally:
                    connection.close()  # what was not committed is rolled back
            finally:
                database.release()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except FAULTS as error:
            said = words(error)
            where = "" if self._path in said else f"cannot use the database {self._path}: "
            raise StoreUnavailable(where + said) from error


class _SQLite:
    """A `Reading` and a `Changing` over one connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def number(self, sql: str) -> int:
        return int(self._connection.execute(sql).fetchone()[0])

    async def rows(self, table: Table) -> AsyncIterator[Row]:
        cursor = self._connection.execute(table.select)
        flags = [at for at, column in enumerate(table.columns) if column.type is bool]
        while page := cursor.fetchmany(_AT_ONCE):
            for row in page:
                yield _with_bools(row, flags)

    async def damage(self) -> list[str]:
        found = self._connection.execute(f"PRAGMA integrity_check({_DAMAGES})").fetchall()
        return [str(line) for (line,) in found if line != "ok"]

    async def put(self, table: Table, rows: Sequence[Row]) -> None:
        names = table.names
        marks = ", ".join("?" * len(names))
        sql = f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({marks})"
        try:
            self._connection.executemany(sql, rows)
        except (sqlite3.IntegrityError, OverflowError) as error:
            raise ValueError(f"rows that {table.name} cannot hold together") from error


def _with_bools(row: Row, flags: list[int]) -> Row:
    values = list(row)
    for at in flags:
        values[at] = bool(values[at])
    return tuple(values)
