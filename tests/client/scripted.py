"""A host that answers from a script: real grpc.aio on loopback, no agents behind it.

Owns the servicers whose answers a test writes down, and the ways in which a real host, or the
network, refuses.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2 as details_pb
from google.rpc import status_pb2
from grpc import aio

from innkeeper.v1 import agent_service_pb2_grpc as agent_rpc
from innkeeper.v1 import catalog_service_pb2_grpc as catalog_rpc
from innkeeper.v1 import residency_service_pb2_grpc as residency_rpc
from innkeeper_client import Client, Retry

# A fuse: no test needs it, a hanging one ends by it.
FUSE = 30.0

Answer = Message | BaseException | Callable[[Any, Any], Awaitable[Any]]


def status(
    code: grpc.StatusCode,
    reason: str = "",
    message: str = "no",
    *,
    retry: float | None = None,
    violations: tuple[tuple[str, str], ...] = (),
    domain: str = "innkeeper",
    **metadata: str,
) -> status_pb2.Status:
    """A status with the details that a host gives."""
    result = status_pb2.Status(code=code.value[0], message=message)
    if reason:
        info = details_pb.ErrorInfo(reason=reason, domain=domain, metadata=metadata)
        result.details.add().Pack(info)
    if retry is not None:
        delay = Duration(nanos=int(retry % 1 * 1e9), seconds=int(retry))
        result.details.add().Pack(details_pb.RetryInfo(retry_delay=delay))
    if violations:
        bad = details_pb.BadRequest()
        for field, description in violations:
            bad.field_violations.add(field=field, description=description)
        result.details.add().Pack(bad)
    return result


class Refusal(Exception):
    """Makes the scripted RPC end with this status."""

    def __init__(self, code: grpc.StatusCode, *args: Any, push: str = "", **kwargs: Any) -> None:
        super().__init__(code)
        self.code = code
        self.status = status(code, *args, **kwargs)
        self.push = push

    async def __call__(self, context: aio.ServicerContext[Any, Any]) -> None:
        trailing: list[tuple[str, str | bytes]] = []
        if self.status.details:
            trailing.append(("grpc-status-details-bin", self.status.SerializeToString()))
        if self.push:
            trailing.append(("grpc-retry-pushback-ms", self.push))
        context.set_trailing_metadata(tuple(trailing))
        await context.abort(self.code, self.status.message)


class Scripted:
    """Answers each RPC with the next line of its script, and keeps what was asked."""

    def __init__(self) -> None:
        self.script: deque[Any] = deque()
        self.asked: list[Any] = []
        self.metadata: list[dict[str, Any]] = []

    def will(self, *answers: Any) -> None:
        """Append answers: a message, a list of messages, a Refusal, or an async function."""
        self.script.extend(answers)

    async def _unary(self, request: Any, context: aio.ServicerContext[Any, Any]) -> Any:
        answer = self._next(request, context)
        if isinstance(answer, Refusal):
            await answer(context)
        return await answer(request, context) if callable(answer) else answer

    async def _stream(self, request: Any, context: aio.ServicerContext[Any, Any]) -> None:
        answer = self._next(request, context)
        if callable(answer) and not isinstance(answer, Refusal):
            await answer(request, context)
            return
        for item in answer if isinstance(answer, list) else [answer]:
            if isinstance(item, Refusal):
                await item(context)
            await context.write(item)

    def _next(self, request: Any, context: aio.ServicerContext[Any, Any]) -> Any:
        self.asked.append(request)
        self.metadata.append(dict(context.invocation_metadata() or ()))
        assert self.script, f"nobody expected {type(request).__name__}"
        return self.script.popleft()


_UNARY = "_unary"
_STREAM = "_stream"


def _servicer(base: type, **shapes: str) -> type:
    members = {name: getattr(Scripted, shape) for name, shape in shapes.items()}
    return type(f"Scripted{base.__name__}", (Scripted, base), members)


ScriptedAgents = _servicer(
    agent_rpc.AgentServiceServicer,
    Invoke=_UNARY, StreamChat=_STREAM, Subscribe=_STREAM, Followup=_UNARY, Cancel=_UNARY,
    Session=_STREAM,
)  # fmt: skip
ScriptedCatalog = _servicer(
    catalog_rpc.CatalogServiceServicer,
    ListAgentTypes=_UNARY, ListAgents=_UNARY, GetAgent=_UNARY, UpdateState=_UNARY,
    DeleteAgent=_UNARY,
)  # fmt: skip
ScriptedResidency = _servicer(
    residency_rpc.ResidencyServiceServicer,
    GetResidency=_UNARY, ListResidents=_UNARY, ExplainResident=_UNARY, WatchResidency=_STREAM,
    Evict=_UNARY, Pin=_UNARY, Unpin=_UNARY, SetCapacity=_UNARY, Reconcile=_UNARY, Drain=_STREAM,
    Undrain=_UNARY,
)  # fmt: skip


class Naps:
    """Stands in for `asyncio.sleep`: keeps the pauses and takes none."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)


class World:
    """A scripted host, and a client of it whose pauses take no time."""

    def __init__(self) -> None:
        self.agents: Any = ScriptedAgents()
        self.catalog: Any = ScriptedCatalog()
        self.residency: Any = ScriptedResidency()
        self.naps = Naps()
        self.server = aio.server(options=[("grpc.so_reuseport", 0)])
        agent_rpc.add_AgentServiceServicer_to_server(self.agents, self.server)
        catalog_rpc.add_CatalogServiceServicer_to_server(self.catalog, self.server)
        residency_rpc.add_ResidencyServiceServicer_to_server(self.residency, self.server)
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.target = f"127.0.0.1:{self.port}"
        self.client: Client

    def new_client(self, **settings: Any) -> Client:
        """Another client of the same host."""
        # A random of 1 leaves each pause whole: 0.1, 0.2, 0.4 seconds.
        retry = Retry(sleep=self.naps, random=lambda: 1.0)
        return Client(self.target, **{"retry": retry, **settings})


@asynccontextmanager
async def world(**settings: Any) -> AsyncIterator[World]:
    """A running world."""
    it = World()
    await it.server.start()
    it.client = it.new_client(**settings)
    try:
        async with asyncio.timeout(FUSE):
            yield it
    finally:
        await it.client.close()
        await it.server.stop(0)
