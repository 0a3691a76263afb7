"""What a turn says while it runs, and what a session hears besides.

Owns the event classes. Every event has `text`, which is "" unless it is a piece of the reply, so
`"".join([event.text async for event in reply])` is the whole reply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import common_pb2 as common_pb

from .errors import InnkeeperError
from .records import AgentRef
from .statuses import from_status
from .values import from_payload, from_value


@dataclass(frozen=True, slots=True)
class Cursor:
    """Names one event of one agent. As text `EPOCH:TURN:SEQ`, which `parse` reads."""

    epoch: int
    turn_id: str
    seq: int

    def __str__(self) -> str:
        return f"{self.epoch}:{self.turn_id}:{self.seq}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """The cursor that a text names; ValueError if it names none."""
        epoch, _, rest = text.partition(":")
        turn_id, _, seq = rest.rpartition(":")
        if not (epoch.isdecimal() and turn_id and seq.isdecimal()):
            raise ValueError(f"{text!r} is no cursor: it must be EPOCH:TURN:SEQ")
        return cls(int(epoch), turn_id, int(seq))


def to_cursor(cursor: Cursor) -> common_pb.Cursor:
    """The message for a cursor."""
    return common_pb.Cursor(epoch=cursor.epoch, turn_id=cursor.turn_id, seq=cursor.seq)


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the reply's text."""

    cursor: Cursor
    text: str


@dataclass(frozen=True, slots=True)
class Custom:
    """Anything else that the agent chose to say."""

    text: ClassVar[str] = ""
    cursor: Cursor
    name: str
    data: Any


@dataclass(frozen=True, slots=True)
class Completed:
    """The turn was committed; `output` is what the handler returned."""

    text: ClassVar[str] = ""
    cursor: Cursor
    output: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """The turn failed. A reply raises `error` instead of giving this."""

    text: ClassVar[str] = ""
    cursor: Cursor
    error: InnkeeperError


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The turn was cancelled. A reply raises WorkCancelled instead of giving this."""

    text: ClassVar[str] = ""
    cursor: Cursor
    reason: str


@dataclass(frozen=True, slots=True)
class GoingAway:
    """The host (`agent` is None), or the life of an agent, is about to end."""

    text: ClassVar[str] = ""
    reason: str
    agent: AgentRef | None


@dataclass(frozen=True, slots=True)
class Gap:
    """So many events are missing here (0: it is not known how many): the host keeps them no longer,
    or in a session nobody read them in time."""

    text: ClassVar[str] = ""
    missed: int


Event = Text | Custom | Completed | Failed | Cancelled | Gap
Push = Event | GoingAway


def from_event(event: common_pb.Event) -> Event | None:
    """The typed event; None for a kind that is newer than this client."""
    cursor = Cursor(event.cursor.epoch, event.cursor.turn_id, event.cursor.seq)
    match event.WhichOneof("event"):
        case "text_delta":
            return Text(cursor, event.text_delta)
        case "custom":
            return Custom(cursor, event.custom.name, from_value(event.custom.data))
        case "completed":
            return Completed(cursor, from_payload(event.completed.output))
        case "failed":
            return Failed(cursor, from_status(event.failed.status))
        case "cancelled":
            return Cancelled(cursor, event.cancelled.reason)
        case "gap":
            return Gap(event.gap.missed)
    return None


def from_going_away(frame: agent_pb.GoingAwayFrame) -> GoingAway:
    """The typed farewell."""
    agent = AgentRef(frame.agent.type, frame.agent.id) if frame.HasField("agent") else None
    return GoingAway(frame.reason, agent)
