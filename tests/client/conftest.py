"""The scripted world as a fixture."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from scripted import World, world


@pytest_asyncio.fixture
async def it() -> AsyncIterator[World]:
    """A scripted host and its client."""
    async with world() as running:
        yield running
