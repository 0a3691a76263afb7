"""AgentService: work for agents, as gRPC methods.

Owns each method's course from the request to its status: what the host makes of the request, what
of it is written, and what becomes of the work when the caller leaves.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import grpc

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper_server.errors import InvalidRequest
from innkeeper_server.events import Event
from innkeeper_server.host import Host
from innkeeper_server.mailbox import Call, Envelope
from innkeeper_server.rpc import ingress
from innkeeper_server.rpc.boundary import Boundary, Read, Write
from innkeeper_server.rpc.conversation import Session
from innkeeper_server.rpc.convert import to_event
from innkeeper_server.rpc.ending import Ending, at_most
from innkeeper_server.rpc.hearing import error_of, heard

SERVICE = "innkeeper.v1.AgentService"
LONGEST_WAIT = 60.0  # seconds for which GetReceipt waits where the call names no deadline
MAX_SESSIONS = 10_000  # open at once; an idle one takes 25 KB of memory


class AgentService:
    """The methods; `handlers` is what a server registers."""

    def __init__(self, host: Host, boundary: Boundary, ending: Ending) -> None:
        self._host = host
        self._boundary = boundary
        self._numbers = itertools.count(1)
        self._sessions: set[Session] = set()
        host.drains.listeners.append(self._on_draining)
        ending.listeners.append(self._on_ending)

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """A handler for each method, by its name."""
        unary, streaming = self._boundary.unary, self._boundary.streaming
        return {
            "Invoke": unary(f"{SERVICE}/Invoke", agent_pb.InvokeRequest, self._invoke),
            "StreamChat": streaming(
                f"{SERVICE}/StreamChat", agent_pb.StreamChatRequest, self._chat
            ),
            "Subscribe": streaming(
                f"{SERVICE}/Subscribe", agent_pb.SubscribeRequest, self._subscribe
            ),
            "Followup": unary(f"{SERVICE}/Followup", agent_pb.FollowupRequest, self._followup),
            "GetReceipt": unary(f"{SERVICE}/GetReceipt", agent_pb.GetReceiptRequest, self._receipt),
            "Cancel": unary(f"{SERVICE}/Cancel", agent_pb.CancelRequest, self._cancel),
            "Session": self._boundary.conversation(
                f"{SERVICE}/Session",
                agent_pb.SessionRequest,
                at_most(MAX_SESSIONS, self._session),
            ),
        }

    async def _invoke(self, request: agent_pb.InvokeRequest, call: Call) -> agent_pb.InvokeResponse:
        envelope = ingress.invoke(self._host, request, call)
        try:
            output = await envelope.outcome()
        except BaseException:
            self._host.caller_left(envelope)
            raise
        return ingress.invoked(envelope, output)

    async def _followup(
        self, request: agent_pb.FollowupRequest, call: Call
    ) -> agent_pb.FollowupResponse:
        envelope = ingress.followup(self._host, request, call)
        try:
            await envelope.accepted()
            return ingress.followed_up(envelope)
        finally:
            self._host.caller_left(envelope)

    async def _receipt(
        self, request: agent_pb.GetReceiptRequest, call: Call
    ) -> agent_pb.GetReceiptResponse:
        if not request.receipt_id:
            raise InvalidRequest.of("receipt_id", "is required")
        deadline = None
        if request.wait:
            now = self._host.now()
            left = LONGEST_WAIT if call.deadline is None else call.deadline - now
            deadline = now + 0.9 * min(left, LONGEST_WAIT)  # the answer must still arrive in time
        receipt = await self._host.followups.receipts.get(
            request.receipt_id, call.tenant, deadline=deadline
        )
        return ingress.receipted(receipt)

    async def _chat(self, request: agent_pb.StreamChatRequest, call: Call, write: Write) -> None:
        if request.HasField("after"):
            await self._stream(ingress.picked_up(self._host, request, call), write)
            return
        envelope = ingress.chat(self._host, request, call)
        try:
            await self._stream(heard(self._host, envelope), write, envelope)
        finally:
            self._host.caller_left(envelope)

    async def _stream(
        self,
        events: AsyncGenerator[Event, None],
        write: Write,
        envelope: Envelope | None = None,
    ) -> None:
        """One message for each event. A refusal is a status alone, so that clients may retry it by
        themselves; once there was an event, the status agrees with the last one."""
        last: Event | None = None
        async with aclosing(events):
            async for event in events:
                is_first = last is None and envelope is not None
                runtime_id = envelope.runtime_id if envelope is not None and is_first else ""
                await write(_said(event, runtime_id))
                last = event
        error = error_of(last) if envelope is None else envelope.error or error_of(last)
        if error is not None:
            raise error

    async def _subscribe(
        self, request: agent_pb.SubscribeRequest, call: Call, write: Write
    ) -> None:
        async with aclosing(ingress.subscribed(self._host, request, call)) as events:
            async for event in events:
                await write(agent_pb.SubscribeResponse(event=to_event(event)))

    async def _cancel(self, request: agent_pb.CancelRequest, call: Call) -> agent_pb.CancelResponse:
        return ingress.cancelled(ingress.cancel(self._host, request, call))

    async def _session(self, read: Read, write: Write, call: Call) -> None:
        name = f"{self._host.id}-s{next(self._numbers)}"
        limit = self._boundary.max_message_bytes
        session = Session(self._host, name, call, max_message_bytes=limit)
        self._sessions.add(session)
        try:
            await session.run(read, write)
        finally:
            self._sessions.discard(session)

    def _on_draining(self, begins: bool) -> None:
        if begins:
            for session in self._sessions:
                session.leave("the host is draining")

    def _on_ending(self) -> None:
        for session in self._sessions:
            session.end()


def _said(event: Event, runtime_id: str) -> agent_pb.StreamChatResponse:
    return agent_pb.StreamChatResponse(event=to_event(event), runtime_id=runtime_id)
