"""Is the host there, and does it take work?

Owns `Health`, the standard gRPC health protocol. Its two messages have one field each and the same
bytes as two of protobuf's wrappers, so no further package is needed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, cast

from google.protobuf.wrappers_pb2 import Int32Value, StringValue
from grpc import aio

from .calls import Caller
from .streams import Streaming, messages

HealthStatus = Literal["unknown", "serving", "not_serving", "service_unknown"]
_STATUSES: tuple[HealthStatus, ...] = ("unknown", "serving", "not_serving", "service_unknown")


class Health:
    """The health of the host ("") or of one service by its full name.

    `check` raises an InnkeeperError with code NOT_FOUND for a service that is not known.
    """

    def __init__(self, caller: Caller, channel: aio.Channel) -> None:
        self._caller = caller
        self._check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=StringValue.SerializeToString,
            response_deserializer=Int32Value.FromString,
        )
        self._watch = channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=StringValue.SerializeToString,
            response_deserializer=Int32Value.FromString,
        )

    async def check(self, service: str = "", *, timeout: float | None = None) -> HealthStatus:
        """The status now."""
        response = await self._caller.unary(
            self._check, StringValue(value=service), timeout=timeout, harmless=True
        )
        return _status(response.value)

    async def watch(self, service: str = "") -> AsyncIterator[HealthStatus]:
        """The status now and at each change; no deadline."""
        method = cast("Streaming[StringValue, Int32Value]", self._watch)
        async for message in messages(self._caller, method, StringValue(value=service)):
            yield _status(message.value)


def _status(value: int) -> HealthStatus:
    return _STATUSES[value] if 0 <= value < len(_STATUSES) else "unknown"
