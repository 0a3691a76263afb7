"""One timer for any number of things that may each take the same time.

Owns `Patience`. Since all have the same limit, they come due in the order in which they began: the
timer waits for the oldest only, and beginning and ending cost the same however many there are.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Patience(Generic[T]):
    """Calls `over(item)`, once, for each item that began more than `limit` seconds ago and has not
    ended. `over` may begin and end items."""

    __slots__ = ("_due", "_loop", "_over", "_timer", "limit")

    def __init__(self, limit: float, over: Callable[[T], None]) -> None:
        self.limit = limit
        self._over = over
        self._loop = asyncio.get_running_loop()
        self._due: OrderedDict[T, float] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, item: T) -> None:
        """It begins now; so does one that had begun already."""
        self._due.pop(item, None)
        self._due[item] = self._loop.time() + self.limit
        if self._timer is None:
            self._arm()

    def end(self, item: T) -> None:
        """It has ended, if it had begun at all. The timer stays, and finds out."""
        self._due.pop(item, None)

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        try:
            while self._due:
                item, due = next(iter(self._due.items()))
                if due > now:
                    break
                del self._due[item]
                self._over(item)
        finally:
            self._arm()

    def _arm(self) -> None:
        if self._timer is None and self._due:
            self._timer = self._loop.call_at(next(iter(self._due.values())), self._look)
