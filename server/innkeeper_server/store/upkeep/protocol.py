"""What can be done to a store beside serving agents from it.

Owns the `Upkeep` protocol, which the file and the database each have in their own way. All of it is
for a command that does nothing else: it may block its loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from innkeeper_server.store.upkeep.tables import Row, Table

__all__ = ["Changing", "Reading", "Upkeep"]


class Reading(Protocol):
    """One snapshot of a store; what a host commits meanwhile is not in it."""

    async def number(self, sql: str) -> int:
        """What a statement counts."""

    def rows(self, table: Table) -> AsyncIterator[Row]:
        """All rows of a table, in its order, a few in memory at a time."""

    async def damage(self) -> list[str]:
        """What the database itself finds wrong with its files, in words."""


class Changing(Protocol):
    """One transaction over a store, which nobody else changes meanwhile."""

    async def number(self, sql: str) -> int:
        """What a statement counts."""

    async def put(self, table: Table, rows: Sequence[Row]) -> None:
        """Add rows. ValueError if they contradict each other."""


class Upkeep(Protocol):
    """A store, by its place. Every method may raise StoreUnavailable."""

    known: int  # the version of the schema that this program has

    async def version(self) -> int:
        """The version of the schema that is there; 0 if there is nothing."""

    async def migrate(self) -> tuple[int, int]:
        """Bring the schema up to date, from nothing too; the version before and after."""

    def reading(self) -> AbstractAsyncContextManager[Reading]:
        """A snapshot. A host may have the store open."""

    def changing(self) -> AbstractAsyncContextManager[Changing]:
        """A transaction that commits at the end of the block, and leaves nothing if it raises."""
