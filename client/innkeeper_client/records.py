"""What the host tells about agents and runtimes, as plain frozen records.

Owns the record classes and the one conversion that fills them from messages. Field names are the
wire's, and so are their meanings (see the .proto files). Durations are seconds as `float`, times
are aware `datetime`s in UTC, an unset one is None; enum values are lower-case words without
prefix ("resident", "if_idle"), unspecified reads as "".
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2
from google.protobuf import message as pb
from google.protobuf.descriptor import EnumDescriptor
from google.rpc import status_pb2

from innkeeper.v1 import common_pb2 as common_pb

from .errors import InnkeeperError
from .statuses import from_status
from .values import from_payload, from_struct, from_value

R = TypeVar("R")


@dataclass(frozen=True, slots=True, order=True)
class AgentRef:
    """An agent's address. `str` gives `type/id`."""

    type: str
    id: str

    def __str__(self) -> str:
        return f"{self.type}/{self.id}" if self.type else self.id

    @classmethod
    def parse(cls, text: str) -> AgentRef:
        """From `type/id`; without a slash, an id where the host serves one type."""
        type_, slash, id_ = text.partition("/")
        return cls(type_, id_) if slash else cls("", text)


@dataclass(frozen=True, slots=True)
class Invoked:
    """The outcome of a committed turn."""

    output: Any
    turn_id: str
    runtime_id: str
    replayed: bool


@dataclass(frozen=True, slots=True)
class Receipt:
    """The promise for an accepted follow-up."""

    receipt_id: str
    agent: AgentRef
    state: str
    attempt: int
    accepted_at: datetime | None
    started_at: datetime | None
    settled_at: datetime | None
    output: Any
    error: InnkeeperError | None


@dataclass(frozen=True, slots=True)
class CancelledWork:
    """One piece of work that was told to stop."""

    id: str
    kind: str
    was_running: bool


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that agents of a type can be invoked with."""

    name: str
    description: str
    input_schema: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class AgentType:
    """A registered type of agents."""

    type: str
    description: str
    chat: bool
    actions: tuple[Action, ...]
    state_schema: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One agent, resident or not. `state` is filled by `get` and `update_state` only."""

    agent: AgentRef
    state: Any
    version: int
    epoch: int
    resident: bool
    runtime_id: str
    queued: int
    active: bool
    created_at: datetime | None
    updated_at: datetime | None
    last_status: str


@dataclass(frozen=True, slots=True)
class Owners:
    """The leases of one kind that keep a runtime."""

    kind: str
    count: int
    oldest: float | None
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resident:
    """One runtime in memory."""

    agent: AgentRef
    runtime_id: str
    epoch: int
    state: str
    connections: int
    active_requests: int
    queued: int
    active_turn: str
    active_turn_age: float | None
    leases: tuple[Owners, ...]
    busy: bool
    blockers: tuple[str, ...]
    idle_for: float | None
    resident_for: float | None
    claim_deadline: datetime | None


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of a slot; "" for a state means absent."""

    seq: int
    agent: AgentRef
    runtime_id: str
    from_state: str
    to_state: str
    reason: str
    at: datetime | None


@dataclass(frozen=True, slots=True)
class WaitingTicket:
    """A caller that waits for an agent to be resident."""

    agent: AgentRef
    waited: float | None
    waits_for: str


@dataclass(frozen=True, slots=True)
class Residency:
    """The account's totals."""

    capacity: int
    used: int
    loading: int
    resident: int
    claimed: int
    stopping: int
    zombie: int
    idle: int
    waiting: int
    draining: bool
    loaded_total: int
    evicted_total: int
    refused_total: int
    reconciled_total: int
    overrun_total: int
    tickets: tuple[WaitingTicket, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a runtime stays or leaves; `resident` is None where the agent has none."""

    resident: Resident | None
    evictable: bool
    eviction_position: int
    idle_deadline: datetime | None
    waits_for: str
    story: tuple[Transition, ...]
    summary: str


@dataclass(frozen=True, slots=True)
class Evicted:
    """The life that ended; `stopped` is False while its code still runs as a zombie."""

    runtime_id: str
    stopped: bool


@dataclass(frozen=True, slots=True)
class Pinned:
    """The life that is kept, and until when."""

    runtime_id: str
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class Capacity:
    """The account right after a change of the limit."""

    capacity: int
    used: int


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """What a drain will do."""

    idle: int
    owned: int
    waiting: int
    blockers: tuple[Resident, ...]


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """How far a drain has come."""

    remaining: int
    owned: int
    time_left: float | None


@dataclass(frozen=True, slots=True)
class DrainReport:
    """How a drain ended."""

    evicted: int
    cut: int
    zombies: int
    clean: bool
    took: float | None


_RECORDS: dict[str, type] = {
    "InvokeResponse": Invoked,
    "Agent": CatalogEntry,
    "GetResidencyResponse": Residency,
    "ExplainResidentResponse": Explanation,
    "EvictResponse": Evicted,
    "PinResponse": Pinned,
    "SetCapacityResponse": Capacity,
} | {
    record.__name__: record
    for record in (
        AgentRef, Receipt, CancelledWork, Action, AgentType, Owners, Resident, Transition,
        WaitingTicket, DrainPlan, DrainProgress, DrainReport,
    )
}  # fmt: skip


def record(message: pb.Message, kind: type[R]) -> R:
    """The record of a message; `kind` is the class that belongs to it."""
    converted = _convert(message)
    assert isinstance(converted, kind), f"{message.DESCRIPTOR.name} is no {kind.__name__}"
    return converted


def _convert(message: pb.Message) -> Any:
    match message:
        case duration_pb2.Duration():
            return message.ToTimedelta().total_seconds()
        case timestamp_pb2.Timestamp():
            return message.ToDatetime(tzinfo=UTC)
        case struct_pb2.Value():
            return from_value(message)
        case struct_pb2.Struct():
            return from_struct(message)
        case common_pb.Payload():
            return from_payload(message)
        case status_pb2.Status():
            return from_status(message)
    fields = message.DESCRIPTOR.fields
    return _RECORDS[message.DESCRIPTOR.name](**{f.name: _field(message, f) for f in fields})


def _field(message: pb.Message, field: Any) -> Any:
    # `field` is a FieldDescriptor, of which protobuf has several unrelated classes.
    value = getattr(message, field.name)
    if field.is_repeated:
        return tuple(_one(field, item) for item in value)
    if field.message_type is not None and not message.HasField(field.name):
        return AgentRef("", "") if field.message_type.name == "AgentRef" else None
    return _one(field, value)


def _one(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return _convert(value)
    return word(field.enum_type, value) if field.enum_type is not None else value


def word(enum: EnumDescriptor, number: int) -> str:
    """The lower-case word for an enum value; "" for unspecified or unknown."""
    value = enum.values_by_number.get(number) if number else None
    return value.name.removeprefix(_prefix(enum)).lower() if value is not None else ""


def number(enum: EnumDescriptor, text: str) -> int:
    """The enum value for a word; ValueError names the choices. "" is unspecified."""
    for value in enum.values:
        if text and value.name == _prefix(enum) + text.upper():
            return value.number
    if text:
        choices = [word(enum, value.number) for value in enum.values if value.number]
        raise ValueError(f"{text!r} is none of: {', '.join(choices)}")
    return 0


def _prefix(enum: EnumDescriptor) -> str:
    # By the enum's own zero value: SLOT_STATE_UNSPECIFIED gives SLOT_STATE_.
    return enum.values_by_number[0].name.removesuffix("UNSPECIFIED")


def to_ref(agent: AgentRef | str) -> common_pb.AgentRef:
    """The message for an AgentRef or a `type/id` text."""
    ref = AgentRef.parse(agent) if isinstance(agent, str) else agent
    return common_pb.AgentRef(type=ref.type, id=ref.id)
