"""A host for the tests of authors: their agents, a store in memory, and short ways to call them.

Owns `hosted`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from innkeeper_server.agent import Agent
from innkeeper_server.content import Content
from innkeeper_server.events import Custom, Text
from innkeeper_server.host import Host
from innkeeper_server.identity import AgentKey, check_id
from innkeeper_server.limits import Limits
from innkeeper_server.mailbox import Call
from innkeeper_server.registry import Registry
from innkeeper_server.slots import LeaseKind
from innkeeper_server.store import MemoryStore, Store

TENANT = "default"


class Hosted:
    """Short ways to a host's agents; `host` is the host itself."""

    def __init__(self, host: Host) -> None:
        self.host = host

    async def invoke(self, type: str, id: str, action: str = "", /, **arguments: Any) -> Content:
        """Run an action; return its output, or raise what the turn ended with."""
        envelope = self.host.invoke(self._key(type, id), action, arguments or None, Call())
        return await envelope.outcome()

    async def chat(self, type: str, id: str, message: Content) -> list[str | Custom]:
        """Run a chat turn; return all it says."""
        envelope = self.host.chat(self._key(type, id), message, Call())
        assert envelope.outbox is not None
        said: list[str | Custom] = []
        while events := await envelope.outbox.read():
            for event in events:
                if isinstance(event.body, Text):
                    said.append(event.body.delta)
                elif isinstance(event.body, Custom):
                    said.append(event.body)
        await envelope.outcome()
        return said

    async def followup(self, type: str, id: str, message: Content) -> str:
        """Leave a message; return its receipt's id once it is accepted."""
        envelope = self.host.followup(self._key(type, id), message, Call())
        await envelope.accepted()
        return envelope.id

    async def evict(self, type: str, id: str) -> None:
        """Have an idle agent leave memory; raises AgentOwned if somebody owns it."""
        await self.host.operators.evict(self._key(type, id))

    def residents(self) -> list[str]:
        """Who is in memory, as `type/id`."""
        return sorted(str(key) for key in self.host.account.slots)

    def why(self, type: str, id: str) -> str:
        """Why an agent stays or leaves, in a sentence."""
        return self.host.operators.explain(self._key(type, id))[0].summary

    def owners(self, type: str, id: str) -> list[LeaseKind]:
        """What keeps an agent in memory."""
        slot = self.host.account.slots.get(self._key(type, id))
        return [lease.kind for lease in slot.leases or ()] if slot is not None else []

    def _key(self, type: str, id: str) -> AgentKey:
        return AgentKey(TENANT, type, check_id(id))


@asynccontextmanager
async def hosted(
    *agents: type[Agent[Any]] | Callable[..., Any], store: Store | None = None, **limits: Any
) -> AsyncIterator[Hosted]:
    """A host of these agents, with `Limits` by name; closed at the end, and its account checked."""
    registry = Registry()
    for agent in agents:
        registry.register(agent)
    host = Host(registry, store or MemoryStore(), Limits(**limits))
    await host.start()
    try:
        yield Hosted(host)
        host.account.check()
    finally:
        await host.close()
