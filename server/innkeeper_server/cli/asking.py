"""Asking a host something from the command line.

Owns the options that every such command has, and the one way in which they run: open a client, do
the work, turn what went wrong into a line and an exit code.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

from innkeeper_client import AgentRef, Client, InnkeeperError
from innkeeper_client.client import DEFAULT_TARGET, TARGET_VARIABLE
from innkeeper_server.cli.exits import Exit, exit_of
from innkeeper_server.cli.output import Output

Target = Annotated[
    str,
    typer.Option(
        "--target",
        envvar=TARGET_VARIABLE,
        metavar="HOST:PORT|unix:PATH",
        help="Which host to ask.",
        rich_help_panel="Host and output",
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print JSON: one document, or one a line where things stream.",
        rich_help_panel="Host and output",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        help="Give up after so long; retries included.",
        rich_help_panel="Host and output",
    ),
]
HERE = DEFAULT_TARGET

Work = Callable[[Client, Output], Awaitable[Exit | None]]


def address(text: str) -> AgentRef:
    """TYPE/ID, or ID alone where the host serves one type."""
    ref = AgentRef.parse(text)
    if not ref.id:
        raise typer.BadParameter("an agent is written TYPE/ID, such as counter/a")
    return ref


AgentArgument = Annotated[
    AgentRef, typer.Argument(parser=address, metavar="TYPE/ID", help="Which agent.")
]


def ask(target: str, as_json: bool, timeout: float | None, work: Work) -> None:
    """Run a command's work with a client, and end with its exit code."""
    output = Output(as_json)
    try:
        code = asyncio.run(_with_client(target, timeout, output, work))
    except InnkeeperError as error:
        output.error(error)
        raise typer.Exit(exit_of(error)) from None
    except (TypeError, ValueError) as error:
        # What cannot be sent, found before anything was.
        output.complaint(str(error))
        raise typer.Exit(Exit.USAGE) from None
    except KeyboardInterrupt:
        raise typer.Exit(Exit.INTERRUPTED) from None
    raise typer.Exit(code or Exit.OK)


async def _with_client(
    target: str, timeout: float | None, output: Output, work: Work
) -> Exit | None:
    async with Client(target) if timeout is None else _patient(target, timeout) as client:
        return await work(client, output)


def _patient(target: str, timeout: float) -> Client:
    if not timeout > 0:
        raise ValueError(f"--timeout must be above 0 seconds, not {timeout:g}")
    return Client(target, timeout=timeout, chat_timeout=timeout)


def parse_json(text: str) -> Any:
    """A JSON value; ValueError for anything else, also for NaN and Infinity."""
    return json.loads(text, parse_constant=_no_constant)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def standard_input() -> str:
    """All of standard input. Refused on a terminal, where nothing would tell that it waits."""
    if sys.stdin.isatty():
        raise typer.BadParameter("'-' reads a pipe or a file, and this is a terminal")
    return sys.stdin.read()
