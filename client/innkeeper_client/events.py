"""What a turn says while it runs, and what a session hears besides.

Owns the event classes. Every event has `text`, which is "" unless it is a piece of the reply, so
`"".join([event.text async for event in reply])` is the whole reply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import common_pb2 as common_pb

from .errors import InnkeeperError, from_status
from .records import AgentRef
from .values import from_payload, from_value


@dataclass(frozen=True, slots=True)
class Cursor:
    """Names one event of one agent; ordered by (epoch, turn, seq)."""

    epoch: int
    turn_id: str
    seq: int


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
    """So many pushed events were dropped here because nobody read them in time."""

    text: ClassVar[str] = ""
    missed: int


Event = Text | Custom | Completed | Failed | Cancelled
Push = Event | GoingAway | Gap


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
    return None


def from_going_away(frame: agent_pb.GoingAwayFrame) -> GoingAway:
    """The typed farewell."""
    agent = AgentRef(frame.agent.type, frame.agent.id) if frame.HasField("agent") else None
    return GoingAway(frame.reason, agent)
