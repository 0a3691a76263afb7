"""What operators and the catalog show, as messages.

Owns the way from the host's views to Agent, AgentType, Resident and Transition, and the tokens
that name a place in a list.
"""

from __future__ import annotations

import base64
import json
import time
from math import inf
from typing import Any

from google.protobuf.struct_pb2 import Struct

from innkeeper.v1 import catalog_service_pb2 as catalog_pb
from innkeeper.v1 import common_pb2 as common_pb
from innkeeper.v1 import residency_service_pb2 as residency_pb
from innkeeper_server.errors import InvalidRequest
from innkeeper_server.explain import Owners
from innkeeper_server.host import AgentView, Host
from innkeeper_server.identity import AgentKey, check_type
from innkeeper_server.operators import ResidentView
from innkeeper_server.registry import AgentType
from innkeeper_server.rpc.convert import agent_key, agent_ref, duration, timestamp, to_value
from innkeeper_server.slots import LeaseKind, Phase, Transition

PAGE = 100
MAX_PAGE = 1000
MAX_PREFIX = 256
MAX_TOKEN = 4096

SLOT_STATES = {
    Phase.LOADING: residency_pb.SLOT_STATE_LOADING,
    Phase.RESIDENT: residency_pb.SLOT_STATE_RESIDENT,
    Phase.CLAIMED: residency_pb.SLOT_STATE_CLAIMED,
    Phase.STOPPING: residency_pb.SLOT_STATE_STOPPING,
    Phase.ZOMBIE: residency_pb.SLOT_STATE_ZOMBIE,
}
LEASE_KINDS = {
    LeaseKind.REQUEST: residency_pb.LEASE_KIND_REQUEST,
    LeaseKind.CONNECTION: residency_pb.LEASE_KIND_CONNECTION,
    LeaseKind.ENVELOPE: residency_pb.LEASE_KIND_ENVELOPE,
    LeaseKind.CALL: residency_pb.LEASE_KIND_CALL,
    LeaseKind.TIMER: residency_pb.LEASE_KIND_TIMER,
    LeaseKind.JOB: residency_pb.LEASE_KIND_JOB,
    LeaseKind.PIN: residency_pb.LEASE_KIND_PIN,
}


# -- whom a request means -----------------------------------------------------------------------


def addressed(host: Host, ref: common_pb.AgentRef, tenant: str) -> AgentKey:
    """The agent with its type filled in. Raises InvalidRequest, UnknownAgentType."""
    key = agent_key(ref, tenant)
    return key._replace(type=host.registry.resolve(key.type).name)


def narrowed(type: str, prefix: str) -> tuple[str, str]:
    """What a list is narrowed to, checked."""
    if type:
        check_type(type, "type")
    if len(prefix) > MAX_PREFIX:
        raise InvalidRequest.of("filter", f"has {len(prefix)} characters; at most {MAX_PREFIX}")
    return type, prefix


# -- places in lists ----------------------------------------------------------------------------


def page_size(asked: int) -> int:
    """How many entries a page has. Raises InvalidRequest."""
    if not 0 <= asked <= MAX_PAGE:
        raise InvalidRequest.of("page_size", f"must be from 0 to {MAX_PAGE}")
    return asked or PAGE


def token_of(place: list[Any]) -> str:
    """A page token for the place after which the next page begins."""
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode()


def place_of(token: str, *shape: type) -> list[Any] | None:
    """The place that a token of ours names, None for "". Raises InvalidRequest for another's."""
    if not token:
        return None
    try:
        place = json.loads(base64.b64decode(token[:MAX_TOKEN], altchars=b"-_", validate=True))
        fits = isinstance(place, list) and [type(part) for part in place] == list(shape)
    except (ValueError, RecursionError):
        fits = False
    if not fits:
        raise InvalidRequest.of("page_token", "comes from no earlier response of this list")
    return place  # type: ignore[no-any-return]


# -- catalog ------------------------------------------------------------------------------------


def to_agent(view: AgentView, *, with_state: bool) -> catalog_pb.Agent:
    """One entry of the catalog."""
    record, runtime = view.record, view.runtime
    agent = catalog_pb.Agent(
        agent=agent_ref(record.key),
        version=record.version,
        epoch=record.epoch,
        created_at=timestamp(record.created_at),
        updated_at=timestamp(record.updated_at),
    )
    if with_state and record.state is not None:
        agent.state.CopyFrom(to_value(json.loads(record.state)))
    if runtime is not None:
        agent.resident = True
        agent.runtime_id = runtime.id
        agent.queued = len(runtime.mailbox)
        agent.active = runtime.mailbox.active is not None
        agent.last_status = runtime.last_status
    return agent


def to_agent_type(type: AgentType) -> catalog_pb.AgentType:
    """What a type can do."""
    message = catalog_pb.AgentType(type=type.name, description=type.description, chat=type.has_chat)
    for action in type.actions.values():
        message.actions.add(
            name=action.name,
            description=action.description,
            input_schema=_struct(action.input_schema),
        )
    if type.state_schema is not None:
        message.state_schema.CopyFrom(_struct(type.state_schema))
    return message


def _struct(schema: dict[str, Any]) -> Struct:
    return to_value(schema).struct_value


# -- residency ----------------------------------------------------------------------------------


class Clock:
    """Turns moments of the host's clock into moments of the world's, at one instant."""

    def __init__(self, host: Host) -> None:
        self._offset = time.time() - host.now()

    def unix(self, moment: float) -> float:
        """Seconds since 1970."""
        return moment + self._offset


def to_resident(view: ResidentView, clock: Clock) -> residency_pb.Resident:
    """One runtime as operators see it."""
    slot = view.slot
    count = {owners.kind: owners.count for owners in slot.owners}
    resident = residency_pb.Resident(
        agent=agent_ref(slot.agent),
        runtime_id=view.runtime_id,
        epoch=view.epoch,
        state=SLOT_STATES[slot.phase],
        connections=count.get(LeaseKind.CONNECTION, 0),
        active_requests=count.get(LeaseKind.REQUEST, 0) + count.get(LeaseKind.CALL, 0),
        queued=view.queued,
        active_turn=view.active_turn,
        leases=map(_to_owners, slot.owners),
        busy=bool(slot.owners),
        blockers=slot.blockers,
        resident_for=duration(slot.resident_for),
    )
    if view.active_turn_age is not None:
        resident.active_turn_age.CopyFrom(duration(view.active_turn_age))
    if slot.idle_for is not None:
        resident.idle_for.CopyFrom(duration(slot.idle_for))
    if slot.claim is not None and slot.claim.deadline < inf:
        resident.claim_deadline.CopyFrom(timestamp(clock.unix(slot.claim.deadline)))
    return resident


def _to_owners(owners: Owners) -> residency_pb.Owners:
    return residency_pb.Owners(
        kind=LEASE_KINDS[owners.kind],
        count=owners.count,
        oldest=duration(owners.oldest),
        names=owners.names,
    )


def slot_state(phase: Phase | None) -> residency_pb.SlotState.ValueType:
    """Where a slot stands; UNSPECIFIED for one that is absent."""
    return SLOT_STATES[phase] if phase is not None else residency_pb.SLOT_STATE_UNSPECIFIED


def to_transition(host: Host, clock: Clock, moved: Transition) -> residency_pb.Transition:
    """One line of the story."""
    return residency_pb.Transition(
        seq=moved.seq,
        agent=agent_ref(moved.agent),
        runtime_id=host.operators.runtime_id(moved.runtime_id),
        from_state=slot_state(moved.before),
        to_state=slot_state(moved.after),
        reason=moved.reason,
        at=timestamp(clock.unix(moved.at)),
    )
