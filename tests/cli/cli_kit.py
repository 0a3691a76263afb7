"""A real host in this process, and the command line in a thread beside it.

Owns the house that the commands are tried in.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from typer.testing import CliRunner

from innkeeper_client import Client
from innkeeper_server import Agent, AgentError, action
from innkeeper_server.cli.app import app
from innkeeper_server.registry import Registry
from innkeeper_server.server import Server

# A fuse: no test needs it, a hanging one ends by it.
FUSE = 60.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its one JSON document."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Its JSON documents, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


class House:
    """A host with two slots, and agents that can be held at a gate."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.held = asyncio.Event()
        self.server: Server

    async def run(self, *arguments: str, input: str | None = None) -> Ended:
        """Run a command against the host."""
        environment = {"INNKEEPER_TARGET": self.server.address}
        ended = await asyncio.to_thread(
            CliRunner().invoke, app, arguments, input=input, env=environment
        )
        return Ended(ended.exit_code, ended.stdout, ended.stderr)

    @asynccontextmanager
    async def holding(self, id: str) -> AsyncIterator[asyncio.Task[Any]]:
        """A guest that is held in a turn. Commands change where a process prints, so they must not
        run two at a time; this is a client's call."""
        async with Client(self.server.address) as client:
            call = asyncio.create_task(client.agent("guest", id).invoke("hold"))
            await self.held.wait()
            yield call

    def registry(self) -> Registry:
        """What the host serves."""
        gate, held = self.gate, self.held

        class Guest(Agent[dict[str, int]]):
            """Counts, and can be held."""

            @action
            async def add(self, n: int = 1) -> int:
                """Add to the count."""
                self.state["count"] = self.state.get("count", 0) + n
                return self.state["count"]

            @action
            async def hold(self) -> str:
                """Wait at the gate."""
                held.set()
                await gate.wait()
                return "let go"

            @action
            async def fail(self, how: str = "") -> None:
                """Fail on purpose, or not on purpose."""
                if how:
                    raise AgentError(how, "as you wish", {"book": "none"})
                raise ZeroDivisionError("a secret")

            @action
            async def show(self) -> dict[str, Any]:
                """Show what it knows of the caller."""
                return {"request": self.turn.request_id, "state": self.state}

        async def echo(message: str) -> AsyncIterator[str]:
            """Says what it hears, word by word."""
            for word in message.split(" "):
                yield word + " "

        async def tally(message: str) -> AsyncIterator[Any]:
            """Echoes, and counts the words."""
            async for word in echo(message):
                yield word
            yield {"words": len(message.split(" "))}

        registry = Registry()
        for source in (Guest, echo, tally):
            registry.register(source)
        return registry
