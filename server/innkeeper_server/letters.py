"""What is written into the store about a follow-up, and read back from it.

Owns the bytes: JSON, so that other programs and later versions can read them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from innkeeper_server.content import Blob, Content
from innkeeper_server.errors import AgentError, DeadlineExceeded, HandlerFailed, InnkeeperError
from innkeeper_server.mailbox import Call

__all__ = [
    "read_error",
    "read_message",
    "read_output",
    "restored_error",
    "write_error",
    "write_message",
    "write_output",
    "written",
]


def write_message(message: Content, call: Call) -> bytes:
    """A message, and who sent it."""
    sender = {
        "principal": call.principal,
        "tenant": call.tenant,
        "request_id": call.request_id,
        "metadata": dict(call.metadata),
    }
    return _bytes({"message": written(message), "call": sender})


def read_message(data: bytes) -> tuple[Content, Call]:
    """What `write_message` wrote."""
    found = json.loads(data)
    return _read(found["message"]), Call(**found["call"])


def write_output(output: Content) -> bytes:
    """What a follow-up's turn returned."""
    return _bytes({"output": written(output)})


def read_output(data: bytes) -> Content:
    """What `write_output` wrote."""
    return _read(json.loads(data)["output"])


def write_error(error: InnkeeperError) -> bytes:
    """What a follow-up ended with instead."""
    told = {
        "code": error.status_code.name,
        "reason": error.reason,
        "message": error.message,
        "metadata": dict(error.metadata),
    }
    return _bytes({"error": told})


def read_error(data: bytes) -> Mapping[str, Any] | None:
    """What `write_error` wrote: code, reason, message, metadata; None if it was an output."""
    error: Mapping[str, Any] | None = json.loads(data).get("error")
    return error


def restored_error(
    code: str, reason: str, message: str, metadata: Mapping[str, str]
) -> InnkeeperError:
    """The error that `read_error` found, as it was raised; it promises no good of a retry."""
    if reason == HandlerFailed.reason:
        return HandlerFailed(message, metadata=metadata)
    if reason == DeadlineExceeded.reason:
        return DeadlineExceeded(message, metadata=metadata)
    return AgentError(code, message, metadata)


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
