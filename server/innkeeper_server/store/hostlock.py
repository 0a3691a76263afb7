"""One host for one embedded database.

Owns the lock file beside the database. The operating system drops the lock when its process ends,
however it ends; the file stays, since removing it would let two hosts lock two different files.
"""

from __future__ import annotations

import fcntl
import os

from innkeeper_server.store.faults import Unusable

__all__ = ["HostLock"]


class HostLock:
    """An exclusive lock on `path`, held from `acquire` to `release`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file: int | None = None

    def acquire(self) -> None:
        """Take the lock, or raise Unusable, naming the process that has it."""
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._lock(file)
            os.truncate(file, 0)
            os.write(file, f"{os.getpid()}\n".encode())
        except BaseException:
            os.close(file)
            raise
        self._file = file

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @staticmethod
    def _lock(file: int) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(file, 20).decode("ascii", "replace").strip() or "unknown"
            raise Unusable(f"another host has it open (process {holder})") from None
