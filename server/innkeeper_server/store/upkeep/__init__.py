"""Looking after a store while it serves nobody: its schema, its health, and its move elsewhere.

Owns the way of all rows out of one store and into another, and the choice of a store by its URL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter

from innkeeper_server.errors import StoreUnavailable
from innkeeper_server.store.upkeep.archive import (
    ArchiveFault,
    ArchiveReader,
    ArchiveWriter,
    Sink,
    Source,
)
from innkeeper_server.store.upkeep.checks import CHECKS, Finding, look
from innkeeper_server.store.upkeep.protocol import Changing, Reading, Upkeep
from innkeeper_server.store.upkeep.tables import TABLES, Row, Table

__all__ = [
    "CHECKS",
    "TABLES",
    "ArchiveFault",
    "Counts",
    "Finding",
    "Progress",
    "Sink",
    "Source",
    "Upkeep",
    "export_to",
    "import_from",
    "inspect",
    "upkeep_of",
]

Counts = dict[str, int]  # rows by table
Progress = Callable[[str, int, int], None]  # what, how many are done, and of how many

_AT_ONCE = 1000  # rows that are put together, and
_BYTES_AT_ONCE = 8 << 20


def upkeep_of(url: str) -> Upkeep:
    """The upkeep of the store that a URL names; the URL was checked before. ValueError for one
    that has nothing to look after, or needs a package that is not there."""
    if url.startswith("sqlite:///"):
        from innkeeper_server.store.upkeep.sqlite import SQLiteUpkeep

        return SQLiteUpkeep(url.removeprefix("sqlite:///"))
    if url == "memory:":
        raise ValueError("memory: keeps nothing once its host has ended; name another store")
    from innkeeper_server.store.upkeep.postgres import PostgresUpkeep

    return PostgresUpkeep(url)


async def inspect(upkeep: Upkeep, progress: Progress) -> tuple[Counts, list[Finding]]:
    """How much a store holds, and what is wrong with it. Changes nothing."""
    await _require_schema(upkeep)
    steps = iter(range(1, len(CHECKS) + 2))
    async with upkeep.reading() as reading:
        counts = await _count(reading)
        found = await look(reading, lambda what: progress(what, next(steps), len(CHECKS) + 1))
    return counts, found


async def export_to(upkeep: Upkeep, file: Sink, progress: Progress) -> Counts:
    """Write all that a store holds, as of one moment. A host may have it open."""
    await _require_schema(upkeep)
    async with upkeep.reading() as reading:
        counts = await _count(reading)
        archive = ArchiveWriter(file, counts)
        for table in TABLES:
            done = 0
            async for row in reading.rows(table):
                archive.row(table, row)
                done += 1
                progress(table.name, done, counts[table.name])
        archive.end()
    return counts


async def import_from(upkeep: Upkeep, file: Source, progress: Progress) -> Counts:
    """Fill an empty store with an archive, all of it or nothing.

    ArchiveFault says what is wrong with the file; StoreUnavailable also that the store is in use,
    or is not empty.
    """
    archive = ArchiveReader(file)
    async with upkeep.changing() as changing:
        if any((await _count(changing)).values()):
            raise StoreUnavailable("the store is not empty, and an import fills an empty one only")
        await _put(changing, archive, progress)
    return archive.rows


async def _put(changing: Changing, archive: ArchiveReader, progress: Progress) -> None:
    done = dict.fromkeys(archive.rows, 0)
    for table, page in _pages(archive):
        try:
            await changing.put(table, page)
        except ValueError as fault:
            raise ArchiveFault(f"it has {fault}") from fault
        done[table.name] += len(page)
        progress(table.name, done[table.name], archive.rows[table.name])


def _pages(archive: ArchiveReader) -> Iterator[tuple[Table, list[Row]]]:
    for table, rows in groupby(archive.read(), key=itemgetter(0)):
        page: list[Row] = []
        size = 0
        for _, row in rows:
            page.append(row)
            size += sum(len(value) for value in row if isinstance(value, bytes))
            if len(page) == _AT_ONCE or size >= _BYTES_AT_ONCE:
                yield table, page
                page, size = [], 0
        if page:
            yield table, page


async def _count(reading: Reading | Changing) -> Counts:
    return {
        table.name: await reading.number(f"SELECT count(*) FROM {table.name}") for table in TABLES
    }


async def _require_schema(upkeep: Upkeep) -> None:
    version = await upkeep.version()
    if version == 0:
        raise StoreUnavailable("there is nothing in the store: no host has used it yet")
    if version < upkeep.known:
        raise StoreUnavailable(
            f"its schema has version {version}, and this Innkeeper needs {upkeep.known}: "
            "`innkeeper store migrate` brings it there"
        )
    if version > upkeep.known:
        raise StoreUnavailable(
            f"its schema has version {version}, made by a newer Innkeeper; "
            f"this one knows up to {upkeep.known}"
        )
