"""From the schema that is there to the schema that this version needs.

Owns the numbered SQL in `migrations/<dialect>/NNNN_name.sql` and the one row that says how far a
database is. Each step and its number commit together.
"""

from __future__ import annotations

import re
import sqlite3
from importlib import resources
from typing import NamedTuple

from innkeeper_server.store.faults import Unusable

__all__ = ["Step", "check_schema", "migrate", "steps"]

_NAME = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")


class Step(NamedTuple):
    number: int
    sql: str


def steps(dialect: str) -> list[Step]:
    """The migrations of a dialect, numbered from 1 without a gap."""
    folder = resources.files("innkeeper_server.store") / "migrations" / dialect
    found = sorted(
        Step(int(match[1]), file.read_text("utf-8"))
        for file in folder.iterdir()
        if (match := _NAME.fullmatch(file.name))
    )
    assert [step.number for step in found] == list(range(1, len(found) + 1)), found
    return found


def check_schema(connection: sqlite3.Connection) -> None:
    """Raise Unusable for a database that this version must not touch. Only reads."""
    current, known = schema_version(connection), len(steps("sqlite"))
    if current > known:
        raise Unusable(
            f"its schema has version {current}, made by a newer Innkeeper; "
            f"this one knows up to {known}"
        )


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a database that was checked up to date."""
    for step in steps("sqlite")[schema_version(connection) :]:
        _apply(connection, step)


def schema_version(connection: sqlite3.Connection) -> int:
    """How far the database is; 0 if it is empty. Unusable if it is another program's."""
    tables = {
        name
        for (name,) in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite!_%' "
            "ESCAPE '!'"
        )
    }
    if not tables:
        return 0
    if not {"schema_version", "agents"} <= tables:
        raise Unusable("it is another program's database")
    row = connection.execute("SELECT version FROM schema_version").fetchone()
    if row is None:
        raise Unusable("its schema has no version")
    return int(row[0])


def _apply(connection: sqlite3.Connection, step: Step) -> None:
    number = f"INSERT OR REPLACE INTO schema_version (only_row, version) VALUES (1, {step.number});"
    try:
        connection.executescript(f"BEGIN IMMEDIATE;\n{step.sql}\n{number}\nCOMMIT;")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
