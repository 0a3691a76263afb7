"""`innkeeper serve`: run a host.

Owns the flags; what they mean and what is wrong with them is config.py's to say. Nothing of the
server is imported before the command runs.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from innkeeper_server.cli.exits import Exit
from innkeeper_server.cli.output import Output


class Level(StrEnum):
    """How much is logged."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


class Format(StrEnum):
    """How it is logged."""

    auto = "auto"
    text = "text"
    json = "json"


_ADDRESS = "HOST:PORT|unix:PATH"
_SECONDS = "SECONDS"


def _flag(help: str, metavar: str | None = None, panel: str = "Bounds") -> Any:
    # Named as the setting, and without a default: what is not given comes from the environment,
    # the file, or the defaults, in that order.
    return typer.Option(help=help, metavar=metavar, rich_help_panel=panel, show_default=False)


_WHERE, _LOGS = "Where", "Logs and extras"


def serve(
    agents: Annotated[
        list[str] | None,
        _flag("A module by name, or a file, with agents. Repeatable.", "MODULE|FILE", "Agents"),
    ] = None,
    config: Annotated[
        str | None, _flag("Settings file; default: innkeeper.toml if there.", "FILE", "Agents")
    ] = None,
    store: Annotated[
        str | None,
        _flag(
            "Where states are kept (default sqlite:///innkeeper.db).",
            "memory:|sqlite:///PATH|postgresql://…",
            _WHERE,
        ),
    ] = None,
    listen: Annotated[
        str | None, _flag("Where clients call (default 127.0.0.1:7420).", _ADDRESS, _WHERE)
    ] = None,
    admin_listen: Annotated[
        str | None, _flag("Serve the operators' calls here, and only here.", _ADDRESS, _WHERE)
    ] = None,
    metrics_listen: Annotated[
        str | None, _flag("Serve /metrics and /healthz over HTTP here.", "HOST:PORT", _WHERE)
    ] = None,
    capacity: Annotated[int | None, _flag("Agents in memory at once (default 1000).", "N")] = None,
    idle_timeout: Annotated[
        float | None, _flag("An agent that nobody owns leaves after this (default 300).", _SECONDS)
    ] = None,
    admission_timeout: Annotated[
        float | None, _flag("Longest wait for a slot (default 10).", _SECONDS)
    ] = None,
    max_waiting: Annotated[
        int | None, _flag("Callers waiting for a slot (default 10000).", "N")
    ] = None,
    mailbox_size: Annotated[
        int | None, _flag("Calls waiting for one agent (default 1000).", "N")
    ] = None,
    start_timeout: Annotated[
        float | None, _flag("Longest start of an agent (default 30).", _SECONDS)
    ] = None,
    start_attempts: Annotated[
        int | None,
        _flag("Failed starts in a row before an agent is left alone for a while (default 3).", "N"),
    ] = None,
    stop_timeout: Annotated[
        float | None, _flag("Longest step of an agent's stop (default 10).", _SECONDS)
    ] = None,
    drain_timeout: Annotated[
        float | None, _flag("How long accepted work may take at the end (default 30).", _SECONDS)
    ] = None,
    lame_duck: Annotated[
        float | None,
        _flag("At the end, refuse calls for as long before the port closes (default 0).", _SECONDS),
    ] = None,
    turn_timeout: Annotated[float | None, _flag("Longest turn (default 3600).", _SECONDS)] = None,
    reader_timeout: Annotated[
        float | None, _flag("Longest wait for the reader of a stream (default 5).", _SECONDS)
    ] = None,
    max_attempts: Annotated[
        int | None, _flag("Turns of one follow-up before it is put aside (default 3).", "N")
    ] = None,
    backlog: Annotated[
        int | None,
        _flag("Follow-ups in memory at once; others wait in the store (default 1000).", "N"),
    ] = None,
    receipt_retention: Annotated[
        float | None,
        _flag("Receipts are kept after the end for as long (default 86400).", _SECONDS),
    ] = None,
    event_log: Annotated[
        bool | None,
        _flag("Log what turns say, so that broken streams can be picked up (default on)."),
    ] = None,
    events_kept: Annotated[
        int | None, _flag("Events of each agent that are kept (default 10000).", "N")
    ] = None,
    event_retention: Annotated[
        float | None, _flag("Events are kept for as long (default 3600).", _SECONDS)
    ] = None,
    max_state_bytes: Annotated[int | None, _flag("Largest state (default 4 MiB).", "BYTES")] = None,
    max_message_bytes: Annotated[
        int | None, _flag("Largest message (default 4 MiB).", "BYTES")
    ] = None,
    log_level: Annotated[
        Level | None, _flag("How much to log (default info).", None, _LOGS)
    ] = None,
    log_format: Annotated[
        Format | None,
        _flag("How to log (default auto: text on a terminal, else JSON).", None, _LOGS),
    ] = None,
    uvloop: Annotated[
        bool | None, _flag("The quicker event loop (default on).", None, _LOGS)
    ] = None,
    reflection: Annotated[
        bool | None, _flag("Tell clients without stubs what is served (default on).", None, _LOGS)
    ] = None,
) -> None:
    """Run a host until SIGTERM or SIGINT, then end in order.

    Every flag is also a variable, such as INNKEEPER_CAPACITY=50, and a key of innkeeper.toml.
    Exit codes: 0 all accepted work was finished, 1 it could not start, 2 wrong settings, 3 some
    work had to be cut at the end.

    \b
    innkeeper serve --agents my_agents.py
    innkeeper serve --agents my_pkg.agents --listen 0.0.0.0:7420 --capacity 200
    innkeeper serve --agents innkeeper_server.demo --store memory:
    """
    flags = dict(locals())
    file = flags.pop("config")
    from innkeeper_server.config import ConfigError, load
    from innkeeper_server.server import run

    try:
        settings = load(file, **flags)
    except ConfigError as error:
        Output(as_json=False).complaint(*str(error).splitlines())
        raise typer.Exit(Exit.USAGE) from None
    raise typer.Exit(run(settings))
