"""Commands that talk to agents: invoke, chat, followup, receipt, cancel.

Owns how arguments and messages are written on a command line.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from innkeeper_client import (
    AgentRef,
    Cancelled,
    Client,
    Completed,
    Cursor,
    Custom,
    Failed,
    Gap,
    Reply,
)
from innkeeper_client.requests import ABSENT
from innkeeper_server.cli.asking import (
    HERE,
    AgentArgument,
    Json,
    Target,
    Timeout,
    ask,
    parse_json,
    standard_input,
)
from innkeeper_server.cli.exits import Exit
from innkeeper_server.cli.output import Output, plain


class Busy(StrEnum):
    """What to do when the agent is in a turn."""

    enqueue = "enqueue"
    reject = "reject"


class OnDisconnect(StrEnum):
    """What becomes of the turn when this command is interrupted."""

    cancel = "cancel"
    go_on = "continue"


class Scope(StrEnum):
    """How much to stop."""

    turn = "turn"
    queue = "queue"
    all = "all"


KeyOption = Annotated[
    str,
    typer.Option(
        "--key", metavar="KEY", help="Idempotency key: repeated with it, the work runs once."
    ),
]
BusyOption = Annotated[
    Busy, typer.Option("--busy", help="Wait in line behind a running turn, or fail at once.")
]
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[MESSAGE]...", help="What to say; '-' reads standard input."),
]


def invoke(
    agent: AgentArgument,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ACTION] [NAME=VALUE]...",
            help="The action (none: the agent's own invoke), and its arguments. A VALUE is JSON "
            "where it parses as such, and text where not. '-' reads the input from a pipe.",
        ),
    ] = None,
    input: Annotated[
        str | None, typer.Option("--input", metavar="JSON", help="The whole input, as JSON.")
    ] = None,
    text: Annotated[
        str | None, typer.Option("--text", metavar="TEXT", help="The whole input, as text.")
    ] = None,
    busy: BusyOption = Busy.enqueue,
    key: KeyOption = "",
    target: Target = HERE,
    json: Json = False,
    timeout: Timeout = None,
) -> None:
    """Run one action of an agent, and print what it returned.

    \b
    innkeeper invoke counter/a add n=2
    innkeeper invoke counter/a value
    innkeeper invoke notes/mine save --input '{"title": "x", "tags": ["a", "b"]}'
    date | innkeeper invoke echo/a -
    """
    action, arguments = split_words(words or [])
    whole = whole_input(arguments, input, text)
    named = {} if whole is not ABSENT else named_arguments(arguments)

    async def work(client: Client, output: Output) -> None:
        done = await client.agent(agent.type, agent.id).invoke_raw(
            action, input=named or whole, busy=busy.value, idempotency_key=key
        )
        if output.as_json:
            output.document(done)
        else:
            output.value(done.output)

    ask(target, json, timeout, work)


def chat(
    agent: AgentArgument,
    words: Words = None,
    busy: BusyOption = Busy.enqueue,
    on_disconnect: Annotated[
        OnDisconnect,
        typer.Option("--on-disconnect", help="What an interruption does to the turn."),
    ] = OnDisconnect.cancel,
    key: KeyOption = "",
    resume: Annotated[
        str,
        typer.Option(
            "--resume", metavar="CURSOR", help="Pick up an answer behind this event of it."
        ),
    ] = "",
    target: Target = HERE,
    json: Json = False,
    timeout: Timeout = None,
) -> None:
    """Talk to an agent; its answer appears while it speaks.

    Without a message on a terminal: a conversation, line by line. Ctrl-C stops an answer, Ctrl-D
    ends the conversation.

    \b
    innkeeper chat concierge/lobby "hello"
    innkeeper chat concierge/lobby
    innkeeper chat concierge/lobby --json hello | jq -r 'select(.text) | .text'
    innkeeper chat concierge/lobby --on-disconnect continue "a long story, please"
    """
    if resume and words:
        raise typer.BadParameter("give a message, or --resume, not both")
    after = parsed_cursor(resume) if resume else None
    if after is not None:
        ask(target, json, timeout, lambda client, output: _picked_up(client, output, agent, after))
    if not words and sys.stdin.isatty() and not json:
        from innkeeper_server.cli.repl import converse

        ask(target, json, timeout, converse(agent))
    message = said(words or ["-"])

    async def work(client: Client, output: Output) -> None:
        handle = client.agent(agent.type, agent.id)
        async with handle.chat(
            message, busy=busy.value, on_disconnect=on_disconnect.value, idempotency_key=key
        ) as reply:
            await print_reply(reply, output)

    ask(target, json, timeout, work)


def followup(
    agent: AgentArgument,
    words: Words = None,
    expires_in: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Drop the message if it has not begun by then."),
    ] = None,
    passive: Annotated[
        bool, typer.Option("--passive", help="Wake nobody: wait for other work of the agent.")
    ] = False,
    key: KeyOption = "",
    target: Target = HERE,
    json: Json = False,
    timeout: Timeout = None,
) -> None:
    """Leave a message for a later turn, and print its receipt at once.

    \b
    innkeeper followup concierge/lobby "and book a table for two"
    """
    message = said(words or ["-"])

    async def work(client: Client, output: Output) -> None:
        handle = client.agent(agent.type, agent.id)
        receipt = await handle.followup(
            message, expires_in=expires_in, idempotency_key=key, passive=passive
        )
        if output.as_json:
            output.document({"receipt": receipt})
        else:
            output.text(f"{receipt.receipt_id}\t{receipt.state}")

    ask(target, json, timeout, work)


def receipt(
    receipt_id: Annotated[str, typer.Argument(help="From `innkeeper followup`.")],
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it has ended, or for --timeout seconds.")
    ] = False,
    target: Target = HERE,
    json: Json = False,
    timeout: Timeout = None,
) -> None:
    """Tell how a follow-up stands: accepted, running, completed, failed, cancelled, expired, or
    dead_lettered.

    \b
    innkeeper receipt 5f0c9a6d7e --wait
    """

    async def work(client: Client, output: Output) -> Exit | None:
        found = await client.receipt(receipt_id, wait=wait)
        if output.as_json:
            output.document({"receipt": found})
        else:
            output.text(f"{found.receipt_id}\t{found.state}")
            if found.output is not None:
                output.value(found.output)
            if found.error is not None:
                output.complaint(str(found.error))
        return Exit.OK if found.error is None else Exit.FAILED

    ask(target, json, timeout, work)


def cancel(
    agent: AgentArgument,
    scope: Annotated[
        Scope | None,
        typer.Option("--scope", help="The running turn (default), what waits behind it, or both."),
    ] = None,
    id: Annotated[
        str, typer.Option("--id", metavar="ID", help="Only the work with this turn or receipt id.")
    ] = "",
    target: Target = HERE,
    json: Json = False,
    timeout: Timeout = None,
) -> None:
    """Stop work of an agent at once, and print what was stopped.

    \b
    innkeeper cancel concierge/lobby
    innkeeper cancel concierge/lobby --scope all
    """
    if id and scope:
        raise typer.BadParameter("give --scope or --id, not both")

    async def work(client: Client, output: Output) -> None:
        handle = client.agent(agent.type, agent.id)
        stopped = await handle.cancel(scope.value if scope else None, id=id)
        if output.as_json:
            output.document({"cancelled": stopped})
        elif stopped:
            output.table(
                ["id", "kind", "running"], [(w.id, w.kind, w.was_running) for w in stopped]
            )
        else:
            output.aside("nothing to stop")

    ask(target, json, timeout, work)


async def print_reply(reply: Reply, output: Output) -> Exit | None:
    """Print a reply while it comes."""
    streamed = False
    async for event in reply:
        if output.as_json:
            output.line(event_line(event))
        elif event.text:
            output.piece(event.text)
            streamed = True
        elif isinstance(event, Custom):
            output.custom(event)
    if streamed and not output.as_json:
        output.text("")
    elif not output.as_json:
        output.value(reply.output)
    return None


def event_line(event: object) -> dict[str, Any]:
    """The JSON form of an event."""
    kind = type(event).__name__.lower()
    cursor = getattr(event, "cursor", None)
    told: dict[str, Any] = (
        {"event": kind} if cursor is None else {"event": kind, "cursor": f"{cursor}"}
    )
    if isinstance(event, Completed):
        return {**told, "output": plain(event.output)}
    if isinstance(event, Custom):
        return {**told, "name": event.name, "data": event.data}
    if isinstance(event, Failed):
        return {**told, "error": plain(event.error)}
    if isinstance(event, Cancelled):
        return {**told, "reason": event.reason}
    if isinstance(event, Gap):
        return {**told, "missed": event.missed}
    return {**told, "text": getattr(event, "text", "")}


def parsed_cursor(text: str) -> Cursor:
    """A cursor as it is written on a command line."""
    try:
        return Cursor.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


async def _picked_up(client: Client, output: Output, agent: AgentRef, after: Cursor) -> Exit | None:
    async with client.agent(agent.type, agent.id).resume(after) as reply:
        return await print_reply(reply, output)


def split_words(words: list[str]) -> tuple[str, list[str]]:
    """The action, which may be left out, and the arguments."""
    if words and "=" not in words[0] and words[0] != "-":
        return words[0], words[1:]
    return "", words


def whole_input(arguments: list[str], input: str | None, text: str | None) -> Any:
    """The input that is not by name, or ABSENT."""
    given = [option for option in (input, text) if option is not None]
    if len(given) + bool(arguments) > 1:
        raise typer.BadParameter("give NAME=VALUE arguments, --input, --text or '-': one of them")
    if text is not None:
        return standard_input() if text == "-" else text
    if input is not None:
        return _json_input(standard_input() if input == "-" else input)
    if arguments == ["-"]:
        piped = standard_input()
        try:
            return parse_json(piped)
        except ValueError:
            return piped
    return ABSENT


def named_arguments(arguments: list[str]) -> dict[str, Any]:
    """NAME=VALUE pairs."""
    named: dict[str, Any] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"{argument!r} is not NAME=VALUE")
        if name in named:
            raise typer.BadParameter(f"{name!r} is given twice")
        try:
            named[name] = parse_json(value)
        except ValueError:
            named[name] = value
    return named


def said(words: list[str]) -> str:
    """A message from the command line or standard input."""
    return standard_input().removesuffix("\n") if words == ["-"] else " ".join(words)


def _json_input(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise typer.BadParameter(f"--input is not JSON: {error}") from None
