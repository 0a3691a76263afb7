"""The command that hears an agent: events.

Owns how events of many turns look on a terminal.
"""

from __future__ import annotations

from typing import Annotated

import typer

from innkeeper_client import Cancelled, Client, Completed, Cursor, Custom, Event, Failed, Gap
from innkeeper_server.cli.asking import HERE, AgentArgument, Json, Target, Timeout, ask
from innkeeper_server.cli.output import Output
from innkeeper_server.cli.talk import event_line, parsed_cursor


def events(
    agent: AgentArgument,
    after: Annotated[
        str, typer.Option("--after", metavar="CURSOR", help="Only what follows this event.")
    ] = "",
    new: Annotated[bool, typer.Option("--new", help="Only what is said from now on.")] = False,
    target: Target = HERE,
    json: Json = False,
    timeout: Timeout = None,
) -> None:
    """Show what an agent says in all its turns: what is logged, then live, until Ctrl-C.

    \b
    innkeeper events concierge/lobby
    innkeeper events concierge/lobby --new
    innkeeper events concierge/lobby --json --after 3:5f2a90c1-t17:4
    """
    if after and new:
        raise typer.BadParameter("give --after or --new, not both")
    behind = parsed_cursor(after) if after else None

    async def work(client: Client, output: Output) -> None:
        printer = _Printer(output)
        handle = client.agent(agent.type, agent.id)
        async for event in handle.subscribe(behind, new_only=new):
            if json:
                output.line(event_line(event))
            else:
                printer.show(event)

    ask(target, json, timeout, work)


class _Printer:
    """Turns one below the other, each under its name, with text as it comes."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._turn = ""
        self._in_line = False

    def show(self, event: Event) -> None:
        cursor: Cursor | None = getattr(event, "cursor", None)
        if cursor is not None and cursor.turn_id != self._turn:
            self._end_line()
            self._turn = cursor.turn_id
            self._output.aside(f"turn {self._turn}, epoch {cursor.epoch}")
        if event.text:
            self._output.piece(event.text)
            self._in_line = True
            return
        self._end_line()
        if isinstance(event, Custom):
            self._output.custom(event)
        elif isinstance(event, Completed):
            self._output.aside("completed")
        elif isinstance(event, Failed):
            self._output.aside(f"failed: {event.error}")
        elif isinstance(event, Cancelled):
            self._output.aside(f"cancelled: {event.reason}")
        elif isinstance(event, Gap):
            self._output.aside(f"{event.missed or 'some'} events are kept no longer")

    def _end_line(self) -> None:
        if self._in_line:
            self._output.text("")
            self._in_line = False
