"""Where agents' states are kept: one protocol, and a store in memory, in a file, or in a
PostgreSQL database.

Owns the choice of a store by its URL.
"""

from __future__ import annotations

import os
import re

from innkeeper_server.store.memory import MemoryStore
from innkeeper_server.store.protocol import (
    EVENTS_KEPT,
    Alarm,
    AlarmChanges,
    Chunk,
    Followup,
    Hydrated,
    Outcome,
    Page,
    Record,
    Settled,
    Store,
)
from innkeeper_server.store.sqlite import SQLiteStore

__all__ = [
    "EVENTS_KEPT",
    "Alarm",
    "AlarmChanges",
    "Chunk",
    "Followup",
    "Hydrated",
    "MemoryStore",
    "Outcome",
    "Page",
    "Record",
    "SQLiteStore",
    "Settled",
    "Store",
    "open_store",
    "without_password",
]

_SQLITE = "sqlite:///"
_POSTGRESQL = ("postgresql://", "postgres://")


def open_store(url: str, *, busy_timeout: float = 5.0, events_kept: int = EVENTS_KEPT) -> Store:
    """The store that a URL names, yet to be opened: `await store.open()`.

    `memory:`; or `sqlite:///` and a path as it is, so that an absolute one has four slashes, and
    `~` is the home directory; or `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`, as libpq has it.
    `busy_timeout` is in seconds; `events_kept` is how many events of each agent the log keeps.
    ValueError names the URL and its fault.
    """
    if url == "memory:":
        return MemoryStore(events_kept=events_kept)
    if url.startswith(_POSTGRESQL):
        return _open_postgresql(url, events_kept)
    if not url.startswith(_SQLITE):
        raise ValueError(
            f"{_shown(url)} names no store: it must be memory:, sqlite:///PATH (sqlite:////PATH "
            "for an absolute one) or postgresql://USER@HOST/DATABASE"
        )
    path = url.removeprefix(_SQLITE)
    if fault := _fault_of(path):
        raise ValueError(f"{_shown(url)} names no database file: {fault}")
    return SQLiteStore(os.path.expanduser(path), busy_timeout=busy_timeout, events_kept=events_kept)


def _open_postgresql(url: str, events_kept: int) -> Store:
    try:
        from innkeeper_server.store.postgres.store import PostgresStore
    except ImportError:
        raise ValueError(
            f"{_shown(url)} needs the package asyncpg: pip install 'innkeeper[postgresql]'"
        ) from None
    return PostgresStore(url, events_kept=events_kept)


def _fault_of(path: str) -> str:
    if not path or path.endswith("/"):
        return "the path must end in a file name"
    if path == ":memory:":
        return "the store in memory is memory:"
    if "?" in path:
        return "it takes no parameters"
    if "\0" in path:
        return "the path has a null character"
    return ""


def without_password(text: str) -> str:
    """Text as it may be shown: what a URL in it carries before the `@` is left out, and what is
    given as a password behind it."""
    return re.sub(r"(password=)[^&\s]*", r"\1***", re.sub(r"//\S*@", "//***@", text))


def _shown(url: str) -> str:
    return repr(without_password(url))
