"""What the store keeps for a time only: receipts, outcomes, events.

Owns the rounds in which the host forgets what is older than its retention.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from innkeeper_server.driver import Driver
from innkeeper_server.errors import StoreUnavailable
from innkeeper_server.limits import Limits
from innkeeper_server.store import Store

__all__ = ["Forgetting"]

EVERY = 600.0  # seconds
AT_ONCE = 1000  # in one transaction

log = logging.getLogger("innkeeper.host")


class Forgetting:
    """See the module. `clock` tells the world's time, in seconds of Unix time."""

    def __init__(
        self, driver: Driver, store: Store, limits: Limits, clock: Callable[[], float]
    ) -> None:
        self._driver = driver
        self._store = store
        self._limits = limits
        self._clock = clock
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Forget now, and again from time to time."""
        self._next = asyncio.get_running_loop().call_later(EVERY, self.start)
        self._driver.own(self._forget(), "forget what is old")

    def close(self) -> None:
        """Forget nothing more."""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    async def _forget(self) -> None:
        now, limits = self._clock(), self._limits
        try:
            await self._all(
                lambda: self._store.prune(now - limits.receipt_retention, limit=AT_ONCE)
            )
            await self._all(
                lambda: self._store.prune_events(now - limits.event_retention, limit=AT_ONCE)
            )
        except StoreUnavailable as error:
            log.warning("what is old cannot be forgotten: %s", error)

    async def _all(self, some: Callable[[], Awaitable[int]]) -> None:
        while await some() == AT_ONCE and self._next is not None:
            pass
