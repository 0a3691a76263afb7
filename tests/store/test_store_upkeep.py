"""Looking after a store: what is exported is imported whole, elsewhere too; what is wrong is found.

Owns a store that holds something of everything, and what is to be found again of it.
"""

from __future__ import annotations

import io
import json
import os
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from store_kit import key

from innkeeper_server.errors import AgentDeleted, StoreUnavailable
from innkeeper_server.store import (
    Alarm,
    Chunk,
    Followup,
    Hydrated,
    Outcome,
    Settled,
    SQLiteStore,
    Store,
    open_store,
)
from innkeeper_server.store.upkeep import (
    CHECKS,
    TABLES,
    ArchiveFault,
    export_to,
    import_from,
    inspect,
    upkeep_of,
)
from postgres_kit import Postgres

A, NEW, GONE, OTHER = key("a"), key("é\U0001f600"), key("gone"), key("a", tenant="u", type="other")
LATER = 4_000_000_000.0
MakeUrl = Callable[[str], Awaitable[str]]


@pytest.fixture
def make_url(request: pytest.FixtureRequest, tmp_path: Path) -> MakeUrl:
    """An empty store of a kind, by its URL."""
    made: list[str] = []

    async def make(kind: str) -> str:
        made.append(kind)
        if kind == "sqlite":
            return f"sqlite:///{tmp_path}/{len(made)}.db"
        server: Postgres = request.getfixturevalue("postgres")
        return server.url(await server.schema())

    return make


@pytest.fixture(params=["sqlite", "postgresql"])
async def url(request: pytest.FixtureRequest, make_url: MakeUrl) -> str:
    return await make_url(request.param)


def quiet(what: str, done: int, total: int) -> None:
    """Progress that nobody looks at."""


def left(id: str, at: Any = A, **more: Any) -> Followup:
    return Followup(id, at, b"message " + id.encode(), accepted_at=100.5, **more)


async def fill(store: Store) -> None:
    """Something of everything."""
    for at in (A, NEW, GONE, OTHER):
        await store.hydrate(at)
    said = Chunk("turn", 1, 1, 3, b"\x00events", ended=True)
    alarm = Alarm(A, "wake", LATER, 60.0, b"ring")
    outcome = Outcome(A, "key", b"print", "turn", b"\xff")
    await store.commit(
        A, epoch=1, version=0, state=b"", settled=outcome, events=said, alarms={"wake": alarm}
    )
    await store.commit(A, epoch=1, version=1, state=b"\x00\xff two")
    await store.commit(OTHER, epoch=1, version=0, state=bytes(9 << 20))  # more than a page
    await store.accept(left("ended"))
    await store.begin("ended")
    await store.settle(Settled("ended", "failed", b"why"))
    await store.accept(left("keyed", idempotency_key="k", fingerprint=b"f", expires_at=LATER))
    await store.begin("keyed")
    await store.accept(left("passive", NEW, passive=True))
    await store.accept(left("unborn", key("unborn")))
    await store.accept(left("of the gone", GONE))
    await store.delete(GONE)


async def read(store: Store) -> dict[str, Any]:
    """What the host finds in it."""
    return {
        "agents": [await store.read(at) for at in (A, NEW, GONE, OTHER)],
        "list": [await store.list("t"), await store.list("u")],
        "followups": [
            await store.followup(id)
            for id in ("ended", "keyed", "passive", "unborn", "of the gone", "none")
        ],
        "pending": await store.pending(),
        "passive": await store.passive(NEW),
        "outcome": await store.outcome(A, "key"),
        "events": await store.events(A),
        "alarms": await store.alarms(A),
    }


async def filled(url: str) -> dict[str, Any]:
    """Fill a store, and tell what is in it."""
    store = open_store(url)
    await store.open()
    await fill(store)
    found = await read(store)
    await store.close()
    return found


async def exported(url: str) -> bytes:
    file = io.BytesIO()
    await export_to(upkeep_of(url), file, quiet)
    return file.getvalue()


@pytest.mark.parametrize("there", ["sqlite", "postgresql"])
@pytest.mark.parametrize("here", ["sqlite", "postgresql"])
async def test_everything_moves_from_one_store_to_another(
    here: str, there: str, make_url: MakeUrl
) -> None:
    old, new = await make_url(here), await make_url(there)
    before = await filled(old)
    archive = await exported(old)
    progress: list[tuple[str, int, int]] = []
    counts = await import_from(
        upkeep_of(new), io.BytesIO(archive), lambda *step: progress.append(step)
    )
    assert counts == {"agents": 4, "followups": 5, "outcomes": 1, "events": 1, "alarms": 1}
    # All but the time of the export; a store that was imported is exported as the same lines.
    assert (await exported(new)).splitlines()[1:-1] == archive.splitlines()[1:-1]
    last = {what: (done, total) for what, done, total in progress}
    assert last == {what: (count, count) for what, count in counts.items()}

    store = open_store(new)
    await store.open()
    assert await read(store) == before
    # And life goes on there.
    assert await store.hydrate(A) == Hydrated(2, 2, b"\x00\xff two", before["agents"][0].created_at)
    with pytest.raises(AgentDeleted):
        await store.hydrate(GONE)
    assert (await store.accept(left("again", idempotency_key="k"))).id == "keyed"
    newest = max(each.seq for each in before["followups"] if each)
    assert (await store.accept(left("next"))).seq > newest
    await store.append(A, epoch=2, events=Chunk("more", 2, 1, 1, b"e", ended=True))
    assert await store.newest(A) == 4
    rung = await store.fire(before["alarms"][0], "rung", following=None)
    assert rung is not None
    assert rung.message == b"ring"
    await store.close()
    _, findings = await inspect(upkeep_of(new), quiet)
    assert findings == []


async def test_a_store_is_exported_while_a_host_has_it_open(url: str) -> None:
    store = open_store(url)
    await store.open()
    await fill(store)
    lines = (await exported(url)).splitlines()
    assert len(lines) == 1 + 12 + 1
    await store.hydrate(A)  # nothing holds it up
    await store.close()


async def test_an_import_needs_an_empty_store_for_itself(url: str) -> None:
    await filled(url)
    archive = await exported(url)
    with pytest.raises(StoreUnavailable, match="is not empty"):
        await import_from(upkeep_of(url), io.BytesIO(archive), quiet)
    assert (await exported(url)).splitlines()[1:-1] == archive.splitlines()[1:-1]


async def test_an_import_leaves_a_file_alone_that_a_host_has_open(
    sqlite: SQLiteStore, tmp_path: Path
) -> None:
    await filled(f"sqlite:///{tmp_path}/other.db")
    archive = await exported(f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(StoreUnavailable, match="another host has it open"):
        await import_from(upkeep_of(f"sqlite:///{sqlite.path}"), io.BytesIO(archive), quiet)


def changed(line: int, **change: Any) -> Callable[[list[bytes]], list[bytes]]:
    """An archive with other values in a line."""

    def change_it(lines: list[bytes]) -> list[bytes]:
        value = {**json.loads(lines[line - 1]), **change}
        value = {name: each for name, each in value.items() if each is not ...}
        return [*lines[: line - 1], json.dumps(value).encode(), *lines[line:]]

    return change_it


WRONG: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str]] = {
    "nothing": (lambda lines: [], "breaks off after line 0"),
    "no JSON": (lambda lines: [b"PK\x03\x04", *lines], "line 1: is no JSON"),
    "another file": (changed(1, archive=...), "first line"),
    "another format": (changed(1, format=2), "has format 2; this Innkeeper reads 1"),
    "no counts": (changed(1, rows=3), "line 1: it must say how many"),
    "odd counts": (changed(1, rows={"agents": True}), "line 1: it must say how many"),
    "too few rows": (lambda lines: lines[:2] + lines[3:], "line 5: a row of agents was to come"),
    "a column less": (changed(2, epoch=...), "line 2: wrong columns of agents: epoch"),
    "a column more": (changed(2, extra=1), "line 2: wrong columns of agents: extra"),
    "no number": (changed(2, epoch="1"), "line 2: agents.epoch: must be a whole number"),
    "no flag": (changed(2, deleted=0), "line 2: agents.deleted: must be true or false"),
    "no bytes": (changed(2, state="%"), "line 2: agents.state: "),
    "null": (changed(2, id=None), "line 2: agents.id: must be text"),
    "no time": (changed(2, created_at="x"), "line 2: agents.created_at: must be a number"),
    "another value": (changed(2, epoch=7), "line 14: the file was changed"),
    "twice the same": (lambda lines: [*lines[:2], lines[1], *lines[3:]], "rows that agents cannot"),
    "something behind": (lambda lines: [*lines, b"{}"], "line 15: nothing may follow"),
}


@pytest.mark.parametrize("how", WRONG)
async def test_a_wrong_file_is_refused_by_its_line_and_leaves_nothing(
    how: str, url: str, tmp_path: Path
) -> None:
    await filled(f"sqlite:///{tmp_path}/other.db")
    change, words = WRONG[how]
    lines = change((await exported(f"sqlite:///{tmp_path}/other.db")).splitlines())
    file = io.BytesIO(b"".join(line + b"\n" for line in lines))
    upkeep = upkeep_of(url)
    await upkeep.migrate()
    with pytest.raises(ArchiveFault, match=words):
        await import_from(upkeep, file, quiet)
    counts, _ = await inspect(upkeep, quiet)
    assert set(counts.values()) == {0}


async def test_a_file_that_was_cut_anywhere_is_refused(url: str, tmp_path: Path) -> None:
    await filled(f"sqlite:///{tmp_path}/other.db")
    archive = await exported(f"sqlite:///{tmp_path}/other.db")
    lines = archive.splitlines(keepends=True)
    upkeep = upkeep_of(url)
    for count in range(len(lines)):
        with pytest.raises(ArchiveFault, match=f"it breaks off after line {count}"):
            await import_from(upkeep, io.BytesIO(b"".join(lines[:count])), quiet)
    await import_from(upkeep, io.BytesIO(archive), quiet)


# One fault for each check, in the words of SQL that both dialects have.
FAULTS = {
    "agents with an epoch below 1 or a version below 0": "UPDATE agents SET epoch = 0",
    "agents with commits, and without a state": "UPDATE agents SET state = NULL",
    "follow-ups in a state that there is not": (
        "UPDATE followups SET state = 'lost' WHERE receipt = 'ended'"
    ),
    "follow-ups of deleted agents that have not ended": (
        "UPDATE followups SET id = 'gone' WHERE receipt = 'passive'"
    ),
    "alarms of agents that are deleted, or never lived": "UPDATE alarms SET id = 'nobody'",
    "events of agents that are deleted, or never lived, or were not there yet": (
        "UPDATE events SET epoch = 2"
    ),
    "events that stand in the place of others": (
        "INSERT INTO events (tenant, type, id, position, turn, epoch, first, last, ended, "
        "logged_at, data) SELECT tenant, type, id, position + 1, turn, epoch, first, last, ended, "
        "logged_at, data FROM events"
    ),
}


async def run_sql(url: str, sql: str) -> None:
    """What only a fault would do."""
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as file:
            file.executescript(sql)
        file.close()
        return
    connection = await asyncpg.connect(url)
    await connection.execute(sql)
    await connection.close()


@pytest.mark.parametrize("what", CHECKS)
async def test_each_fault_is_found_and_a_well_store_has_none(what: str, url: str) -> None:
    await filled(url)
    steps: list[tuple[str, int, int]] = []
    counts, findings = await inspect(upkeep_of(url), lambda *step: steps.append(step))
    assert (counts["agents"], findings) == (4, [])
    assert [done for _, done, _ in steps] == list(range(1, len(CHECKS) + 2))
    assert {total for *_, total in steps} == {len(CHECKS) + 1}
    await run_sql(url, FAULTS[what])
    _, findings = await inspect(upkeep_of(url), quiet)
    assert what in [finding.what for finding in findings]


async def test_a_file_whose_parts_disagree_is_found_out(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/agents.db"
    await filled(url)
    await run_sql(
        url,
        "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = replace(sql, 'deleted = 0', "
        "'deleted = 1') WHERE name = 'living_agents'",
    )
    _, findings = await inspect(upkeep_of(url), quiet)
    assert "living_agents" in findings[0].what


async def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    await filled(f"sqlite:///{path}")
    data = bytearray(path.read_bytes())
    data[4096:8192] = bytes([0xA5]) * 4096
    path.write_bytes(data)
    for ask in (inspect, export_to):
        arguments = () if ask is inspect else (io.BytesIO(),)
        with pytest.raises(StoreUnavailable, match="the database file is damaged"):
            await ask(upkeep_of(f"sqlite:///{path}"), *arguments, quiet)  # type: ignore[operator]


async def test_what_is_not_there_or_not_up_to_date_is_said(url: str) -> None:
    upkeep = upkeep_of(url)
    for ask in (inspect(upkeep, quiet), export_to(upkeep, io.BytesIO(), quiet)):
        with pytest.raises(StoreUnavailable, match="no host has used it yet"):
            await ask
    assert await upkeep.migrate() == (0, upkeep.known)
    assert await upkeep.migrate() == (upkeep.known, upkeep.known)
    await run_sql(url, f"UPDATE schema_version SET version = {upkeep.known - 1}")
    with pytest.raises(StoreUnavailable, match="`innkeeper store migrate` brings it there"):
        await inspect(upkeep, quiet)
    await run_sql(url, f"UPDATE schema_version SET version = {upkeep.known + 1}")
    with pytest.raises(StoreUnavailable, match="made by a newer Innkeeper"):
        await inspect(upkeep, quiet)
    with pytest.raises(StoreUnavailable, match="made by a newer Innkeeper"):
        await upkeep.migrate()


async def test_looking_makes_no_file(tmp_path: Path) -> None:
    upkeep = upkeep_of(f"sqlite:///{tmp_path}/none.db")
    with pytest.raises(StoreUnavailable, match="no host has used it yet"):
        await inspect(upkeep, quiet)
    assert os.listdir(tmp_path) == []


async def test_every_column_of_every_table_is_carried(url: str) -> None:
    """So a migration that adds one is not forgotten here."""
    await filled(url)
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as file:
            sql = "SELECT m.name, p.name FROM sqlite_master AS m, pragma_table_info(m.name) AS p"
            found = file.execute(sql + " WHERE m.type = 'table'").fetchall()
        file.close()
    else:
        connection = await asyncpg.connect(url)
        sql = "SELECT table_name, column_name FROM information_schema.columns"
        found = await connection.fetch(sql + " WHERE table_schema = current_schema()")
        await connection.close()
    of_a_place = {"schema_version", "writers", "sqlite_sequence"}
    columns = {(table, column) for table, column in found if table not in of_a_place}
    assert columns == {(table.name, name) for table in TABLES for name in table.names}


def test_a_store_that_ends_with_its_host_has_nothing_to_look_after() -> None:
    with pytest.raises(ValueError, match="memory: keeps nothing"):
        upkeep_of("memory:")


async def test_a_database_that_is_away_is_said_without_its_password(tmp_path: Path) -> None:
    upkeep = upkeep_of(f"postgresql://me:secret@/x?host={tmp_path}")
    with pytest.raises(StoreUnavailable, match="cannot be reached") as refused:
        await upkeep.version()
    assert "secret" not in str(refused.value)
