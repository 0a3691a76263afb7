"""What the tests of agents share: a key, turns with a reader, and a host of one process that runs
nested calls at once."""

from __future__ import annotations

import asyncio
from typing import Any

from innkeeper_server.agent import Turn, current_turn
from innkeeper_server.content import Content
from innkeeper_server.events import Body, Custom, Outbox, Text
from innkeeper_server.identity import AgentKey
from innkeeper_server.registry import AgentType, Registry
from innkeeper_server.work import Work

KEY = AgentKey("default", "thing", "a")
FUSE = 20.0  # seconds; only ever reached by a test that fails


class NoHost:
    """For agents that ask nothing of their host."""

    def agent(self, type: str, id: str) -> Any:
        raise AssertionError("no nested calls here")

    def spawn(self, job: Any, *, name: str | None = None) -> Any:
        return asyncio.get_running_loop().create_task(job, name=name)


class SmallHost(NoHost):
    """Runs nested invokes on agents that it makes as they are asked for."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.living: dict[AgentKey, Any] = {}

    def find(self, type: str, id: str) -> Any:
        key = AgentKey("default", type, id)
        if key not in self.living:
            self.living[key] = self.registry.resolve(type).create(key, self, None)
        return self.living[key]

    def agent(self, type: str, id: str) -> Any:
        return _Handle(self, type, id)


class _Handle:
    def __init__(self, host: SmallHost, type: str, id: str) -> None:
        self.host, self.type, self.id = host, type, id

    async def invoke(self, action: str = "", /, **arguments: Any) -> Any:
        agent = self.host.find(self.type, self.id)
        work = self.host.registry.resolve(self.type).bind_invoke(action, arguments or None)
        return (await carried_out(work, agent))[0]


def made(source: Any, host: Any = None) -> tuple[AgentType, Any]:
    """A type and a new instance of it."""
    type = Registry().register(source)
    return type, type.create(AgentKey("default", type.name, "a"), host or NoHost(), None)


def turn_of(work: Work | None = None, outbox: Outbox | None = None) -> Turn:
    kind = "chat" if work is None else work.kind
    return Turn(id="t1", kind=kind, key=KEY, epoch=3, outbox=outbox)


async def carried_out(work: Work, agent: Any) -> tuple[Content, list[Body]]:
    """Run work as the host does, in a task with a turn of its own; its output, and what it said."""
    outbox = Outbox(reader_timeout=FUSE)
    turn = turn_of(work, outbox)

    async def run() -> Content:
        current_turn.set(turn)
        return await work.run(agent, turn)

    output = await asyncio.get_running_loop().create_task(run())
    said = await outbox.read() if turn.last_seq else []
    assert [event.seq for event in said] == list(range(1, turn.last_seq + 1))
    return output, [event.body for event in said]


def text_of(said: list[Body]) -> str:
    return "".join(body.delta for body in said if isinstance(body, Text))


def customs_of(said: list[Body]) -> list[tuple[str, Any]]:
    return [(body.name, body.data) for body in said if isinstance(body, Custom)]
