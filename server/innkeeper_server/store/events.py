"""The SQL on the log of events.

Owns what each call of the store does with it inside a transaction, like `statements.py`. A
chunk's position counts the events up to its end, so the log is cut to the newest ones, and a reader
finds what is missing, without counting rows.
"""

from __future__ import annotations

import sqlite3

from innkeeper_server.identity import AgentKey
from innkeeper_server.store.protocol import Chunk

__all__ = ["append", "end_broken_off", "events", "forget", "newest", "place", "prune"]

_AGENT = "tenant = ? AND type = ? AND id = ?"
_COLUMNS = "turn, epoch, first, last, data, ended, position"
_TRIM_STEP = 16  # the log may be longer than it should by one part in so many


def append(
    connection: sqlite3.Connection, key: AgentKey, chunk: Chunk, *, kept: int, now: float
) -> None:
    before = newest(connection, key)
    position = before + chunk.last - chunk.first + 1
    connection.execute(
        "INSERT INTO events (tenant, type, id, turn, epoch, first, last, ended, position, "
        "logged_at, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *key,
            chunk.turn_id,
            chunk.epoch,
            chunk.first,
            chunk.last,
            chunk.ended,
            position,
            now,
            chunk.data,
        ),
    )
    step = max(kept // _TRIM_STEP, 1)
    if position > kept and position // step != before // step:
        oldest = position - kept
        connection.execute(f"DELETE FROM events WHERE {_AGENT} AND position <= ?", (*key, oldest))


def newest(connection: sqlite3.Connection, key: AgentKey) -> int:
    row = connection.execute(f"SELECT max(position) FROM events WHERE {_AGENT}", key).fetchone()
    return row[0] or 0


def end_broken_off(
    connection: sqlite3.Connection, key: AgentKey, data: bytes, *, kept: int, now: float
) -> None:
    """The last event of a turn whose host ended before it did."""
    row = connection.execute(
        f"SELECT turn, epoch, last, ended FROM events WHERE {_AGENT} "
        "ORDER BY position DESC LIMIT 1",
        key,
    ).fetchone()
    if row is not None and not row[3]:
        turn, epoch, last, _ = row
        chunk = Chunk(turn, epoch, last + 1, last + 1, data, ended=True)
        append(connection, key, chunk, kept=kept, now=now)


def events(
    connection: sqlite3.Connection, key: AgentKey, *, turn_id: str, after: int, limit: int
) -> list[Chunk]:
    of_turn = "AND turn = ? " if turn_id else ""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM events WHERE {_AGENT} {of_turn}AND position > ? "
        "ORDER BY position LIMIT ?",
        (*key, *((turn_id,) if turn_id else ()), after, limit),
    )
    return [
        Chunk(turn, epoch, first, last, data, bool(ended), position)
        for turn, epoch, first, last, data, ended, position in rows
    ]


def place(connection: sqlite3.Connection, key: AgentKey, turn_id: str, seq: int) -> int | None:
    row = connection.execute(
        "SELECT position - (last - ?) FROM events "
        f"WHERE {_AGENT} AND turn = ? AND first <= ? AND last >= ?",
        (seq, *key, turn_id, seq, seq),
    ).fetchone()
    return None if row is None else int(row[0])


def forget(connection: sqlite3.Connection, key: AgentKey) -> None:
    connection.execute(f"DELETE FROM events WHERE {_AGENT}", key)


def prune(connection: sqlite3.Connection, *, before: float, limit: int) -> int:
    done = connection.execute(
        "DELETE FROM events WHERE rowid IN (SELECT rowid FROM events AS old WHERE logged_at < ? "
        "AND EXISTS (SELECT 1 FROM events WHERE tenant = old.tenant AND type = old.type "
        "AND id = old.id AND position > old.position) ORDER BY logged_at LIMIT ?)",
        (before, limit),
    )
    return done.rowcount
