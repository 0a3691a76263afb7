"""A running house."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio
from cli_kit import FUSE, House

from innkeeper_server.limits import Limits
from innkeeper_server.server import serving


@pytest_asyncio.fixture
async def house() -> AsyncIterator[House]:
    """A running house."""
    it = House()
    limits = Limits(capacity=2, admission_timeout=0.05, mailbox_size=1, drain_timeout=5.0)
    async with asyncio.timeout(FUSE), serving(registry=it.registry(), limits=limits) as server:
        it.server = server
        try:
            yield it
        finally:
            it.gate.set()
