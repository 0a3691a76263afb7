"""What exists, resident or not.

Owns `Catalog`, the calls of CatalogService. Reading wakes nobody.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from innkeeper.v1 import catalog_service_pb2 as catalog_pb
from innkeeper.v1 import catalog_service_pb2_grpc as catalog_rpc

from .calls import Caller
from .records import AgentRef, AgentType, CatalogEntry, record, to_ref
from .values import to_value


class Catalog:
    """The agents of the caller's tenant. `timeout` is in seconds; every call raises
    InnkeeperError."""

    def __init__(self, caller: Caller, stub: catalog_rpc.CatalogServiceAsyncStub) -> None:
        self._caller = caller
        self._stub = stub

    async def types(self, *, timeout: float | None = None) -> list[AgentType]:
        """The kinds of agents that the host serves, and what they can do."""
        response = await self._caller.unary(
            self._stub.ListAgentTypes,
            catalog_pb.ListAgentTypesRequest(),
            timeout=timeout,
            harmless=True,
        )
        return [record(agent_type, AgentType) for agent_type in response.agent_types]

    async def list(
        self,
        type: str = "",
        *,
        prefix: str = "",
        page_size: int = 100,
        timeout: float | None = None,
    ) -> AsyncIterator[CatalogEntry]:
        """Agents by type and id, without their states; `timeout` holds for each page."""
        request = catalog_pb.ListAgentsRequest(type=type, filter=prefix, page_size=page_size)
        while True:
            page = await self._caller.unary(
                self._stub.ListAgents, request, timeout=timeout, harmless=True
            )
            for agent in page.agents:
                yield record(agent, CatalogEntry)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def get(self, agent: AgentRef | str, *, timeout: float | None = None) -> CatalogEntry:
        """One agent with its last committed state."""
        response = await self._caller.unary(
            self._stub.GetAgent,
            catalog_pb.GetAgentRequest(agent=to_ref(agent)),
            timeout=timeout,
            harmless=True,
        )
        return record(response.agent, CatalogEntry)

    async def update_state(
        self,
        agent: AgentRef | str,
        state: object,
        *,
        expected_version: int | None = None,
        timeout: float | None = None,
    ) -> CatalogEntry:
        """Replace the state, as a turn of its own; VersionMismatch unless it has that version."""
        request = catalog_pb.UpdateStateRequest(
            agent=to_ref(agent),
            state=to_value(state, "state"),
            expected_version=expected_version,
        )
        response = await self._caller.unary(self._stub.UpdateState, request, timeout=timeout)
        return record(response.agent, CatalogEntry)

    async def delete(self, agent: AgentRef | str, *, timeout: float | None = None) -> bool:
        """End an identity for ever; False if it was gone already."""
        response = await self._caller.unary(
            self._stub.DeleteAgent,
            catalog_pb.DeleteAgentRequest(agent=to_ref(agent)),
            timeout=timeout,
        )
        return response.deleted
