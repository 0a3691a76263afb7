"""The SQL on the table of outcomes.

Owns what each call of the store does with them inside a transaction, like `statements.py`.
"""

from __future__ import annotations

import sqlite3

from innkeeper_server.identity import AgentKey
from innkeeper_server.store.protocol import Outcome

__all__ = ["forget", "keep", "outcome", "prune"]

_AGENT = "tenant = ? AND type = ? AND id = ?"


def keep(connection: sqlite3.Connection, outcome: Outcome, *, now: float) -> bool:
    done = connection.execute(
        "INSERT INTO outcomes (tenant, type, id, idempotency_key, turn, kept_at, fingerprint, "
        "outcome) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (
            *outcome.key,
            outcome.idempotency_key,
            outcome.turn_id,
            now,
            outcome.fingerprint,
            outcome.outcome,
        ),
    )
    return done.rowcount == 1


def outcome(connection: sqlite3.Connection, key: AgentKey, idempotency_key: str) -> Outcome | None:
    row = connection.execute(
        f"SELECT fingerprint, turn, outcome FROM outcomes WHERE {_AGENT} AND idempotency_key = ?",
        (*key, idempotency_key),
    ).fetchone()
    return None if row is None else Outcome(key, idempotency_key, *row)


def forget(connection: sqlite3.Connection, key: AgentKey) -> None:
    connection.execute(f"DELETE FROM outcomes WHERE {_AGENT}", key)


def prune(connection: sqlite3.Connection, *, before: float, limit: int) -> int:
    done = connection.execute(
        "DELETE FROM outcomes WHERE rowid IN "
        "(SELECT rowid FROM outcomes WHERE kept_at < ? ORDER BY kept_at LIMIT ?)",
        (before, limit),
    )
    return done.rowcount
