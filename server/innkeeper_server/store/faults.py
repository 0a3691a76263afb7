"""What can be wrong with an embedded database, in words.

Owns the translation of SQLite's and the file system's errors into `StoreUnavailable`. The words
name the kind of fault and never a path, a statement or a value: they travel to callers.
"""

from __future__ import annotations

import sqlite3

from innkeeper_server.errors import StoreUnavailable

__all__ = ["FAULTS", "Unusable", "is_own", "leaves_doubt", "unavailable", "words"]


class Unusable(Exception):
    """The database cannot be used, for a reason that is already in words."""


FAULTS = (sqlite3.Error, OSError, Unusable)

_LOCKED = "the database is locked by another program"
_DAMAGED = "the database file is damaged, or is not a database"
_WORDS = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_PROTOCOL: _LOCKED,
    sqlite3.SQLITE_FULL: "the disk is full, or the database has reached its size limit",
    sqlite3.SQLITE_READONLY: "the database is read-only",
    sqlite3.SQLITE_PERM: "the database is read-only",
    # The bytes of a commit whose flush failed may be on the disk, and be found after a crash.
    sqlite3.SQLITE_IOERR: "the disk failed to read or to write; the outcome is unknown",
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_CANTOPEN: "the database file cannot be opened",
    sqlite3.SQLITE_NOMEM: "there is no memory left",
}
# A connection may remember these; a new one finds out whether they are over.
_LASTING = {
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
}
# Nothing wrong with the database: a statement or a value of ours was.
_OWN = {
    None,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_MISUSE,
    sqlite3.SQLITE_RANGE,
    sqlite3.SQLITE_TOOBIG,
}


def words(error: Exception) -> str:
    """Say what is wrong, for a person."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, sqlite3.Error):
        return _WORDS.get(_code(error) or 0, "the database cannot be used")
    return str(error)


def unavailable(error: Exception) -> StoreUnavailable:
    """A refusal of its own for each caller, since a raised exception collects tracebacks."""
    metadata = {}
    if isinstance(error, sqlite3.Error) and _code(error) is not None:
        metadata["sqlite"] = error.sqlite_errorname
    refusal = StoreUnavailable(words(error), metadata=metadata)
    refusal.__cause__ = error
    return refusal


def is_own(error: Exception) -> bool:
    """Whether an operation raised this on its own account, with the database under it well."""
    return not isinstance(error, FAULTS) or (
        isinstance(error, sqlite3.Error) and _code(error) in _OWN
    )


def leaves_doubt(error: Exception) -> bool:
    """Whether the connection that met this error should be replaced."""
    return isinstance(error, sqlite3.Error) and _code(error) in _LASTING


def _code(error: sqlite3.Error) -> int | None:
    """The primary code: the low byte. None if the error is the module's and not SQLite's."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF
