"""What the server's tests share: agents that stop where a test wants, stubs, and errors as read.

Owns nothing of the server: everything goes over real loopback sockets.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
from google.protobuf.struct_pb2 import Value
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2_grpc
from pydantic import BaseModel

from innkeeper.v1 import agent_service_pb2_grpc as agent_rpc
from innkeeper.v1 import catalog_service_pb2_grpc as catalog_rpc
from innkeeper.v1 import common_pb2 as common_pb
from innkeeper.v1 import residency_service_pb2_grpc as residency_rpc
from innkeeper_server import Agent, action
from innkeeper_server.registry import Registry

FUSE = 30.0  # seconds; whatever needs more hangs
_FUSED = json.dumps({"methodConfig": [{"name": [{}], "timeout": f"{FUSE:.0f}s"}]})


class Ledger(BaseModel):
    """What a guest keeps."""

    count: int = 0


def registry_with(gate: Gate) -> Registry:
    """A host that serves guests, who can be held at a gate, and `echo`."""

    class Guest(Agent[Ledger]):
        """Counts, and can be held."""

        @action
        async def add(self, n: int = 1) -> int:
            """Add to the count."""
            self.state.count += n
            return self.state.count

        @action
        async def hold(self) -> str:
            """Wait at the gate."""
            await gate.pass_through()
            return "let go"

    async def echo(message: str) -> Any:
        """Says what it hears."""
        yield message

    registry = Registry()
    registry.register(Guest)
    registry.register(echo)
    return registry


class Gate:
    """Holds whoever comes until it is opened."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def pass_through(self) -> None:
        self.reached.set()
        await self.opened.wait()


class Desk:
    """All stubs over one channel."""

    def __init__(self, address: str) -> None:
        options = [("grpc.service_config", _FUSED), ("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.aio.insecure_channel(address, options)
        self.agents: Any = agent_rpc.AgentServiceStub(self.channel)
        self.catalog: Any = catalog_rpc.CatalogServiceStub(self.channel)
        self.residency: Any = residency_rpc.ResidencyServiceStub(self.channel)
        self.health: Any = health_pb2_grpc.HealthStub(self.channel)

    async def __aenter__(self) -> Desk:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()


def ref(id: str, type: str = "guest") -> common_pb.AgentRef:
    return common_pb.AgentRef(type=type, id=id)


def value(number: float) -> Value:
    return Value(number_value=number)


async def refusal(call: Any) -> tuple[str, str, list[str]]:
    """How a call failed: code, reason, and the fields that were named."""
    try:
        async with asyncio.timeout(FUSE):
            if hasattr(call, "__aiter__"):
                async for _ in call:
                    pass
            else:
                await call
    except grpc.aio.AioRpcError as error:
        return (error.code().name, *_details(error))
    raise AssertionError("the call did not fail")


def _details(error: grpc.aio.AioRpcError) -> tuple[str, list[str]]:
    status = status_pb2.Status()
    for key, packed in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            status.ParseFromString(packed)
    reason, fields = "", []
    for detail in status.details:
        info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        if detail.Unpack(info):
            assert info.domain == "innkeeper"
            reason = info.reason
        elif detail.Unpack(bad):
            fields = [violation.field for violation in bad.field_violations]
    return reason, fields
