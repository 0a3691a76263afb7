"""One server for each test, with a gate in its agents and stubs that talk to it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from server_kit import Desk, Gate, registry_with

from innkeeper_server.limits import Limits
from innkeeper_server.server import Server, serving


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture
async def server(gate: Gate) -> AsyncIterator[Server]:
    limits = Limits(stop_timeout=5.0, drain_timeout=0.0)
    async with serving(registry=registry_with(gate), limits=limits) as server:
        yield server


@pytest.fixture
async def desk(server: Server) -> AsyncIterator[Desk]:
    async with Desk(server.address) as desk:
        yield desk
