"""A conversation with one agent on a terminal.

Owns reading lines without a thread, and what Ctrl-C means: stop the answer; at the prompt, leave.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

from innkeeper_client import AgentRef, Client, Custom, Gap, GoingAway, InnkeeperError, Session
from innkeeper_client.errors import ClientClosed, OutcomeUnknown
from innkeeper_server.cli.asking import Work
from innkeeper_server.cli.exits import Exit
from innkeeper_server.cli.output import Output
from innkeeper_server.cli.talk import print_reply


def converse(agent: AgentRef) -> Work:
    """The work of an interactive chat: one session, one turn a line."""

    async def work(client: Client, output: Output) -> Exit | None:
        async with client.agent(agent.type, agent.id).session() as session:
            output.aside(f"talking to {session.agent} · Ctrl-C stops an answer, Ctrl-D ends")
            listening = asyncio.create_task(_listen(session, output))
            try:
                async for line in _lines("> "):
                    if line.strip():
                        await _say(session, line, output)
            finally:
                listening.cancel()
                await asyncio.wait([listening])
        return None

    return work


async def _say(session: Session, line: str, output: Output) -> None:
    """One turn. A failed one is told, and the conversation goes on while the session does."""
    speaking = asyncio.create_task(print_reply(session.chat(line), output))
    try:
        with _on_interrupt(speaking.cancel):
            await asyncio.wait([speaking])
    finally:
        speaking.cancel()
    if speaking.cancelled():
        output.text("")
        output.aside("(stopped)")
        return
    error = speaking.exception()
    if isinstance(error, InnkeeperError) and not isinstance(error, ClientClosed | OutcomeUnknown):
        output.error(error)
    elif error is not None:
        raise error


async def _listen(session: Session, output: Output) -> None:
    """What the agent says unasked."""
    try:
        async for push in session.events():
            if isinstance(push, GoingAway):
                output.aside(f"{push.agent or 'the host'} is about to leave: {push.reason}")
            elif isinstance(push, Gap):
                output.aside(f"{push.missed} events were missed")
            elif isinstance(push, Custom):
                output.custom(push)
            elif push.text:
                output.text(push.text)
    except InnkeeperError:
        return  # The next turn tells it.


async def _lines(prompt: str) -> AsyncIterator[str]:
    """Lines of the terminal, which edits them itself, until its end."""
    waiting = b""
    while True:
        sys.stdout.write(prompt)
        sys.stdout.flush()
        while b"\n" not in waiting:
            await _readable(sys.stdin.fileno())
            chunk = os.read(sys.stdin.fileno(), 65_536)
            if not chunk:
                sys.stdout.write("\n")
                return
            waiting += chunk
        line, _, waiting = waiting.partition(b"\n")
        yield line.decode(errors="replace")


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


@contextmanager
def _on_interrupt(act: Callable[[], object]) -> Iterator[None]:
    """Inside, SIGINT acts; outside, it does what it did before."""
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGINT)
    loop.add_signal_handler(signal.SIGINT, act)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)
