"""Who is in memory, why, and for how long: the operator's side.

Owns `ResidencyDesk`, the calls of ResidencyService. Reading touches nobody's idle time.
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator
from typing import Literal

from google.protobuf.duration_pb2 import Duration

from innkeeper.v1 import residency_service_pb2 as residency_pb
from innkeeper.v1 import residency_service_pb2_grpc as residency_rpc

from .calls import Caller
from .records import (
    AgentRef,
    Capacity,
    DrainPlan,
    DrainProgress,
    DrainReport,
    Evicted,
    Explanation,
    Pinned,
    Residency,
    Resident,
    Transition,
    number,
    record,
    to_ref,
)
from .streams import messages

State = Literal["", "loading", "resident", "claimed", "stopping", "zombie"]
Order = Literal["agent", "idle", "age", "active"]
EvictMode = Literal["if_idle", "graceful", "force"]
DrainStep = DrainPlan | DrainProgress | DrainReport

# Added to a host's own deadline, in seconds, so that its answer arrives before ours passes.
_MARGIN = 30.0


class ResidencyDesk:
    """The account of capacity. `timeout` is in seconds; every call raises InnkeeperError."""

    def __init__(self, caller: Caller, stub: residency_rpc.ResidencyServiceAsyncStub) -> None:
        self._caller = caller
        self._stub = stub

    async def get(self, *, timeout: float | None = None) -> Residency:
        """The totals."""
        response = await self._caller.unary(
            self._stub.GetResidency,
            residency_pb.GetResidencyRequest(),
            timeout=timeout,
            harmless=True,
        )
        return record(response, Residency)

    async def list(
        self,
        type: str = "",
        *,
        prefix: str = "",
        state: State = "",
        order: Order = "agent",
        page_size: int = 100,
        timeout: float | None = None,
    ) -> AsyncIterator[Resident]:
        """Runtimes in memory; `timeout` holds for each page."""
        states, orders = residency_pb.SlotState, residency_pb.ResidentOrder
        request = residency_pb.ListResidentsRequest(
            type=type,
            filter=prefix,
            state=states.ValueType(number(states.DESCRIPTOR, state)),
            order=orders.ValueType(number(orders.DESCRIPTOR, order)),
            page_size=page_size,
        )
        while True:
            page = await self._caller.unary(
                self._stub.ListResidents, request, timeout=timeout, harmless=True
            )
            for resident in page.residents:
                yield record(resident, Resident)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def explain(self, agent: AgentRef | str, *, timeout: float | None = None) -> Explanation:
        """Who owns a runtime, and why it can or cannot be evicted."""
        response = await self._caller.unary(
            self._stub.ExplainResident,
            residency_pb.ExplainResidentRequest(agent=to_ref(agent)),
            timeout=timeout,
            harmless=True,
        )
        return record(response, Explanation)

    async def watch(self, *, after: int | None = None) -> AsyncIterator[Transition]:
        """Transitions as they happen, for as long as the host lives; no deadline.

        `after` begins with what the host still remembers past that `seq`.
        """
        request = residency_pb.WatchResidencyRequest(after=after)
        async for message in messages(self._caller, self._stub.WatchResidency, request):
            yield record(message.transition, Transition)

    async def evict(
        self,
        agent: AgentRef | str,
        *,
        runtime_id: str = "",
        mode: EvictMode = "if_idle",
        deadline: float | None = None,
        timeout: float | None = None,
    ) -> Evicted:
        """End a life in memory; the state stays.

        Exact if a `runtime_id` is given. `deadline` is how many seconds a graceful eviction may
        wait for owners.
        """
        modes = residency_pb.EvictMode
        request = residency_pb.EvictRequest(
            agent=to_ref(agent),
            runtime_id=runtime_id,
            mode=modes.ValueType(number(modes.DESCRIPTOR, mode)),
            deadline=_duration(deadline),
        )
        if timeout is None and deadline is not None:
            timeout = deadline + _MARGIN
        response = await self._caller.unary(self._stub.Evict, request, timeout=timeout)
        return record(response, Evicted)

    async def pin(
        self, agent: AgentRef | str, *, ttl: float, owner: str, timeout: float | None = None
    ) -> Pinned:
        """Keep an agent resident for `ttl` seconds, and bring it to life if needed."""
        request = residency_pb.PinRequest(agent=to_ref(agent), ttl=_duration(ttl), owner=owner)
        response = await self._caller.unary(self._stub.Pin, request, timeout=timeout)
        return record(response, Pinned)

    async def unpin(
        self, agent: AgentRef | str, *, owner: str = "", timeout: float | None = None
    ) -> int:
        """Take back an owner's pins, or all; how many there were."""
        request = residency_pb.UnpinRequest(agent=to_ref(agent), owner=owner)
        response = await self._caller.unary(self._stub.Unpin, request, timeout=timeout)
        return response.unpinned

    async def set_capacity(self, capacity: int, *, timeout: float | None = None) -> Capacity:
        """Change the limit. Setting it twice does no harm, so it is retried like a read."""
        response = await self._caller.unary(
            self._stub.SetCapacity,
            residency_pb.SetCapacityRequest(capacity=capacity),
            timeout=timeout,
            harmless=True,
        )
        return record(response, Capacity)

    async def reconcile(self, *, timeout: float | None = None) -> builtins.list[str]:
        """Compare the account with what exists; what was found and mended, expected empty."""
        response = await self._caller.unary(
            self._stub.Reconcile, residency_pb.ReconcileRequest(), timeout=timeout
        )
        return [*response.defects]

    async def drain(
        self, *, deadline: float | None = None, dry_run: bool = False
    ) -> AsyncIterator[DrainStep]:
        """Refuse new work, let accepted work finish, evict everybody: plan, progress, report.

        `deadline` is in seconds; None means the host's own.
        """
        request = residency_pb.DrainRequest(deadline=_duration(deadline), dry_run=dry_run)
        timeout = None if deadline is None else deadline + _MARGIN
        stream = messages(self._caller, self._stub.Drain, request, timeout=timeout)
        async for message in stream:
            match message.WhichOneof("step"):
                case "plan":
                    yield record(message.plan, DrainPlan)
                case "progress":
                    yield record(message.progress, DrainProgress)
                case "report":
                    yield record(message.report, DrainReport)

    async def undrain(self, *, timeout: float | None = None) -> bool:
        """Take work again; True if the host was draining."""
        response = await self._caller.unary(
            self._stub.Undrain, residency_pb.UndrainRequest(), timeout=timeout
        )
        return response.was_draining


def _duration(seconds: float | None) -> Duration | None:
    if seconds is None:
        return None
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration
