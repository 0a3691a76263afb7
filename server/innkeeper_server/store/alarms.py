"""The SQL on the table of alarms.

Owns what each call of the store does with them inside a transaction, like `statements.py`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

from innkeeper_server.identity import AgentKey
from innkeeper_server.store import followups
from innkeeper_server.store.fencing import check_alarms
from innkeeper_server.store.protocol import Alarm, AlarmChanges, Followup

__all__ = ["alarms", "change", "due", "fire", "forget"]

_AGENT = "tenant = ? AND type = ? AND id = ?"
_COLUMNS = "tenant, type, id, name, due, every, message"


def change(connection: sqlite3.Connection, key: AgentKey, changes: AlarmChanges) -> None:
    """As part of a commit."""
    for name, alarm in changes.items():
        if alarm is None:
            connection.execute(f"DELETE FROM alarms WHERE {_AGENT} AND name = ?", (*key, name))
        else:
            connection.execute(
                f"INSERT INTO alarms ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (tenant, type, id, name) DO UPDATE "
                "SET due = excluded.due, every = excluded.every, message = excluded.message",
                (*key, name, alarm.due, alarm.every, alarm.message),
            )
    (count,) = connection.execute(f"SELECT count(*) FROM alarms WHERE {_AGENT}", key).fetchone()
    check_alarms(key, count)


def alarms(connection: sqlite3.Connection, key: AgentKey) -> list[Alarm]:
    sql = f"SELECT {_COLUMNS} FROM alarms WHERE {_AGENT} ORDER BY due, name"
    return [_read(row) for row in connection.execute(sql, key)]


def due(
    connection: sqlite3.Connection, types: Collection[str], *, before: float, limit: int
) -> list[Alarm]:
    marks = ", ".join("?" * len(types))
    sql = (
        f"SELECT {_COLUMNS} FROM alarms WHERE due <= ? AND type IN ({marks}) "
        "ORDER BY due, tenant, type, id, name LIMIT ?"
    )
    return [_read(row) for row in connection.execute(sql, (before, *types, limit))]


def fire(
    connection: sqlite3.Connection, alarm: Alarm, id: str, *, following: float | None, now: float
) -> Followup | None:
    named = (*alarm.key, alarm.name)
    row = connection.execute(
        f"SELECT receipt, message FROM alarms WHERE {_AGENT} AND name = ? AND due = ?",
        (*named, alarm.due),
    ).fetchone()
    if row is None:
        return None
    last, message = row
    if following is None:
        connection.execute(f"DELETE FROM alarms WHERE {_AGENT} AND name = ?", named)
    else:
        connection.execute(
            f"UPDATE alarms SET due = ? WHERE {_AGENT} AND name = ?", (following, *named)
        )
    if followups.is_pending(connection, last):
        return None
    connection.execute(f"UPDATE alarms SET receipt = ? WHERE {_AGENT} AND name = ?", (id, *named))
    return followups.accept(connection, Followup(id, alarm.key, message, accepted_at=now))


def forget(connection: sqlite3.Connection, key: AgentKey) -> None:
    connection.execute(f"DELETE FROM alarms WHERE {_AGENT}", key)


def _read(row: tuple[object, ...]) -> Alarm:
    tenant, type, id, *rest = row
    return Alarm(AgentKey(str(tenant), str(type), str(id)), *rest)  # type: ignore[arg-type]
