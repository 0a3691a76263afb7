"""`grpc.health.v1.Health`: is the host there, and does it take work?

Owns the answer, per service and for the whole (""). It is kept in memory, so a check waits for
nothing. Each watcher compares what it has said with what is true, and writes for itself: one that
is stalled holds up nobody. The library's own servicer says SERVING before anybody started, and
writes under a lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from innkeeper_server.errors import InvalidRequest
from innkeeper_server.mailbox import Call
from innkeeper_server.rpc.boundary import Boundary, Write
from innkeeper_server.rpc.ending import Ending, at_most
from innkeeper_server.rpc.health_list import ListRequest, ListResponse
from innkeeper_server.signals import Signal

SERVICE = "grpc.health.v1.Health"
MAX_WATCHERS = 1_000  # at once

Status = int
NOT_SERVING: Status = health_pb2.HealthCheckResponse.NOT_SERVING
SERVING: Status = health_pb2.HealthCheckResponse.SERVING
SERVICE_UNKNOWN: Status = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class UnknownService(InvalidRequest):
    """The health of something that is not served here."""

    code = grpc.StatusCode.NOT_FOUND


class Health:
    """The health of services by their full names, NOT_SERVING until told otherwise."""

    def __init__(self, boundary: Boundary, ending: Ending, services: Iterable[str] = ()) -> None:
        self._boundary = boundary
        self._ending = ending
        self._changed = Signal()
        ending.listeners.append(self._changed.notify)
        self._known = {"", *services}
        self.serving = False

    def add(self, service: str) -> None:
        """Make a service known."""
        self._known.add(service)
        self._changed.notify()

    def set(self, serving: bool) -> None:
        """Say of all services whether they take work."""
        self.serving = serving
        self._changed.notify()

    def status(self, service: str) -> Status:
        """The status of one service, or of the whole for ""."""
        if service not in self._known:
            return SERVICE_UNKNOWN
        return SERVING if self.serving else NOT_SERVING

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The methods of the service."""
        request = health_pb2.HealthCheckRequest
        return {
            "Check": self._boundary.unary(f"{SERVICE}/Check", request, self._check),
            "Watch": self._boundary.streaming(
                f"{SERVICE}/Watch", request, at_most(MAX_WATCHERS, self._watch)
            ),
            "List": self._boundary.unary(f"{SERVICE}/List", ListRequest, self._list),
        }

    async def _check(self, request: Any, _: Call) -> Any:
        status = self.status(request.service)
        if status == SERVICE_UNKNOWN:
            raise UnknownService.of("service", "is not served here")
        return health_pb2.HealthCheckResponse(status=status)

    async def _list(self, _: Any, __: Call) -> Any:
        answer: Any = ListResponse()
        for service in sorted(self._known):
            answer.statuses[service].status = self.status(service)
        return answer

    async def _watch(self, request: Any, _: Call, write: Write) -> None:
        said: Status | None = None
        while not self._ending.over.is_set():
            status = self.status(request.service)
            if status != said:
                said = status
                await write(health_pb2.HealthCheckResponse(status=status))
            else:  # in the block that looked: a change in between would be missed
                await self._changed.next()
