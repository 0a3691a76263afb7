"""The database file: taking it, opening it, and noticing that it is gone.

Owns the path, the host's lock on it, and how a connection is set up. All of it blocks, so only the
store's threads call it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from innkeeper_server.store.faults import FAULTS, Unusable, words
from innkeeper_server.store.hostlock import HostLock
from innkeeper_server.store.migrate import check_schema, migrate

__all__ = ["Database"]

_WAL_KEPT_BYTES = 64 * 1024 * 1024


class Database:
    """One SQLite file, held by one host. `busy_timeout` is in seconds."""

    def __init__(self, path: str, *, busy_timeout: float) -> None:
        self.path = path
        self._busy_timeout = busy_timeout
        self._lock: HostLock | None = None
        self._identity: tuple[int, int] | None = None

    def writer(self) -> sqlite3.Connection:
        """A connection that writes. The first takes the file for this host and makes it ready.

        If the first cannot be had, Unusable names the path, and nothing stays taken.
        """
        if self._identity is None:
            return self._first_writer()
        return self._connect(_for_writing)

    def reader(self) -> sqlite3.Connection:
        """A connection that cannot write."""
        return self._connect(lambda connection: connection.execute("PRAGMA query_only = ON"))

    def check(self) -> None:
        """Raise Unusable unless the path still leads to the file that was opened.

        A connection goes on writing to a file that has lost its name, and all of that is lost.
        """
        try:
            found = self._stat()
        except FileNotFoundError:
            found = None
        if found != self._identity:
            raise Unusable("the database file was moved, deleted or replaced")

    def release(self) -> None:
        """Let another host have the file."""
        if self._lock is not None:
            self._lock.release()

    def _first_writer(self) -> sqlite3.Connection:
        try:
            self._make()
            identity = self._stat()
            connection = self._connect(check_schema, _for_writing, migrate)
        except FAULTS as error:
            self.release()
            raise Unusable(f"cannot use the database {self.path}: {words(error)}") from error
        self._identity = identity
        return connection

    def _make(self) -> None:
        # The real path, so that two names of one file meet at one lock.
        self.path = os.path.realpath(self.path)
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        self._lock = HostLock(self.path + ".lock")
        self._lock.acquire()
        if os.path.isdir(self.path):
            raise Unusable("it is a directory")
        try:
            # Agents' states are the owner's business; SQLite's other files take this mode too.
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            # SQLite would open it for reading, and leave files beside it that cannot be written.
            if not os.access(self.path, os.W_OK, effective_ids=True):
                raise Unusable("the file is read-only") from None

    def _connect(self, *preparations: Callable[[sqlite3.Connection], object]) -> sqlite3.Connection:
        # Never makes a file: an empty one in place of the lost one would be the worst answer.
        connection = sqlite3.connect(
            Path(self.path).as_uri() + "?mode=rw",
            uri=True,
            timeout=self._busy_timeout,
            isolation_level=None,
        )
        try:
            for prepare in preparations:
                prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _stat(self) -> tuple[int, int]:
        found = os.stat(self.path)
        return found.st_dev, found.st_ino


def _for_writing(connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
        raise Unusable("the file system there cannot hold a write-ahead log")
    # FULL: what was acknowledged survives a loss of power, and not only of the process.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_KEPT_BYTES}")
