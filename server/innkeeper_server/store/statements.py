"""The SQL on the table of agents.

Owns what each call of the store does inside a transaction. Every function takes the connection
first, so that a later transaction can be put together from several of them.
"""

from __future__ import annotations

import sqlite3

from innkeeper_server.identity import AgentKey
from innkeeper_server.store import alarms as bells
from innkeeper_server.store import events as log
from innkeeper_server.store import followups, outcomes
from innkeeper_server.store.faults import Unusable
from innkeeper_server.store.fencing import check_epoch, check_living, check_writer, stale_outcome
from innkeeper_server.store.protocol import (
    AlarmChanges,
    Chunk,
    Hydrated,
    Outcome,
    Page,
    Record,
    Settled,
)

__all__ = [
    "append",
    "check",
    "check_writable",
    "commit",
    "delete",
    "hydrate",
    "page",
    "page_query",
    "read",
]

_ONE = "WHERE tenant = ? AND type = ? AND id = ?"


def hydrate(
    connection: sqlite3.Connection, key: AgentKey, *, interrupted: bytes, kept: int, now: float
) -> Hydrated:
    row = connection.execute(
        f"SELECT epoch, version, deleted, state, created_at FROM agents {_ONE}", key
    ).fetchone()
    if row is None:
        return _create(connection, key, now)
    epoch, version, deleted, state, created_at = row
    check_living(key, deleted=bool(deleted))
    connection.execute(f"UPDATE agents SET epoch = epoch + 1 {_ONE}", key)
    if interrupted:
        log.end_broken_off(connection, key, interrupted, kept=kept, now=now)
    passive = followups.has_passive(connection, key)
    return Hydrated(epoch + 1, version, state, created_at, passive)


def _create(connection: sqlite3.Connection, key: AgentKey, now: float) -> Hydrated:
    connection.execute(
        "INSERT INTO agents (tenant, type, id, epoch, version, deleted, created_at, updated_at) "
        "VALUES (?, ?, ?, 1, 0, 0, ?, ?)",
        (*key, now, now),
    )
    return Hydrated(1, 0, None, now, followups.has_passive(connection, key))


def commit(
    connection: sqlite3.Connection,
    key: AgentKey,
    *,
    epoch: int,
    version: int,
    state: bytes | None,
    settled: Settled | Outcome | None = None,
    events: Chunk | None = None,
    alarms: AlarmChanges | None = None,
    kept: int,
    now: float,
) -> int:
    if isinstance(settled, Settled):
        followups.settle_or_fail(connection, key, settled, now=now)
    elif settled is not None and not outcomes.keep(connection, settled, now=now):
        raise stale_outcome(key)
    if events is not None:
        log.append(connection, key, events, kept=kept, now=now)
    if alarms:
        bells.change(connection, key, alarms)
    if state is None:
        _check_writer(connection, key, epoch, version)
        return version
    done = connection.execute(
        "UPDATE agents SET state = ?, version = version + 1, updated_at = ? "
        f"{_ONE} AND epoch = ? AND version = ? AND deleted = 0",
        (state, now, *key, epoch, version),
    )
    if done.rowcount == 0:
        _check_writer(connection, key, epoch, version)
        raise AssertionError("a commit that nothing forbids was not made")
    return version + 1


def append(
    connection: sqlite3.Connection,
    key: AgentKey,
    *,
    epoch: int,
    events: Chunk,
    kept: int,
    now: float,
) -> None:
    sql = f"SELECT epoch, version, deleted FROM agents {_ONE}"
    check_epoch(key, connection.execute(sql, key).fetchone(), epoch=epoch)
    log.append(connection, key, events, kept=kept, now=now)


def _check_writer(connection: sqlite3.Connection, key: AgentKey, epoch: int, version: int) -> None:
    sql = f"SELECT epoch, version, deleted FROM agents {_ONE}"
    check_writer(key, connection.execute(sql, key).fetchone(), epoch=epoch, version=version)


def delete(connection: sqlite3.Connection, key: AgentKey, *, now: float) -> bool:
    followups.cancel_all(connection, key, now=now)
    outcomes.forget(connection, key)
    log.forget(connection, key)
    bells.forget(connection, key)
    done = connection.execute(
        "UPDATE agents SET deleted = 1, state = NULL, epoch = epoch + 1, updated_at = ? "
        f"{_ONE} AND deleted = 0",
        (now, *key),
    )
    return done.rowcount == 1


def read(connection: sqlite3.Connection, key: AgentKey) -> Record | None:
    row = connection.execute(
        f"SELECT epoch, version, state, created_at, updated_at FROM agents {_ONE} AND deleted = 0",
        key,
    ).fetchone()
    return None if row is None else Record(key, *row)


def page(
    connection: sqlite3.Connection,
    tenant: str,
    *,
    type: str,
    prefix: str,
    after: tuple[str, str] | None,
    limit: int,
) -> Page:
    if type and after is not None and after[0] != type:
        if after[0] > type:
            return []
        after = None
    sql, values = page_query(tenant, type, prefix, after)
    rows = connection.execute(sql, (*values, limit)).fetchall()
    return [
        Record(AgentKey(tenant, type, id), epoch, version, None, created_at, updated_at)
        for type, id, epoch, version, created_at, updated_at in rows
    ]


def check(connection: sqlite3.Connection) -> None:
    """Raise if the database cannot be read."""
    if connection.execute("SELECT version FROM schema_version").fetchone() is None:
        raise Unusable("the database has lost its schema")


def check_writable(connection: sqlite3.Connection) -> None:
    """Raise if the database cannot be written. Changes nothing, so nothing is flushed.

    To begin a transaction proves too little: SQLite begins one in a read-only file too.
    """
    connection.execute("UPDATE schema_version SET version = version WHERE FALSE")


def page_query(
    tenant: str, type: str, prefix: str, after: tuple[str, str] | None
) -> tuple[str, list[str]]:
    """The query for a page, and its values but for the limit.

    It walks the index between two places, by comparison only: so every character stands for
    itself, and a page costs as much as it holds. `after` is of `type`, if there is a type.
    """
    bounds: list[tuple[str, tuple[str, ...]]] = [("tenant = ?", (tenant,))]
    if type:
        bounds.append(("type = ?", (type,)))
    elif after is not None:
        bounds.append(("(type, id) > (?, ?)", after))
    if type and after is not None and after[1] >= prefix:
        bounds.append(("id > ?", after[1:]))
    elif prefix:
        bounds.append(("id >= ?", (prefix,)))
    if (end := _end_of(prefix)) is not None:
        bounds.append(("id < ?", (end,)))
    where = " AND ".join(term for term, _ in bounds)
    sql = (
        "SELECT type, id, epoch, version, created_at, updated_at FROM agents "
        f"WHERE {where} AND deleted = 0 ORDER BY type, id LIMIT ?"
    )
    return sql, [value for _, values in bounds for value in values]


def _end_of(prefix: str) -> str | None:
    """The least text above everything that begins with the prefix; None if there is none."""
    for length in range(len(prefix), 0, -1):
        point = ord(prefix[length - 1])
        if point < 0x10FFFF:
            # The surrogates are no characters: U+E000 comes next after U+D7FF.
            following = 0xE000 if point == 0xD7FF else point + 1
            return prefix[: length - 1] + chr(following)
    return None
