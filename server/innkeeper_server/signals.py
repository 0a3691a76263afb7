"""A way to wait for "something changed" that costs nothing while nobody waits.

Owns `Signal`. Whoever waits looks again after each wake-up: a signal carries no value, and what
decides is the state itself, checked in the block that acts on it.
"""

from __future__ import annotations

import asyncio


class Signal:
    """Wakes whoever waits at this moment. Each waiter has a future of its own, so that one that is
    cancelled takes nothing from the others."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] | None = None

    def notify(self) -> None:
        """Wake everybody who waits now."""
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def next(self) -> asyncio.Future[None]:
        """What is done at the next `notify`. To be awaited by one, once, and at once."""
        waiter = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = [waiter]
        else:
            self._waiters = [each for each in self._waiters if not each.done()]
            self._waiters.append(waiter)
        return waiter

    async def wait(self, timeout: float) -> None:
        """Return at the next `notify`, or after `timeout` seconds."""
        waiter = self.next()
        try:
            await asyncio.wait([waiter], timeout=timeout)
        finally:
            waiter.cancel()
