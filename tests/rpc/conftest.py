"""The served world as a fixture."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from rpc_kit import World, serving


@pytest_asyncio.fixture
async def it() -> AsyncIterator[World]:
    """A served host and a client."""
    async with serving() as world:
        yield world
