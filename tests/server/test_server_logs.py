"""Logs: lines for people on a terminal, JSON lines for machines."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from innkeeper_server.telemetry import set_up_logging


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_log_that_nobody_reads_is_json_lines() -> None:
    stream = io.StringIO()
    set_up_logging("info", stream=stream)
    log = logging.getLogger("some.agent")
    log.debug("too quiet")
    log.warning("%d of %d", 1, 2, extra={"agent": "guest/a"})
    structlog.get_logger("other").info("bound", place="here")
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("it failed")
    first, second, third = map(json.loads, stream.getvalue().splitlines())
    assert (first["event"], first["level"], first["logger"], first["agent"]) == (
        "1 of 2",
        "warning",
        "some.agent",
        "guest/a",
    )
    assert (second["event"], second["place"], second["logger"]) == ("bound", "here", "other")
    assert "ValueError: broken" in third["exception"]


def test_a_log_on_a_terminal_is_text() -> None:
    stream = Terminal()
    set_up_logging("info", stream=stream)
    logging.getLogger("some.agent").info("hello")
    assert "hello" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


@pytest.mark.parametrize(("format", "as_json"), [("json", True), ("text", False)])
def test_the_form_of_the_log_can_be_chosen(format: str, as_json: bool) -> None:
    stream = Terminal() if as_json else io.StringIO()
    set_up_logging("info", format, stream)  # type: ignore[arg-type]
    logging.getLogger("x").info("hello")
    assert stream.getvalue().startswith("{") is as_json
