"""What a store keeps, as tables that every dialect has.

Owns the names, the columns and the order of what is carried from one store to another. What is
bound to one place is not among it: the version of the schema, and the writers of a database.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["TABLES", "Column", "Row", "Table"]

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `type` is what a value is in Python, whatever the database makes of it."""

    name: str
    type: type
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """One table, and the columns by which its rows are carried in order."""

    name: str
    order: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        """The columns' names."""
        return [column.name for column in self.columns]

    @property
    def select(self) -> str:
        """A statement that reads all of it, in order."""
        return f"SELECT {', '.join(self.names)} FROM {self.name} ORDER BY {self.order}"


_AGENT = (Column("tenant", str), Column("type", str), Column("id", str))

TABLES = (
    Table(
        "agents",
        "tenant, type, id",
        (
            *_AGENT,
            Column("epoch", int),
            Column("version", int),
            Column("deleted", bool),
            Column("created_at", float),
            Column("updated_at", float),
            Column("state", bytes, nullable=True),
        ),
    ),
    Table(
        "followups",
        "seq",
        (
            Column("seq", int),
            Column("receipt", str),
            *_AGENT,
            Column("passive", bool),
            Column("attempt", int),
            Column("state", str),
            Column("accepted_at", float),
            Column("expires_at", float, nullable=True),
            Column("started_at", float, nullable=True),
            Column("settled_at", float, nullable=True),
            Column("message", bytes),
            Column("outcome", bytes, nullable=True),
            Column("idempotency_key", str),
            Column("fingerprint", bytes),
        ),
    ),
    Table(
        "outcomes",
        "tenant, type, id, idempotency_key",
        (
            *_AGENT,
            Column("idempotency_key", str),
            Column("turn", str),
            Column("kept_at", float),
            Column("fingerprint", bytes),
            Column("outcome", bytes),
        ),
    ),
    Table(
        "events",
        "tenant, type, id, position",
        (
            *_AGENT,
            Column("position", int),
            Column("turn", str),
            Column("epoch", int),
            Column("first", int),
            Column("last", int),
            Column("ended", bool),
            Column("logged_at", float),
            Column("data", bytes),
        ),
    ),
    Table(
        "alarms",
        "tenant, type, id, name",
        (
            *_AGENT,
            Column("name", str),
            Column("due", float),
            Column("every", float, nullable=True),
            Column("receipt", str),
            Column("message", bytes),
        ),
    ),
)
