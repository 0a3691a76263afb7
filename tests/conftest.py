"""What all tests share: lines that tell, at the end of a run, how much was explored."""

from __future__ import annotations

from typing import Any

import pytest

_LINES = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_LINES] = []


@pytest.fixture
def report(request: pytest.FixtureRequest) -> list[str]:
    """Append to it what the summary of the run should say."""
    return request.config.stash[_LINES]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if lines := config.stash[_LINES]:
        terminalreporter.section("explored")
        for line in lines:
            terminalreporter.line(line)
