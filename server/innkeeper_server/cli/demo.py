"""`innkeeper demo`: a host in this process, and a conversation with its agents.

Owns the script. Everything shown is real: the client's calls go over the host's socket, and what is
printed is what came back.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from innkeeper_client import AgentRef, Client, InnkeeperError, RemoteAgent
from innkeeper_server.cli.exits import Exit
from innkeeper_server.cli.look import show_explanation, show_residents
from innkeeper_server.cli.output import Output
from innkeeper_server.cli.talk import print_reply

if TYPE_CHECKING:
    from innkeeper_server.server import Server

ROOM = 2
PATIENCE = 0.3  # seconds that a caller waits for a slot; long enough to be seen


def demo(
    serve: Annotated[
        bool, typer.Option("--serve", help="Keep the host running afterwards, to try things.")
    ] = False,
) -> None:
    """Watch a host at work: streamed text, kept state, an eviction, a refusal and a return.

    It starts a host of its own on a free port with room for two agents, talks to three of them, and
    cleans up. Takes a few seconds and touches nothing else.
    """
    try:
        asyncio.run(_show(serve))
    except InnkeeperError as error:
        Output(as_json=False).error(error)
        raise typer.Exit(Exit.FAILED) from None
    except KeyboardInterrupt:
        raise typer.Exit(Exit.OK if serve else Exit.INTERRUPTED) from None


async def _show(stay: bool) -> None:
    async with _host() as server, Client(server.address) as client:
        await Script(client, server.address).run()
        if stay:
            _what_next(server.address)
            await asyncio.Event().wait()


@asynccontextmanager
async def _host() -> AsyncIterator[Server]:
    """A host with the example agents and little room; its states are gone at the end."""
    from innkeeper_server.config import Settings
    from innkeeper_server.server import serving

    with tempfile.TemporaryDirectory(prefix="innkeeper-demo-") as directory:
        # Constructed, not read: variables and files that are meant for `serve` have no say here.
        settings = Settings.model_construct(
            agents=("innkeeper_server.demo",),
            listen="127.0.0.1:0",
            store=f"sqlite:///{Path(directory) / 'states.db'}",
            capacity=ROOM,
            idle_timeout=600.0,
            admission_timeout=PATIENCE,
        )
        async with serving(settings) as server:
            yield server


class Script:
    """The conversation, step by step."""

    def __init__(self, client: Client, address: str) -> None:
        self._client = client
        self._address = address
        self._output = Output(as_json=False, story=True)

    async def run(self) -> None:
        """All of it. Raises InnkeeperError where the host does not do as told here."""
        self._tell(f"A host listens on {self._address}. It has room for {ROOM} agents in memory.")

        self._tell("An agent comes to life when somebody calls it. This one speaks as it thinks:")
        await self._chat("concierge/lobby", "I am Ada")
        await self._chat("concierge/lobby", "remember that the train leaves at nine")

        self._tell("Another keeps a number. What an agent keeps is stored before you are answered:")
        await self._invoke("counter/a", "add", n=2)
        await self._invoke("counter/a", "add", n=40)

        self._tell("Both are in memory now, and nobody owns them:")
        await self._residents()

        self._tell("A third agent needs a slot. The one that was idle longest makes room:")
        await self._invoke("counter/b", "add")
        await self._residents()
        await self._why("concierge/lobby")

        self._tell("It left memory, not the house. Talk to it, and it is back, with all it knew:")
        await self._chat("concierge/lobby", "who am I?")
        await self._chat("concierge/lobby", "what do you remember?")

        self._tell("Whoever is owned never leaves. Pin both, and a third is refused, with reasons:")
        await self._pin("concierge/lobby")
        await self._pin("counter/b")
        await self._refused("counter/a", "get")

        self._tell("Take one pin back, and there is room again; the number was kept:")
        await self._unpin("counter/b")
        await self._invoke("counter/a", "get")
        await self._unpin("concierge/lobby")
        self._tell("That is Innkeeper: a limit that holds, and nobody stopped while in use.")

    async def _chat(self, agent: str, message: str) -> None:
        self._command(f'chat {agent} "{message}"')
        async with self._agent(agent).chat(message) as reply:
            await print_reply(reply, self._output)

    async def _invoke(self, agent: str, action: str, **arguments: int) -> None:
        words = [f"{name}={value}" for name, value in arguments.items()]
        self._command(" ".join(["invoke", agent, action, *words]))
        self._output.value(await self._agent(agent).invoke(action, input=arguments))

    async def _residents(self) -> None:
        self._command("residents")
        totals = await self._client.residency.get()
        show_residents(totals, [r async for r in self._client.residency.list()], self._output)

    async def _why(self, agent: str) -> None:
        self._command(f"why {agent}")
        show_explanation(await self._client.residency.explain(agent), self._output)

    async def _pin(self, agent: str) -> None:
        self._command(f"pin {agent} --ttl 60 --owner demo")
        pinned = await self._client.residency.pin(agent, ttl=60, owner="demo")
        self._output.text(f"{agent} stays (runtime {pinned.runtime_id})")

    async def _unpin(self, agent: str) -> None:
        self._command(f"unpin {agent} --owner demo")
        taken = await self._client.residency.unpin(agent, owner="demo")
        self._output.text(f"took back {taken} pin")

    async def _refused(self, agent: str, action: str) -> None:
        self._command(f"invoke {agent} {action}")
        try:
            await self._agent(agent).invoke(action, timeout=3 * PATIENCE)
        except InnkeeperError as error:
            if error.reason != "CAPACITY_EXHAUSTED":
                raise
            self._output.error(error)
        else:
            raise InnkeeperError("a third agent came in although both slots are owned")

    def _agent(self, name: str) -> RemoteAgent:
        ref = AgentRef.parse(name)
        return self._client.agent(ref.type, ref.id)

    def _tell(self, words: str) -> None:
        typer.echo()
        typer.echo(typer.style(words, bold=True))

    def _command(self, words: str) -> None:
        typer.echo(typer.style(f"$ innkeeper {words}", fg="cyan"))


def _what_next(address: str) -> None:
    typer.echo()
    typer.echo(typer.style("The host stays up until Ctrl-C. In another terminal:", bold=True))
    typer.echo(f"  export INNKEEPER_TARGET={address}")
    for command in (
        "types",
        "chat concierge/lobby",
        'chat planner/mine "buy bread; call Ada"',
        "invoke counter/a add n=5",
        "residents",
        "why concierge/lobby",
        "capacity 3",
    ):
        typer.echo(f"  innkeeper {command}")
