"""The database file: taking it, making it, refusing what cannot be used."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_kit import key

from innkeeper_server.errors import StoreUnavailable
from innkeeper_server.store import SQLiteStore
from innkeeper_server.store.migrate import steps
from innkeeper_server.store.statements import page_query

NOBODY = 65534


async def opened(path: Path) -> SQLiteStore:
    store = SQLiteStore(str(path), busy_timeout=0.05)
    await store.open()
    return store


async def refusal(path: Path) -> str:
    """What open says; also that it leaves the file to others."""
    with pytest.raises(StoreUnavailable) as refused:
        await opened(path)
    message = str(refused.value)
    assert str(path) in message
    return message


async def test_missing_directories_are_made(tmp_path: Path) -> None:
    path = tmp_path / "not" / "yet" / "agents.db"
    store = await opened(path)
    await store.hydrate(key("a"))
    await store.close()
    assert path.is_file()


async def test_only_the_owner_can_read_the_files(path: Path) -> None:
    store = await opened(path)
    await store.hydrate(key("a"))
    files = sorted(path.parent.iterdir())
    assert [file.name for file in files] == [
        "agents.db",
        "agents.db-shm",
        "agents.db-wal",
        "agents.db.lock",
    ]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    await store.close()


async def test_acknowledged_means_flushed_to_the_disk(sqlite: SQLiteStore) -> None:
    def settings(connection: sqlite3.Connection) -> list[object]:
        return [
            connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous")
        ]

    FULL = 2
    assert await sqlite.write(settings) == ["wal", FULL]


async def test_a_second_host_is_refused_by_name_and_harms_nothing(path: Path) -> None:
    first = await opened(path)
    message = await refusal(path)
    assert f"another host has it open (process {os.getpid()})" in message
    assert (await first.hydrate(key("a"))).epoch == 1
    await first.close()
    second = await opened(path)
    assert (await second.hydrate(key("a"))).epoch == 2
    await second.close()


async def test_two_names_of_one_file_are_one_file(path: Path) -> None:
    first = await opened(path)
    link = path.with_name("link.db")
    link.symlink_to(path)
    with pytest.raises(StoreUnavailable, match="another host has it open"):
        await opened(link)
    await first.close()


async def test_a_store_opens_once(sqlite: SQLiteStore) -> None:
    with pytest.raises(RuntimeError):
        await sqlite.open()
    await sqlite.ping()


async def test_a_directory_is_no_database(tmp_path: Path) -> None:
    assert "directory" in await refusal(tmp_path)


async def test_a_file_is_no_directory(path: Path) -> None:
    write(path, b"")
    assert "File exists" in await refusal(path / "agents.db")


async def test_something_else_is_no_database(path: Path) -> None:
    letter = b"a letter to a friend " * 1000
    write(path, letter)
    assert "damaged, or is not a database" in await refusal(path)
    assert contents(path) == letter


async def test_another_programs_database_is_left_alone(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE bookmarks (url TEXT)")
    other.close()
    before = contents(path)
    assert "another program's" in await refusal(path)
    assert contents(path) == before


async def test_a_newer_schema_is_refused(path: Path) -> None:
    await (await opened(path)).close()
    other = sqlite3.connect(path)
    other.execute("UPDATE schema_version SET version = 999")
    other.commit()
    other.close()
    assert "newer Innkeeper" in await refusal(path)


async def test_a_migration_that_fails_leaves_nothing_behind(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_ = steps("sqlite")
    broken = [first, first._replace(number=2, sql="CREATE TABLE extra (n); SELECT no_such();")]
    monkeypatch.setattr("innkeeper_server.store.migrate.steps", lambda dialect: broken)
    await refusal(path)
    monkeypatch.undo()
    store = await opened(path)
    tables = await store.query(
        lambda c: c.execute("SELECT count(*) FROM sqlite_master WHERE name = 'extra'").fetchone()
    )
    assert tables == (0,)
    await store.close()


async def test_an_older_schema_is_brought_up_to_date(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(path)
    await store.hydrate(key("a"))
    await store.close()
    known = steps("sqlite")
    newer = known[-1]._replace(number=len(known) + 1, sql="CREATE TABLE extra (n);")
    monkeypatch.setattr("innkeeper_server.store.migrate.steps", lambda dialect: [*known, newer])
    store = await opened(path)
    version = await store.query(
        lambda c: c.execute("SELECT version FROM schema_version").fetchall()
    )
    assert version == [(newer.number,)]
    assert (await store.hydrate(key("a"))).epoch == 2
    await store.close()


async def test_a_database_locked_by_another_program_cannot_be_opened(path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    assert "locked by another program" in await refusal(path)
    other.close()
    await (await opened(path)).close()


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def contents(path: Path) -> bytes:
    return path.read_bytes()


@pytest.fixture
def without_rights() -> Iterator[None]:
    """Be somebody for whom permissions count: to root nothing is read-only."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    yield
    os.seteuid(user)


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that anybody can enter."""
    folder = Path(tempfile.mkdtemp(prefix="innkeeper-store-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


async def test_a_read_only_directory_is_named(public: Path, without_rights: None) -> None:
    folder = public / "closed"
    folder.mkdir()
    folder.chmod(0o555)
    assert "Permission denied" in await refusal(folder / "agents.db")
    assert "Permission denied" in await refusal(folder / "deeper" / "agents.db")


async def test_a_read_only_file_is_named(public: Path, without_rights: None) -> None:
    path = public / "agents.db"
    await (await opened(path)).close()
    path.chmod(0o444)
    message = await refusal(path)
    assert "read-only" in message
    path.chmod(0o600)
    await (await opened(path)).close()


@pytest.mark.parametrize(
    ("asked", "walked"),
    [
        (("t", "", "", None), "(tenant=?)"),
        (("t", "", "", ("x", "m")), "(tenant=? AND (type,id)>(?,?))"),
        (("t", "x", "", None), "(tenant=? AND type=?)"),
        (("t", "x", "", ("x", "m")), "(tenant=? AND type=? AND id>?)"),
        (("t", "x", "m", None), "(tenant=? AND type=? AND id>? AND id<?)"),
        (("t", "x", "m", ("x", "ma")), "(tenant=? AND type=? AND id>? AND id<?)"),
    ],
    ids=str,
)
async def test_a_page_of_a_list_walks_only_living_agents_in_its_range(
    sqlite: SQLiteStore, asked: tuple[str, str, str, tuple[str, str] | None], walked: str
) -> None:
    sql, values = page_query(*asked)
    plan = await sqlite.query(
        lambda c: c.execute(f"EXPLAIN QUERY PLAN {sql}", (*values, 10)).fetchall()
    )
    assert [row[-1] for row in plan] == [f"SEARCH agents USING INDEX living_agents {walked}"]
