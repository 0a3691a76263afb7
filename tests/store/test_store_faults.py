"""Faults of the database: refused in words, nothing acknowledged lost, over when they are over."""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from store_kit import Gate, key, queued

from innkeeper_server.errors import StoreUnavailable
from innkeeper_server.store import SQLiteStore

FAT = bytes(1 << 20)


@pytest.fixture
def other(path: Path, sqlite: SQLiteStore) -> Iterator[sqlite3.Connection]:
    """Another program's connection to the database."""
    connection = sqlite3.connect(path, isolation_level=None)
    yield connection
    connection.close()


async def create(store: SQLiteStore, *ids: str) -> None:
    """Agents with one acknowledged commit each."""
    for id in ids:
        await store.hydrate(key(id))
        await store.commit(key(id), epoch=1, version=0, state=b"kept")


async def states(store: SQLiteStore, *ids: str) -> list[bytes | None]:
    records = [await store.read(key(id)) for id in ids]
    return [record.state if record else None for record in records]


async def test_a_locked_database_stops_no_read_and_not_the_loop(path: Path) -> None:
    """The lock outlasts everything the test does, so whatever answers does not wait for it."""
    store = SQLiteStore(str(path), busy_timeout=30.0)
    await store.open()
    await create(store, "a")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    commit = asyncio.create_task(store.commit(key("a"), epoch=1, version=1, state=b"new"))
    await queued()
    for _ in range(100):
        assert await states(store, "a") == [b"kept"]
    assert len(await store.list("t")) == 1
    assert not commit.done()
    other.execute("ROLLBACK")
    assert await commit == 2
    other.close()
    await store.close()


async def test_a_lock_that_stays_refuses_writes_until_it_goes(
    sqlite: SQLiteStore, other: sqlite3.Connection
) -> None:
    await create(sqlite, "a")
    other.execute("BEGIN IMMEDIATE")
    for call in (
        sqlite.commit(key("a"), epoch=1, version=1, state=b"new"),
        sqlite.hydrate(key("a")),
        sqlite.delete(key("a")),
        sqlite.ping(),
    ):
        with pytest.raises(StoreUnavailable, match="locked by another program") as refused:
            await call
        assert refused.value.metadata == {"sqlite": "SQLITE_BUSY"}
    assert await states(sqlite, "a") == [b"kept"]
    other.execute("ROLLBACK")
    assert await sqlite.commit(key("a"), epoch=1, version=1, state=b"new") == 2
    assert (await sqlite.hydrate(key("a"))).epoch == 2
    await sqlite.ping()


async def test_a_full_disk_refuses_what_does_not_fit_until_there_is_room(
    sqlite: SQLiteStore,
) -> None:
    await create(sqlite, "a", "b")
    await limit_pages(sqlite, 0)
    with pytest.raises(StoreUnavailable, match="disk is full"):
        await sqlite.commit(key("a"), epoch=1, version=1, state=FAT)
    assert await states(sqlite, "a", "b") == [b"kept", b"kept"]
    assert await sqlite.commit(key("b"), epoch=1, version=1, state=b"thin") == 2
    await limit_pages(sqlite, 1000)
    assert await sqlite.commit(key("a"), epoch=1, version=1, state=FAT) == 2
    assert await states(sqlite, "a", "b") == [FAT, b"thin"]


async def test_a_fault_undoes_its_whole_group_and_answers_all_of_it(
    sqlite: SQLiteStore, gate: Gate
) -> None:
    """Also who was to be refused anyway: the second commit lost to the first, which is undone."""
    await create(sqlite, "a", "b")
    await limit_pages(sqlite, 0)
    holding = asyncio.create_task(sqlite.write(gate))
    await gate.entered()
    group = [
        asyncio.create_task(sqlite.commit(key(id), epoch=1, version=1, state=state))
        for id, state in [("a", b"first"), ("a", b"second"), ("b", FAT)]
    ]
    await queued()
    gate.open()
    outcomes = await asyncio.gather(*group, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 3
    assert len({id(outcome) for outcome in outcomes}) == 3
    assert await states(sqlite, "a", "b") == [b"kept", b"kept"]
    assert await sqlite.commit(key("a"), epoch=1, version=1, state=b"second") == 2
    await holding


async def test_a_failing_disk_refuses_writes_until_it_works_again(
    sqlite: SQLiteStore, path: Path
) -> None:
    await create(sqlite, "a", "b")
    with no_file_grows_beyond(path.with_name("agents.db-wal").stat().st_size):
        with pytest.raises(StoreUnavailable, match="disk failed") as refused:
            await sqlite.commit(key("a"), epoch=1, version=1, state=FAT)
        assert refused.value.metadata == {"sqlite": "SQLITE_IOERR_WRITE"}
        assert await states(sqlite, "a", "b") == [b"kept", b"kept"]
    assert await sqlite.commit(key("a"), epoch=1, version=1, state=FAT) == 2
    assert (await sqlite.hydrate(key("b"))).epoch == 2
    assert await states(sqlite, "a", "b") == [FAT, b"kept"]


async def test_a_file_that_lost_its_name_takes_no_more_writes(
    sqlite: SQLiteStore, path: Path
) -> None:
    await create(sqlite, "a")
    elsewhere = path.with_name("elsewhere")
    os.rename(path, elsewhere)
    for call in (
        sqlite.commit(key("a"), epoch=1, version=1, state=b"lost"),
        sqlite.read(key("a")),
        sqlite.ping(),
    ):
        with pytest.raises(StoreUnavailable, match="moved, deleted or replaced"):
            await call
    write(path, b"")
    with pytest.raises(StoreUnavailable, match="moved, deleted or replaced"):
        await sqlite.ping()
    os.rename(elsewhere, path)
    await sqlite.ping()
    assert await sqlite.commit(key("a"), epoch=1, version=1, state=b"new") == 2


async def test_a_damaged_page_spoils_what_is_on_it_and_nothing_else(path: Path) -> None:
    store = SQLiteStore(str(path))
    await store.open()
    await create(store, "a", "b", "c")
    for id in "abc":
        await store.commit(key(id), epoch=1, version=1, state=FAT)
    place = await store.query(lambda c: first_page_of(c, "agents"))
    await store.close()
    intact = damage(path, place)

    await store.open()
    for call in (store.read(key("a")), store.hydrate(key("a"))):
        with pytest.raises(StoreUnavailable, match="damaged"):
            await call
    await store.ping()
    await store.close()

    write(path, intact)
    await store.open()
    assert await states(store, "a") == [FAT]
    await store.close()


async def test_a_lost_table_is_a_fault_and_not_a_crash(
    sqlite: SQLiteStore, other: sqlite3.Connection
) -> None:
    await create(sqlite, "a")
    other.execute("ALTER TABLE agents RENAME TO hidden")
    with pytest.raises(StoreUnavailable, match="cannot be used"):
        await sqlite.hydrate(key("a"))
    with pytest.raises(StoreUnavailable, match="cannot be used"):
        await sqlite.read(key("a"))
    other.execute("ALTER TABLE hidden RENAME TO agents")
    assert (await sqlite.hydrate(key("a"))).epoch == 2


async def test_the_words_of_a_fault_hold_no_data_and_no_path(
    sqlite: SQLiteStore, other: sqlite3.Connection, path: Path
) -> None:
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable) as refused:
        await sqlite.hydrate(key("a-private-name"))
    told = f"{refused.value} {refused.value.metadata}"
    assert "a-private-name" not in told
    assert str(path.parent) not in told


async def limit_pages(store: SQLiteStore, more: int) -> None:
    """Let the database grow by so many pages and no further: as a disk of that size would."""

    def limit(connection: sqlite3.Connection) -> None:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + more}").fetchone()

    await store.write(limit)


@contextmanager
def no_file_grows_beyond(size: int) -> Iterator[None]:
    """Make the kernel refuse this process writes beyond `size` bytes of any file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def first_page_of(connection: sqlite3.Connection, table: str) -> int:
    """The offset in bytes of a table's root page."""
    (root,) = connection.execute(
        "SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)
    ).fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    return int((root - 1) * size)


def damage(path: Path, place: int) -> bytes:
    """Overwrite part of a page; return the file as it was."""
    intact = path.read_bytes()
    write(path, intact[:place] + b"\xff" * 512 + intact[place + 512 :])
    return intact


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
