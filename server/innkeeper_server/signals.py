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

    async def wait(self, timeout: float | None = None) -> None:
        """Return at the next `notify`, or after `timeout` seconds."""
        waiter = asyncio.get_running_loop().create_future()
        waiters = self._waiters = [] if self._waiters is None else self._waiters
        waiters.append(waiter)
        try:
            if timeout is None:
                await waiter
            else:
                await asyncio.wait([waiter], timeout=timeout)
        finally:
            if waiters is self._waiters:  # not woken: it timed out, or was cancelled
                waiters.remove(waiter)
                self._waiters = waiters or None
