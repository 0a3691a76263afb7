"""CatalogService: what exists, resident or not.

Owns the translation. Reading wakes nobody.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from innkeeper.v1 import catalog_service_pb2 as pb
from innkeeper_server.errors import InvalidRequest
from innkeeper_server.host import Host
from innkeeper_server.mailbox import Call
from innkeeper_server.rpc.boundary import Boundary
from innkeeper_server.rpc.convert import from_value
from innkeeper_server.rpc.views import (
    addressed,
    narrowed,
    page_size,
    place_of,
    to_agent,
    to_agent_type,
    token_of,
)

SERVICE = "innkeeper.v1.CatalogService"


class CatalogService:
    """See the module."""

    def __init__(self, host: Host, boundary: Boundary) -> None:
        self._host = host
        self._boundary = boundary

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The methods of the service."""
        unary = self._boundary.unary
        return {
            "ListAgentTypes": unary(
                f"{SERVICE}/ListAgentTypes", pb.ListAgentTypesRequest, self._types
            ),
            "ListAgents": unary(f"{SERVICE}/ListAgents", pb.ListAgentsRequest, self._list),
            "GetAgent": unary(f"{SERVICE}/GetAgent", pb.GetAgentRequest, self._get),
            "UpdateState": unary(f"{SERVICE}/UpdateState", pb.UpdateStateRequest, self._update),
            "DeleteAgent": unary(f"{SERVICE}/DeleteAgent", pb.DeleteAgentRequest, self._delete),
        }

    async def _types(self, _: pb.ListAgentTypesRequest, __: Call) -> pb.ListAgentTypesResponse:
        types = self._host.registry.types()
        return pb.ListAgentTypesResponse(agent_types=map(to_agent_type, types))

    async def _list(self, request: pb.ListAgentsRequest, call: Call) -> pb.ListAgentsResponse:
        type, prefix = narrowed(request.type, request.filter)
        size = page_size(request.page_size)
        place = place_of(request.page_token, str, str)
        views = await self._host.list_agents(
            call.tenant,
            type=type,
            prefix=prefix,
            after=(place[0], place[1]) if place else None,
            limit=size + 1,  # one more tells whether there is another page
        )
        page = pb.ListAgentsResponse(agents=[to_agent(v, with_state=False) for v in views[:size]])
        if len(views) > size:
            last = views[size - 1].record.key
            page.next_page_token = token_of([last.type, last.id])
        return page

    async def _get(self, request: pb.GetAgentRequest, call: Call) -> pb.GetAgentResponse:
        key = addressed(self._host, request.agent, call.tenant)
        view = await self._host.get_agent(key)
        return pb.GetAgentResponse(agent=to_agent(view, with_state=True))

    async def _update(self, request: pb.UpdateStateRequest, call: Call) -> pb.UpdateStateResponse:
        key = addressed(self._host, request.agent, call.tenant)
        if not request.HasField("state"):
            raise InvalidRequest.of("state", "must be set")
        expected = request.expected_version if request.HasField("expected_version") else None
        if expected is not None and expected < 0:
            raise InvalidRequest.of("expected_version", "must not be negative")
        envelope = self._host.update_state(
            key, from_value(request.state, "state"), call, expected_version=expected
        )
        try:
            await envelope.outcome()
        except asyncio.CancelledError:
            self._host.caller_left(envelope)
            raise
        view = await self._host.get_agent(key)
        return pb.UpdateStateResponse(agent=to_agent(view, with_state=True))

    async def _delete(self, request: pb.DeleteAgentRequest, call: Call) -> pb.DeleteAgentResponse:
        key = addressed(self._host, request.agent, call.tenant)
        return pb.DeleteAgentResponse(deleted=await self._host.delete_agent(key))
