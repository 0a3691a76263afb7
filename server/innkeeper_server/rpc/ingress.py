"""From a request about an agent to the host's call, and from its outcome to the reply.

Owns what AgentService's methods and a session's frames have in common: the fields are checked
first, so that a wrong request takes nothing; then the host is called, which never waits. `opened`
is the agent that a session has open, which its requests may leave out.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Protocol, TypeVar

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import common_pb2 as common_pb
from innkeeper_server import letters
from innkeeper_server.cancelling import CancelledWork
from innkeeper_server.content import Content
from innkeeper_server.errors import InvalidRequest
from innkeeper_server.events import Event
from innkeeper_server.host import Host
from innkeeper_server.identity import AgentKey
from innkeeper_server.mailbox import BusyPolicy, Call, Envelope, OnDisconnect
from innkeeper_server.receipts import Receipt
from innkeeper_server.rpc.convert import (
    agent_key,
    agent_ref,
    from_cursor,
    from_payload,
    from_timestamp,
    timestamp,
    to_payload,
)
from innkeeper_server.rpc.status import stored_status

Meaning = TypeVar("Meaning")

_BUSY: dict[int, BusyPolicy] = {
    common_pb.BUSY_POLICY_UNSPECIFIED: "enqueue",
    common_pb.BUSY_POLICY_ENQUEUE: "enqueue",
    common_pb.BUSY_POLICY_REJECT: "reject",
}
_ON_DISCONNECT: dict[int, OnDisconnect] = {
    agent_pb.ON_DISCONNECT_UNSPECIFIED: "cancel",
    agent_pb.ON_DISCONNECT_CANCEL: "cancel",
    agent_pb.ON_DISCONNECT_CONTINUE: "continue",
}
_SCOPES: dict[int, str] = {
    agent_pb.CANCEL_SCOPE_UNSPECIFIED: "",
    agent_pb.CANCEL_SCOPE_TURN: "turn",
    agent_pb.CANCEL_SCOPE_QUEUE: "queue",
    agent_pb.CANCEL_SCOPE_ALL: "all",
}


class _Addressed(Protocol):
    @property
    def agent(self) -> common_pb.AgentRef: ...


# -- from requests ------------------------------------------------------------------------------


def invoke(
    host: Host, request: agent_pb.InvokeRequest, call: Call, opened: AgentKey | None = None
) -> Envelope:
    """Raises at once what is wrong with the request; anything later is the envelope's outcome.
    So do the others."""
    key = addressed(request, call, opened)
    return host.invoke(
        key,
        request.action,
        from_payload(request.input, "input"),
        call,
        busy=_meaning(_BUSY, request.busy_policy, "busy_policy"),
        idempotency_key=request.idempotency_key,
    )


def chat(
    host: Host, request: agent_pb.StreamChatRequest, call: Call, opened: AgentKey | None = None
) -> Envelope:
    """One chat turn."""
    key = addressed(request, call, opened)
    return host.chat(
        key,
        from_payload(request.message, "message"),
        call,
        busy=_meaning(_BUSY, request.busy_policy, "busy_policy"),
        on_disconnect=_meaning(_ON_DISCONNECT, request.on_disconnect, "on_disconnect"),
        idempotency_key=request.idempotency_key,
    )


def picked_up(
    host: Host, request: agent_pb.StreamChatRequest, call: Call
) -> AsyncGenerator[Event, None]:
    """What a turn says behind an event of it."""
    key = host.served(addressed(request, call, None))
    return host.followed().turn(key, *from_cursor(request.after, "after"), call)


def subscribed(
    host: Host, request: agent_pb.SubscribeRequest, call: Call
) -> AsyncGenerator[Event, None]:
    """What an agent says."""
    key = host.served(addressed(request, call, None))
    after = from_cursor(request.after, "after") if request.HasField("after") else None
    if after is not None and request.new_only:
        raise InvalidRequest.of("new_only", "goes without `after`")
    return host.followed().lasting(key, after, call, new_only=request.new_only)


def message(
    host: Host, frame: agent_pb.MessageFrame, call: Call, opened: AgentKey | None
) -> Envelope:
    """One message of a session."""
    key = addressed(frame, call, opened)
    return host.message(key, from_payload(frame.message, "message"), call)


def followup(
    host: Host, request: agent_pb.FollowupRequest, call: Call, opened: AgentKey | None = None
) -> Envelope:
    """A message for a later turn."""
    key = addressed(request, call, opened)
    expires_at = None
    if request.HasField("expires_at"):
        expires_at = from_timestamp(request.expires_at, "expires_at")
    content = from_payload(request.message, "message")
    return host.followup(
        key,
        content,
        call,
        expires_at=expires_at,
        idempotency_key=request.idempotency_key,
        passive=request.passive,
    )


def cancel(
    host: Host,
    request: agent_pb.CancelRequest,
    call: Call,
    opened: AgentKey | None = None,
    own: Mapping[str, Envelope] | None = None,
) -> list[CancelledWork]:
    """Stop work. `own`: what a session has in flight, by call id; that needs no agent."""
    scope = _meaning(_SCOPES, request.scope, "scope")
    if request.call_id and scope:
        raise InvalidRequest.of("call_id", "goes without a scope: it names one piece of work")
    if not request.call_id and not scope:
        raise InvalidRequest.of("scope", "is required, or a call_id")
    if own is not None and request.call_id:
        if (envelope := own.get(request.call_id)) is not None:
            return host.cancel(envelope.agent, scope, envelope.id)
        if opened is None and not names_agent(request):
            return []  # a call that has ended; there is nothing else that it could mean
    return host.cancel(addressed(request, call, opened), scope, request.call_id)


def addressed(request: _Addressed, call: Call, opened: AgentKey | None) -> AgentKey:
    """Whom a request is for. Raises InvalidRequest."""
    ref = request.agent
    if ref.id or ref.type:
        return agent_key(ref, call.tenant)
    if opened is None:
        raise InvalidRequest.of("agent", "is required")
    return opened


def names_agent(request: _Addressed) -> bool:
    """Whether it says for whom it is."""
    return bool(request.agent.id or request.agent.type)


def _meaning(known: Mapping[int, Meaning], value: int, field: str) -> Meaning:
    if value not in known:
        raise InvalidRequest.of(field, f"{value} is not served")
    return known[value]


# -- to replies ---------------------------------------------------------------------------------


def invoked(envelope: Envelope, output: Content) -> agent_pb.InvokeResponse:
    """The outcome of an invoke."""
    return agent_pb.InvokeResponse(
        output=to_payload(output),
        turn_id=envelope.id,
        runtime_id=envelope.runtime_id,
        replayed=envelope.replayed,
    )


def followed_up(envelope: Envelope) -> agent_pb.FollowupResponse:
    """The receipt of a follow-up that was accepted just now."""
    receipt = common_pb.Receipt(
        receipt_id=envelope.id,
        agent=agent_ref(envelope.agent),
        state=common_pb.RECEIPT_STATE_ACCEPTED,
        accepted_at=timestamp(time.time()),
    )
    return agent_pb.FollowupResponse(receipt=receipt)


def receipted(receipt: Receipt) -> agent_pb.GetReceiptResponse:
    """How a follow-up stands."""
    followup = receipt.followup
    state = "running" if receipt.running else followup.state
    message = common_pb.Receipt(
        receipt_id=followup.id,
        agent=agent_ref(followup.key),
        state=common_pb.ReceiptState.Value(f"RECEIPT_STATE_{state.upper()}"),
        attempt=followup.attempt,
        accepted_at=timestamp(followup.accepted_at),
    )
    if followup.started_at is not None:
        message.started_at.CopyFrom(timestamp(followup.started_at))
    if followup.settled_at is not None:
        message.settled_at.CopyFrom(timestamp(followup.settled_at))
    if followup.outcome is not None:
        _put_outcome(message, followup.outcome)
    return agent_pb.GetReceiptResponse(receipt=message)


def _put_outcome(message: common_pb.Receipt, outcome: bytes) -> None:
    error = letters.read_error(outcome)
    if error is None:
        message.output.CopyFrom(to_payload(letters.read_output(outcome)))
    else:
        message.error.CopyFrom(stored_status(**error))


def cancelled(stopped: Iterable[CancelledWork]) -> agent_pb.CancelResponse:
    """What was told to stop."""
    return agent_pb.CancelResponse(
        cancelled=[
            agent_pb.CancelledWork(id=work.id, kind=work.kind, was_running=work.was_running)
            for work in stopped
        ]
    )
