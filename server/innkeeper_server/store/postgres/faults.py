"""What can be wrong with a PostgreSQL database, in words.

Owns the sorting of its errors: the connection is lost, the transaction may be made again, or the
database refuses. The words never hold a statement, a value or a password: they travel to callers.
"""

from __future__ import annotations

import asyncio

import asyncpg

from innkeeper_server.errors import StoreUnavailable

__all__ = ["AGAIN", "FAULTS", "LOST", "unavailable"]

LOST = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
)
AGAIN = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
FAULTS = (*LOST, *AGAIN, asyncpg.PostgresError)

_WORDS: tuple[tuple[type[BaseException], str], ...] = (
    (asyncpg.InvalidPasswordError, "the database refuses the user or the password"),
    (asyncpg.InvalidAuthorizationSpecificationError, "the database refuses the user"),
    (asyncpg.InvalidCatalogNameError, "there is no such database on the server"),
    (asyncpg.InsufficientPrivilegeError, "the database does not let this user write"),
    (asyncpg.ReadOnlySQLTransactionError, "the database is read-only"),
    (asyncpg.DiskFullError, "the disk of the database is full"),
    (asyncpg.TooManyConnectionsError, "the database has too many connections"),
    (asyncpg.UndefinedTableError, "the database has lost its schema"),
    (asyncpg.CannotConnectNowError, "the database is starting or stopping"),
)


def unavailable(error: BaseException) -> StoreUnavailable:
    """A refusal of its own for each caller."""
    found = (words for kind, words in _WORDS if isinstance(error, kind))
    otherwise = "the database cannot be reached" if isinstance(error, LOST) else ""
    refusal = StoreUnavailable(next(found, otherwise or "the database cannot be used"))
    if (state := getattr(error, "sqlstate", None)) is not None:
        refusal.metadata["sqlstate"] = str(state)
    refusal.__cause__ = error
    return refusal
