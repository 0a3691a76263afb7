"""How handlers meet gRPC's server: accept lanes, reflection, and methods that nobody knows.

Owns the lanes. The server accepts calls one by one in each lane: every registered method has a
lane of its own, all others share one, and each lane costs a little on every call. So the few
methods that must never stand behind others are registered, and the rest are not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from innkeeper_server.errors import InnkeeperError
from innkeeper_server.mailbox import Call
from innkeeper_server.rpc.boundary import Boundary, Read, Write
from innkeeper_server.rpc.ending import Ending, at_most

Handlers = dict[str, "grpc.RpcMethodHandler[Any, Any]"]

# Those that must answer beside the hot ones, which share the common lane with all the rest.
QUICK = {
    "innkeeper.v1.AgentService": ("Cancel",),
    "grpc.health.v1.Health": ("Check",),
}

MAX_REFLECTIONS = 100  # at once

REFLECTION = "grpc.reflection.v1alpha.ServerReflection"
# The same protocol under its later name; not listed, since the library has no descriptor of it.
REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"


class UnknownMethod(InnkeeperError):
    """The host knows no such method."""

    code = grpc.StatusCode.UNIMPLEMENTED
    reason = "UNKNOWN_METHOD"


def register(server: grpc.aio.Server, boundary: Boundary, services: Mapping[str, Handlers]) -> None:
    """Serve the services, by full name, and refuse everything else. Before the server starts."""
    for name, handlers in services.items():
        quick = {method: handlers[method] for method in QUICK.get(name, ()) if method in handlers}
        if quick:
            server.add_registered_method_handlers(name, quick)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
    server.add_generic_rpc_handlers((_Nobody(boundary),))


def reflect(boundary: Boundary, ending: Ending, services: Iterable[str]) -> dict[str, Handlers]:
    """Reflection on services, by full name, so that tools need no schema."""
    servicer = reflection.aio.ReflectionServicer((*services, REFLECTION))

    async def serve(read: Read, write: Write, _: Call) -> None:
        async def requests() -> AsyncIterator[Any]:
            while (request := await ending.wait_for(read())) is not None:
                yield request

        async for answer in servicer.ServerReflectionInfo(requests(), None):
            await write(answer)

    bounded = at_most(MAX_REFLECTIONS, serve)
    return {
        name: {
            "ServerReflectionInfo": boundary.conversation(
                f"{name}/ServerReflectionInfo", reflection_pb2.ServerReflectionRequest, bounded
            )
        }
        for name in (REFLECTION, REFLECTION_V1)
    }


class _Nobody(grpc.GenericRpcHandler):
    """Answers for every method that has no other handler."""

    def __init__(self, boundary: Boundary) -> None:
        self._handler = boundary.conversation("unknown", reflection_pb2.ErrorResponse, self._serve)

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any]:
        return self._handler

    async def _serve(self, _: Read, __: Write, ___: Call) -> None:
        raise UnknownMethod("this host knows no such method")
