"""The client: one channel to one host, and what can be asked over it.

Owns the channel and its options.

    async with Client("127.0.0.1:7420") as client:
        total = await client.agent("counter", "a").invoke("add", n=2)
        async for event in client.agent("concierge", "lobby").chat("hello"):
            print(event.text, end="")
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
from grpc import aio

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import agent_service_pb2_grpc as agent_rpc
from innkeeper.v1 import catalog_service_pb2_grpc as catalog_rpc
from innkeeper.v1 import residency_service_pb2_grpc as residency_rpc

from .agent import RemoteAgent
from .calls import Caller, Retry
from .catalog import Catalog
from .conversation import Session
from .health import Health
from .records import AgentRef, Receipt, record
from .residency import ResidencyDesk

DEFAULT_TARGET = "127.0.0.1:7420"
TARGET_VARIABLE = "INNKEEPER_TARGET"

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.enable_retries", 0),  # calls.py decides, nobody else.
    ("grpc.enable_http_proxy", 0),
    # A host that freezes is noticed within 40 seconds. The third is what counts in fact: without
    # it a lost ping is noticed after a minute, whatever the second says.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    # Quick enough that a retry after a refused connection really tries.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.max_receive_message_length", 16 << 20),
)


def default_target() -> str:
    """INNKEEPER_TARGET, or the port that a host listens on by default."""
    return os.environ.get(TARGET_VARIABLE) or DEFAULT_TARGET


class Client:
    """A client of one host. Make it, use it and close it in one event loop.

    `target` is HOST:PORT or unix:PATH (default: INNKEEPER_TARGET, else 127.0.0.1:7420).
    `timeout` and `chat_timeout` are the default deadlines in seconds of a call and of a reply that
    streams; sessions and watches last as long as they are open. `metadata` goes with every call.
    `credentials` makes the channel a TLS one, `options` are gRPC channel options.
    """

    def __init__(
        self,
        target: str | None = None,
        *,
        timeout: float = 60.0,
        chat_timeout: float = 600.0,
        retry: Retry | None = None,
        metadata: Mapping[str, str] | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        options: Sequence[tuple[str, Any]] = (),
    ) -> None:
        self.target = target or default_target()
        self._caller = Caller(
            timeout=timeout,
            stream_timeout=chat_timeout,
            retry=retry or Retry(),
            metadata=metadata or {},
        )
        self._channel = _channel(self.target, credentials, [*_OPTIONS, *options])
        self._stub: agent_rpc.AgentServiceAsyncStub = agent_rpc.AgentServiceStub(self._channel)
        self.catalog = Catalog(self._caller, catalog_rpc.CatalogServiceStub(self._channel))
        self.residency = ResidencyDesk(
            self._caller, residency_rpc.ResidencyServiceStub(self._channel)
        )
        self.health = Health(self._caller, self._channel)

    def agent(
        self, type: str, id: str, *, metadata: Mapping[str, str] | None = None
    ) -> RemoteAgent:
        """An agent by type and id; `metadata` goes with every call to it. Calls nobody."""
        return RemoteAgent(self._caller, self._stub, AgentRef(type, id), metadata or {})

    async def receipt(
        self, receipt_id: str, *, wait: bool = False, timeout: float | None = None
    ) -> Receipt:
        """How an accepted follow-up stands; with `wait`, once it has ended, or as it stands when
        most of `timeout` seconds are over. Raises ReceiptNotFound."""
        request = agent_pb.GetReceiptRequest(receipt_id=receipt_id, wait=wait)
        response = await self._caller.unary(
            self._stub.GetReceipt, request, timeout=timeout, harmless=True
        )
        return record(response.receipt, Receipt)

    def session(
        self, *, metadata: Mapping[str, str] | None = None, max_in_flight: int = 256
    ) -> Session:
        """A session that opens no agent: every call in it names one with `agent=`."""
        return Session(
            self._caller, self._stub, None, metadata=metadata or {}, max_in_flight=max_in_flight
        )

    async def close(self) -> None:
        """Close the channel; calls under way end with ClientClosed."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _channel(
    target: str,
    credentials: grpc.ChannelCredentials | None,
    options: Sequence[tuple[str, Any]],
) -> aio.Channel:
    if credentials is None:
        return aio.insecure_channel(target, options=options)
    return aio.secure_channel(target, credentials, options=options)
