"""What is written into the store of messages, outcomes and events, and read back from it.

Owns the bytes: JSON, so that other programs and later versions can read them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from innkeeper_server import errors
from innkeeper_server.content import Blob, Content
from innkeeper_server.errors import AgentError, InnkeeperError
from innkeeper_server.events import (
    TERMINAL,
    Body,
    Cancelled,
    Completed,
    Custom,
    Event,
    Failed,
    Text,
)
from innkeeper_server.mailbox import Call
from innkeeper_server.store import Chunk

__all__ = [
    "Letter",
    "interruption",
    "read_error",
    "read_events",
    "read_message",
    "read_output",
    "restored_error",
    "write_error",
    "write_events",
    "write_message",
    "write_output",
    "written",
]


class Letter(NamedTuple):
    """A message, who sent it, and the alarm that it comes from, if it does from one."""

    message: Content
    call: Call
    alarm: str = ""


def write_message(message: Content, call: Call, alarm: str = "") -> bytes:
    """A letter."""
    sender = {
        "principal": call.principal,
        "tenant": call.tenant,
        "request_id": call.request_id,
        "metadata": dict(call.metadata),
    }
    letter = {"message": written(message), "call": sender}
    return _bytes({**letter, "alarm": alarm} if alarm else letter)


def read_message(data: bytes) -> Letter:
    """What `write_message` wrote."""
    found = json.loads(data)
    return Letter(_read(found["message"]), Call(**found["call"]), found.get("alarm", ""))


def write_output(output: Content) -> bytes:
    """What a follow-up's turn returned."""
    return _bytes({"output": written(output)})


def read_output(data: bytes) -> Content:
    """What `write_output` wrote."""
    return _read(json.loads(data)["output"])


def write_error(error: InnkeeperError) -> bytes:
    """What a follow-up ended with instead."""
    return _bytes({"error": _told(error)})


def _told(error: InnkeeperError) -> dict[str, Any]:
    return {
        "code": error.status_code.name,
        "reason": error.reason,
        "message": error.message,
        "metadata": dict(error.metadata),
    }


def read_error(data: bytes) -> Mapping[str, Any] | None:
    """What `write_error` wrote: code, reason, message, metadata; None if it was an output."""
    error: Mapping[str, Any] | None = json.loads(data).get("error")
    return error


def restored_error(
    code: str, reason: str, message: str, metadata: Mapping[str, str]
) -> InnkeeperError:
    """The error that `read_error` found, as it was raised."""
    kind = _KINDS.get(reason)
    return AgentError(code, message, metadata) if kind is None else kind(message, metadata=metadata)


# By their reasons; what an agent raises on purpose has a code of its own.
_KINDS: dict[str, type[InnkeeperError]] = {
    kind.reason: kind
    for kind in vars(errors).values()
    if isinstance(kind, type)
    and issubclass(kind, InnkeeperError)
    and kind not in (AgentError, InnkeeperError)
}


def write_events(said: list[Event]) -> Chunk:
    """Consecutive events of one turn, for the log."""
    first, last = said[0], said[-1]
    data = _list([_written_body(event.body) for event in said])
    ended = isinstance(last.body, TERMINAL)
    return Chunk(last.turn_id, last.epoch, first.seq, last.seq, data, ended)


def read_events(chunk: Chunk) -> list[Event]:
    """What `write_events` wrote."""
    return [
        Event(chunk.epoch, chunk.turn_id, chunk.first + number, _read_body(*written_one))
        for number, written_one in enumerate(json.loads(chunk.data))
    ]


def interruption() -> bytes:
    """The event that ends a turn whose host ended before it did."""
    error = errors.Interrupted("the host ended in the middle of the turn; nothing of it was kept")
    return _list([_written_body(Failed(error))])


def _written_body(body: Body) -> list[Any]:
    if isinstance(body, Text):
        return ["text", body.delta]
    if isinstance(body, Custom):
        return ["custom", body.name, body.data]
    if isinstance(body, Completed):
        return ["completed", written(body.output)]
    if isinstance(body, Failed):
        return ["failed", _told(body.error)]
    assert isinstance(body, Cancelled), f"an event that is not logged: {body!r}"
    return ["cancelled", body.reason]


def _read_body(kind: str, *what: Any) -> Body:
    if kind == "text":
        return Text(*what)
    if kind == "custom":
        return Custom(*what)
    if kind == "completed":
        return Completed(_read(what[0]))
    if kind == "failed":
        return Failed(restored_error(**what[0]))
    return Cancelled(*what)


def _list(value: list[Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def written(content: Content) -> dict[str, Any]:
    """A content as JSON."""
    if content is None:
        return {}
    if isinstance(content, str):
        return {"text": content}
    if isinstance(content, Blob):
        data = base64.b64encode(content.data).decode()
        return {"data": data, "content_type": content.content_type}
    return {"json": content}


def _read(found: Mapping[str, Any]) -> Content:
    if "text" in found:
        return str(found["text"])
    if "data" in found:
        return Blob(base64.b64decode(found["data"]), found["content_type"])
    content: Content = found.get("json")
    return content


def _bytes(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
