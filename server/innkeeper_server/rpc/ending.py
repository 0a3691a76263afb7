"""What streams without an end of their own need: a word when the server ends, and a bound.

Owns both. An idle stream would hold up a stop for all of its grace, and its client may forget it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import ParamSpec, TypeVar

from innkeeper_server.errors import TooManyWaiting

T = TypeVar("T")
P = ParamSpec("P")


class Ending:
    """`begun`: nothing may open the host again. `over`: endless streams end now, and `listeners`
    are told in the same block."""

    def __init__(self) -> None:
        self.begun = False
        self.over = asyncio.Event()
        self.listeners: list[Callable[[], None]] = []

    def end(self) -> None:
        """Whatever was accepted has ended; so shall the streams that wait for more."""
        self.over.set()
        for listener in self.listeners:
            listener()

    async def wait_for(self, awaited: Awaitable[T]) -> T | None:
        """What is awaited, or None once endless streams end."""
        task = asyncio.ensure_future(awaited)
        end = asyncio.ensure_future(self.over.wait())
        try:
            await asyncio.wait((task, end), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            end.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))

    async def until_over(self, items: AsyncIterator[T]) -> AsyncGenerator[T, None]:
        """The items, until endless streams end. None may be None."""
        try:
            while (item := await self.wait_for(anext(items, None))) is not None:
                yield item
        finally:
            if hasattr(items, "aclose"):
                await items.aclose()


def at_most(limit: int, serve: Callable[P, Awaitable[None]]) -> Callable[P, Awaitable[None]]:
    """`serve`, refused with TooManyWaiting beyond so many streams at once."""
    running = 0

    async def bounded(*args: P.args, **kwargs: P.kwargs) -> None:
        nonlocal running
        if running >= limit:
            raise TooManyWaiting(
                f"the host has {limit} streams of this kind open already",
                metadata={"limit": str(limit)},
            )
        running += 1
        try:
            await serve(*args, **kwargs)
        finally:
            running -= 1

    return bounded
