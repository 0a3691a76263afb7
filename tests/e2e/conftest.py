"""A real host in a process of its own, over each kind of store that outlives it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e_kit import Served


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of each kind that outlives a process."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/state.db"
    return str(request.getfixturevalue("schema_url"))


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Start a host with flags; it is ended with the test."""
    started: list[Served] = []

    def start(*flags: str) -> Served:
        started.append(Served(*flags))
        return started[-1]

    yield start
    for served in started:
        if served.process.poll() is None:
            served.kill()
        if served.process.stdout is not None:
            served.process.stdout.close()
