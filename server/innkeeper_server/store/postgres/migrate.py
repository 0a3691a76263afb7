"""Bringing a PostgreSQL database up to the schema that this version needs.

Owns the steps of `migrations/postgresql`, made in one transaction under a lock, so that hosts which
start at once make each of them once.
"""

from __future__ import annotations

import asyncpg

from innkeeper_server.store.faults import Unusable
from innkeeper_server.store.migrate import steps

__all__ = ["migrate", "schema_version"]

_LOCK = 0x1_4E4B_4545  # any number that no other program takes; it is "INKEE" without its vowels


async def migrate(connection: asyncpg.Connection[asyncpg.Record]) -> tuple[int, int]:
    """Make what is missing; return the version before and after. Raises Unusable."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        before = await schema_version(connection)
        known = steps("postgresql")
        if before > len(known):
            raise Unusable(
                f"its schema has version {before}, made by a newer Innkeeper; "
                f"this one knows up to {len(known)}"
            )
        for step in known[before:]:
            await connection.execute(step.sql)
        if before < len(known):
            await connection.execute(
                "INSERT INTO schema_version VALUES (1, $1) "
                "ON CONFLICT (only_row) DO UPDATE SET version = excluded.version",
                len(known),
            )
        return before, len(known)


async def schema_version(connection: asyncpg.Connection[asyncpg.Record]) -> int:
    """How far the database is; 0 if it has no tables of ours. Unusable if they are another's."""
    found = {
        name
        for name in ("schema_version", "agents", "followups", "events")
        if await connection.fetchval("SELECT to_regclass($1)", name) is not None
    }
    if not found:
        return 0
    if not {"schema_version", "agents"} <= found:
        raise Unusable("its tables are another program's")
    version = await connection.fetchval("SELECT version FROM schema_version")
    if version is None:
        raise Unusable("its schema has no version")
    return int(version)
