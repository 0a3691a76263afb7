"""What all tests share: lines that tell, at the end of a run, how much was explored; and one
PostgreSQL for all that need one, started when the first of them does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from postgres_kit import Postgres

_LINES = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_LINES] = []


@pytest.fixture
def report(request: pytest.FixtureRequest) -> list[str]:
    """Append to it what the summary of the run should say."""
    return request.config.stash[_LINES]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server that nobody may kill: each test has a schema of its own in it."""
    server = Postgres()
    yield server
    server.stop()


@pytest.fixture
async def schema_url(postgres: Postgres) -> str:
    """The URL of a database with nothing in it."""
    return postgres.url(await postgres.schema())


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if lines := config.stash[_LINES]:
        terminalreporter.section("explored")
        for line in lines:
            terminalreporter.line(line)
