"""How far the end of the server has come, for streams that have no end of their own.

Owns the word that watchers are given: an idle stream would hold up a stop for all of its grace.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import TypeVar

T = TypeVar("T")


class Ending:
    """`begun`: nothing may open the host again. `over`: endless streams end now."""

    def __init__(self) -> None:
        self.begun = False
        self.over = asyncio.Event()

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
