"""Building the messages of AgentService from Python arguments.

Owns the forms in which a call may be written; used for calls of their own and for a session's
frames alike.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, Literal

from google.protobuf.timestamp_pb2 import Timestamp

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import common_pb2 as common_pb

from .records import number
from .values import to_payload

Busy = Literal["enqueue", "reject"]
OnDisconnect = Literal["cancel", "continue"]
Scope = Literal["turn", "queue", "all"]


class Absent:
    """The type of ABSENT."""

    def __repr__(self) -> str:
        return "ABSENT"


# Marks an argument that was not given, where None is a value.
ABSENT: Final = Absent()


def invoke_request(
    agent: common_pb.AgentRef | None,
    action: str,
    value: object,
    arguments: Mapping[str, object],
    busy: Busy,
    idempotency_key: str = "",
) -> agent_pb.InvokeRequest:
    """An Invoke: arguments by name, or one whole input. TypeError if both are given."""
    if arguments and value is not ABSENT:
        raise TypeError("give arguments by name, or the whole input, not both")
    request = agent_pb.InvokeRequest(
        agent=agent, action=action, busy_policy=_busy(busy), idempotency_key=idempotency_key
    )
    if arguments:
        request.input.CopyFrom(to_payload(dict(arguments)))
    elif value is not ABSENT:
        request.input.CopyFrom(to_payload(value))
    return request


def chat_request(
    agent: common_pb.AgentRef | None,
    message: object,
    busy: Busy,
    on_disconnect: OnDisconnect,
    idempotency_key: str = "",
) -> agent_pb.StreamChatRequest:
    """A StreamChat."""
    return agent_pb.StreamChatRequest(
        agent=agent,
        message=to_payload(message),
        busy_policy=_busy(busy),
        idempotency_key=idempotency_key,
        on_disconnect=agent_pb.OnDisconnect.ValueType(
            number(agent_pb.OnDisconnect.DESCRIPTOR, on_disconnect)
        ),
    )


def followup_request(
    agent: common_pb.AgentRef | None,
    message: object,
    expires_in: float | None,
    idempotency_key: str = "",
    passive: bool = False,
) -> agent_pb.FollowupRequest:
    """A Followup that expires so many seconds from now."""
    request = agent_pb.FollowupRequest(
        agent=agent,
        message=to_payload(message),
        idempotency_key=idempotency_key,
        passive=passive,
    )
    if expires_in is not None:
        if not expires_in > 0:
            raise ValueError(f"expires_in must be above 0 seconds, not {expires_in}")
        request.expires_at.CopyFrom(_timestamp(time.time() + expires_in))
    return request


def cancel_request(
    agent: common_pb.AgentRef | None, scope: Scope | None, call_id: str
) -> agent_pb.CancelRequest:
    """A Cancel of one piece of work by its id, or of a scope; the running turn by default."""
    if call_id and scope:
        raise TypeError("give a scope or an id, not both")
    word = "" if call_id else (scope or "turn")
    return agent_pb.CancelRequest(
        agent=agent,
        call_id=call_id,
        scope=agent_pb.CancelScope.ValueType(number(agent_pb.CancelScope.DESCRIPTOR, word)),
    )


def _busy(busy: Busy) -> common_pb.BusyPolicy.ValueType:
    return common_pb.BusyPolicy.ValueType(number(common_pb.BusyPolicy.DESCRIPTOR, busy))


def _timestamp(seconds: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromNanoseconds(int(seconds * 1e9))
    return stamp
