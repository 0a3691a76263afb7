"""The SQL on the table of follow-ups.

Owns what each call of the store does with them inside a transaction, like `statements.py`, which
it is put together with.
"""

from __future__ import annotations

import sqlite3
from dataclasses import replace

from innkeeper_server.identity import AgentKey
from innkeeper_server.store.fencing import check_living, stale_followup
from innkeeper_server.store.protocol import Followup, Settled

__all__ = [
    "accept",
    "begin",
    "cancel_all",
    "followup",
    "give_back",
    "has_passive",
    "is_pending",
    "passive",
    "pending",
    "prune",
    "settle",
    "settle_or_fail",
]

_COLUMNS = (
    "receipt, tenant, type, id, message, accepted_at, expires_at, passive, seq, attempt, state, "
    "started_at, settled_at, outcome, idempotency_key, fingerprint"
)
_ONE_PENDING = "WHERE receipt = ? AND settled_at IS NULL"


def accept(connection: sqlite3.Connection, followup: Followup) -> Followup:
    row = connection.execute(
        "SELECT deleted FROM agents WHERE tenant = ? AND type = ? AND id = ?", followup.key
    ).fetchone()
    check_living(followup.key, deleted=row is not None and bool(row[0]))
    if followup.idempotency_key:
        row = connection.execute(
            f"SELECT {_COLUMNS} FROM followups "
            "WHERE tenant = ? AND type = ? AND id = ? AND idempotency_key = ?",
            (*followup.key, followup.idempotency_key),
        ).fetchone()
        if row is not None:
            return _read(row)
    done = connection.execute(
        "INSERT INTO followups (receipt, tenant, type, id, passive, attempt, state, accepted_at, "
        "expires_at, message, idempotency_key, fingerprint) "
        "VALUES (?, ?, ?, ?, ?, 0, 'accepted', ?, ?, ?, ?, ?)",
        (
            followup.id,
            *followup.key,
            followup.passive,
            followup.accepted_at,
            followup.expires_at,
            followup.message,
            followup.idempotency_key,
            followup.fingerprint,
        ),
    )
    assert done.lastrowid is not None
    return replace(followup, seq=done.lastrowid)


def begin(connection: sqlite3.Connection, id: str, *, now: float) -> int:
    row = connection.execute(
        f"UPDATE followups SET attempt = attempt + 1, started_at = ? {_ONE_PENDING} "
        "RETURNING attempt",
        (now, id),
    ).fetchone()
    return 0 if row is None else int(row[0])


def give_back(connection: sqlite3.Connection, id: str) -> None:
    connection.execute(
        f"UPDATE followups SET attempt = attempt - 1 {_ONE_PENDING} AND attempt > 0", (id,)
    )


def settle(connection: sqlite3.Connection, settled: Settled, *, now: float) -> bool:
    done = connection.execute(
        f"UPDATE followups SET state = ?, outcome = ?, settled_at = ? {_ONE_PENDING}",
        (settled.state, settled.outcome, now, settled.id),
    )
    return done.rowcount == 1


def settle_or_fail(
    connection: sqlite3.Connection, key: AgentKey, settled: Settled, *, now: float
) -> None:
    """As part of a commit: what has ended already must not have its effect once more."""
    if not settle(connection, settled, now=now):
        raise stale_followup(key)


def cancel_all(connection: sqlite3.Connection, key: AgentKey, *, now: float) -> None:
    connection.execute(
        "UPDATE followups SET state = 'cancelled', settled_at = ? "
        "WHERE tenant = ? AND type = ? AND id = ? AND settled_at IS NULL",
        (now, *key),
    )


def followup(connection: sqlite3.Connection, id: str) -> Followup | None:
    sql = f"SELECT {_COLUMNS} FROM followups WHERE receipt = ?"
    row = connection.execute(sql, (id,)).fetchone()
    return None if row is None else _read(row)


def is_pending(connection: sqlite3.Connection, id: str) -> bool:
    sql = f"SELECT 1 FROM followups {_ONE_PENDING}"
    return connection.execute(sql, (id,)).fetchone() is not None


def pending(connection: sqlite3.Connection, *, after: int, limit: int) -> list[Followup]:
    sql = (
        f"SELECT {_COLUMNS} FROM followups "
        "WHERE passive = 0 AND settled_at IS NULL AND seq > ? ORDER BY seq LIMIT ?"
    )
    return [_read(row) for row in connection.execute(sql, (after, limit))]


def passive(connection: sqlite3.Connection, key: AgentKey, *, limit: int) -> list[Followup]:
    sql = (
        f"SELECT {_COLUMNS} FROM followups WHERE tenant = ? AND type = ? AND id = ? "
        "AND settled_at IS NULL AND passive = 1 ORDER BY seq LIMIT ?"
    )
    return [_read(row) for row in connection.execute(sql, (*key, limit))]


def has_passive(connection: sqlite3.Connection, key: AgentKey) -> bool:
    row = connection.execute(
        "SELECT 1 FROM followups WHERE tenant = ? AND type = ? AND id = ? "
        "AND settled_at IS NULL AND passive = 1 LIMIT 1",
        key,
    ).fetchone()
    return row is not None


def prune(connection: sqlite3.Connection, *, before: float, limit: int, now: float) -> int:
    connection.execute(
        "UPDATE followups SET state = 'expired', settled_at = ? "
        "WHERE settled_at IS NULL AND passive = 1 AND attempt = 0 AND expires_at <= ?",
        (now, now),
    )
    done = connection.execute(
        "DELETE FROM followups WHERE seq IN "
        "(SELECT seq FROM followups WHERE settled_at < ? ORDER BY settled_at LIMIT ?)",
        (before, limit),
    )
    return done.rowcount


def _read(row: tuple[object, ...]) -> Followup:
    receipt, tenant, type, id, message, accepted_at, expires_at, is_passive, *rest = row
    key = AgentKey(str(tenant), str(type), str(id))
    return Followup(str(receipt), key, message, accepted_at, expires_at, bool(is_passive), *rest)  # type: ignore[arg-type]
