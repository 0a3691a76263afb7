"""A bounded buffer between a session's reader task and one reader of events.

Owns the bound: what is over it is the caller's policy.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

from .errors import InnkeeperError

T = TypeVar("T")

# What an entry costs beside its bytes on the wire.
_OVERHEAD = 200


class Inbox(Generic[T]):
    """Entries of at most `bound` bytes together (one entry may be larger), for one reader."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._bytes = 0
        self._items: deque[tuple[T, int]] = deque()
        self._ready = asyncio.Event()
        self._ended = False
        self._error: InnkeeperError | None = None

    def fits(self, size: int) -> bool:
        """True if there is room for an entry of so many bytes; never after the end."""
        return not self._ended and (
            not self._items or self._bytes + size + _OVERHEAD <= self._bound
        )

    def put(self, item: T, size: int) -> bool:
        """Add an entry and tell if it was taken."""
        cost = size + _OVERHEAD
        if not self.fits(size):
            return False
        self._items.append((item, cost))
        self._bytes += cost
        self._ready.set()
        return True

    def end(self, error: InnkeeperError | None = None) -> None:
        """Nothing follows; the reader gets what is there, then the error. First call counts."""
        if not self._ended:
            self._ended, self._error = True, error
            self._ready.set()

    async def get(self) -> T | None:
        """The next entry; None after the last. Raises the error that it ended with."""
        while not self._items:
            if self._error is not None:
                raise self._error
            if self._ended:
                return None
            self._ready.clear()
            await self._ready.wait()
        item, cost = self._items.popleft()
        self._bytes -= cost
        return item
