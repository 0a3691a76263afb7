"""ResidencyService: who is in memory and why, and the operators' verbs.

Owns the translation and the checks of operators' requests. Looking touches nobody's idle time.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from math import inf
from typing import Any, cast

import grpc
from google.protobuf.duration_pb2 import Duration

from innkeeper.v1 import residency_service_pb2 as pb
from innkeeper_server.drain import DrainPlan, DrainProgress, DrainStep
from innkeeper_server.errors import Draining, InvalidRequest
from innkeeper_server.host import Host
from innkeeper_server.mailbox import Call
from innkeeper_server.operators import EvictMode, ResidentView
from innkeeper_server.rpc.boundary import Boundary, Write
from innkeeper_server.rpc.convert import agent_ref, duration, from_duration, timestamp
from innkeeper_server.rpc.ending import Ending, at_most
from innkeeper_server.rpc.views import (
    SLOT_STATES,
    Clock,
    addressed,
    narrowed,
    page_size,
    place_of,
    to_resident,
    to_transition,
    token_of,
)
from innkeeper_server.slots import Phase

SERVICE = "innkeeper.v1.ResidencyService"

MAX_TTL = 7 * 86_400.0
MAX_PATIENCE = 86_400.0
MAX_OWNER = 256
MAX_WATCHERS = 100  # at once

_MODES: dict[int, EvictMode] = {
    pb.EVICT_MODE_UNSPECIFIED: "if_idle",
    pb.EVICT_MODE_IF_IDLE: "if_idle",
    pb.EVICT_MODE_GRACEFUL: "graceful",
    pb.EVICT_MODE_FORCE: "force",
}


class ResidencyService:
    """See the module."""

    def __init__(self, host: Host, boundary: Boundary, ending: Ending) -> None:
        self._host = host
        self._operators = host.operators
        self._boundary = boundary
        self._ending = ending

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The methods of the service."""
        unary, streaming = self._boundary.unary, self._boundary.streaming
        served: dict[str, tuple[Any, Any, Any]] = {
            "GetResidency": (unary, pb.GetResidencyRequest, self._totals),
            "ListResidents": (unary, pb.ListResidentsRequest, self._list),
            "ExplainResident": (unary, pb.ExplainResidentRequest, self._explain),
            "WatchResidency": (
                streaming,
                pb.WatchResidencyRequest,
                at_most(MAX_WATCHERS, self._watch),
            ),
            "Evict": (unary, pb.EvictRequest, self._evict),
            "Pin": (unary, pb.PinRequest, self._pin),
            "Unpin": (unary, pb.UnpinRequest, self._unpin),
            "SetCapacity": (unary, pb.SetCapacityRequest, self._set_capacity),
            "Reconcile": (unary, pb.ReconcileRequest, self._reconcile),
            "Drain": (streaming, pb.DrainRequest, at_most(MAX_WATCHERS, self._drain)),
            "Undrain": (unary, pb.UndrainRequest, self._undrain),
        }
        return {
            name: shape(f"{SERVICE}/{name}", request, serve)
            for name, (shape, request, serve) in served.items()
        }

    # -- looking --------------------------------------------------------------------------------

    async def _totals(self, _: pb.GetResidencyRequest, call: Call) -> pb.GetResidencyResponse:
        totals = self._operators.totals()
        tickets = [t for t in totals.tickets if t.agent.tenant == call.tenant]
        return pb.GetResidencyResponse(
            capacity=totals.capacity,
            used=totals.used,
            **{phase.value: count for phase, count in totals.by_phase.items()},
            idle=totals.idle,
            waiting=totals.waiting,
            draining=totals.draining,
            loaded_total=totals.loaded_total,
            evicted_total=totals.evicted_total,
            refused_total=totals.refused_total,
            reconciled_total=totals.reconciled_total,
            overrun_total=totals.overrun_total,
            tickets=[
                pb.WaitingTicket(
                    agent=agent_ref(ticket.agent),
                    waited=duration(ticket.waited),
                    waits_for=ticket.waits_for,
                )
                for ticket in tickets
            ],
        )

    async def _list(self, request: pb.ListResidentsRequest, call: Call) -> pb.ListResidentsResponse:
        type, prefix = narrowed(request.type, request.filter)
        size = page_size(request.page_size)
        phase = _phase(request.state)
        if request.order not in pb.ResidentOrder.values():
            raise InvalidRequest.of("order", "is not known")
        place = place_of(request.page_token, int, float, str, str)
        if place is not None and place[0] != request.order:
            raise InvalidRequest.of("page_token", "comes from a list in another order")
        found = {
            self._sort_key(view, request.order): view
            for view in self._operators.residents(call.tenant)
            if type in ("", view.slot.agent.type)
            and view.slot.agent.id.startswith(prefix)
            and phase in (None, view.slot.phase)
        }
        after = tuple(place[1:]) if place is not None else ()
        keys = sorted(key for key in found if key > after)
        clock = Clock(self._host)
        page = pb.ListResidentsResponse(
            residents=[to_resident(found[key], clock) for key in keys[:size]]
        )
        if len(keys) > size:
            page.next_page_token = token_of([request.order, *keys[size - 1]])
        return page

    def _sort_key(self, view: ResidentView, order: int) -> tuple[float, str, str]:
        """From moments that stand still between two pages, not from ages."""
        agent = view.slot.agent
        slot = self._host.account.slots[agent]
        moment = 0.0
        if order == pb.RESIDENT_ORDER_IDLE:
            moment = slot.idle_since if view.slot.idle_for is not None else inf
        elif order == pb.RESIDENT_ORDER_AGE:
            moment = slot.loaded_at
        elif order == pb.RESIDENT_ORDER_ACTIVE:
            runtime = self._host.driver.runtimes.get(slot.runtime_id)
            moment = runtime.turn_started if runtime is not None and view.active_turn else inf
        return (moment, agent.type, agent.id)

    async def _explain(
        self, request: pb.ExplainResidentRequest, call: Call
    ) -> pb.ExplainResidentResponse:
        key = addressed(self._host, request.agent, call.tenant)
        told, view = self._operators.explain(key)
        clock = Clock(self._host)
        return pb.ExplainResidentResponse(
            resident=to_resident(view, clock) if view is not None else None,
            evictable=told.evictable,
            eviction_position=told.eviction_position,
            idle_deadline=(
                timestamp(clock.unix(told.idle_deadline))
                if told.idle_deadline is not None
                else None
            ),
            waits_for=told.waits_for,
            story=[to_transition(self._host, clock, moved) for moved in told.story],
            summary=told.summary,
        )

    async def _watch(self, request: pb.WatchResidencyRequest, call: Call, write: Write) -> None:
        after = request.after if request.HasField("after") else None
        if after is not None and after < 0:
            raise InvalidRequest.of("after", "must not be negative")
        transitions = self._ending.until_over(self._operators.watch(after))
        async with aclosing(transitions):
            async for moved in transitions:
                if moved.agent.tenant == call.tenant:
                    shown = to_transition(self._host, Clock(self._host), moved)
                    await write(pb.WatchResidencyResponse(transition=shown))

    # -- steering -------------------------------------------------------------------------------

    async def _evict(self, request: pb.EvictRequest, call: Call) -> pb.EvictResponse:
        key = addressed(self._host, request.agent, call.tenant)
        mode = _MODES.get(request.mode)
        if mode is None:
            raise InvalidRequest.of("mode", "is not known")
        patience = _patience(request.deadline) if request.HasField("deadline") else None
        ended = await self._operators.evict(key, request.runtime_id, mode, patience)
        return pb.EvictResponse(runtime_id=ended.runtime_id, stopped=ended.stopped)

    async def _pin(self, request: pb.PinRequest, call: Call) -> pb.PinResponse:
        key = addressed(self._host, request.agent, call.tenant)
        if not request.HasField("ttl"):
            raise InvalidRequest.of("ttl", "must be set")
        ttl = from_duration(request.ttl, "ttl")
        if not 0 < ttl <= MAX_TTL:
            raise InvalidRequest.of("ttl", "must be above 0 and at most 7 days")
        owner = _owner(request.owner) or call.principal
        runtime_id = await self._operators.pin(key, ttl, owner, call)
        return pb.PinResponse(runtime_id=runtime_id, expires_at=timestamp(time.time() + ttl))

    async def _unpin(self, request: pb.UnpinRequest, call: Call) -> pb.UnpinResponse:
        key = addressed(self._host, request.agent, call.tenant)
        return pb.UnpinResponse(unpinned=self._operators.unpin(key, _owner(request.owner)))

    async def _set_capacity(
        self, request: pb.SetCapacityRequest, _: Call
    ) -> pb.SetCapacityResponse:
        if request.capacity < 1:
            raise InvalidRequest.of("capacity", "must be at least 1")
        self._operators.set_capacity(request.capacity)
        totals = self._operators.totals()
        return pb.SetCapacityResponse(capacity=totals.capacity, used=totals.used)

    async def _reconcile(self, _: pb.ReconcileRequest, __: Call) -> pb.ReconcileResponse:
        return pb.ReconcileResponse(defects=self._operators.reconcile())

    async def _drain(self, request: pb.DrainRequest, call: Call, write: Write) -> None:
        patience = _patience(request.deadline) if request.HasField("deadline") else None
        steps = self._host.drain(patience, dry_run=request.dry_run)
        async with aclosing(cast("AsyncGenerator[DrainStep]", steps)):
            async for step in steps:
                await write(self._step(step, call.tenant))

    async def _undrain(self, _: pb.UndrainRequest, __: Call) -> pb.UndrainResponse:
        if self._ending.begun:
            raise Draining("the host is stopping, and cannot be opened again")
        return pb.UndrainResponse(was_draining=self._host.undrain())

    # -- parts ----------------------------------------------------------------------------------

    def _step(self, step: DrainStep, tenant: str) -> pb.DrainResponse:
        if isinstance(step, DrainPlan):
            clock = Clock(self._host)
            blockers = [v for v in step.blockers if v.slot.agent.tenant == tenant]
            return pb.DrainResponse(
                plan=pb.DrainPlan(
                    idle=step.idle,
                    owned=step.owned,
                    waiting=step.waiting,
                    blockers=[to_resident(view, clock) for view in blockers],
                )
            )
        if isinstance(step, DrainProgress):
            return pb.DrainResponse(
                progress=pb.DrainProgress(
                    remaining=step.remaining,
                    owned=step.owned,
                    time_left=duration(step.time_left),
                )
            )
        return pb.DrainResponse(
            report=pb.DrainReport(
                evicted=step.evicted,
                cut=step.cut,
                zombies=step.zombies,
                clean=step.clean,
                took=duration(step.took),
            )
        )


def _phase(state: int) -> Phase | None:
    if state == pb.SLOT_STATE_UNSPECIFIED:
        return None
    for phase, known in SLOT_STATES.items():
        if known == state:
            return phase
    raise InvalidRequest.of("state", "is not known")


def _patience(length: Duration) -> float:
    seconds = from_duration(length, "deadline")
    if not 0 <= seconds <= MAX_PATIENCE:
        raise InvalidRequest.of("deadline", "must be from 0 to 24 hours")
    return seconds


def _owner(owner: str) -> str:
    if len(owner) > MAX_OWNER:
        raise InvalidRequest.of("owner", f"has {len(owner)} characters; at most {MAX_OWNER}")
    return owner
