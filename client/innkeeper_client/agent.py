"""One agent, seen from outside.

Owns `RemoteAgent`: the calls of AgentService, each on its own. Many calls to one agent, or pushes
from it, are cheaper over `session()`.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import agent_service_pb2_grpc as agent_rpc

from .calls import Caller
from .conversation import Session
from .events import Cursor, Event, to_cursor
from .records import AgentRef, CancelledWork, Invoked, Receipt, record, to_ref
from .reply import Chat
from .requests import (
    ABSENT,
    Busy,
    OnDisconnect,
    Scope,
    cancel_request,
    chat_request,
    followup_request,
    invoke_request,
)
from .subscription import subscription


class RemoteAgent:
    """An agent by type and id. Having one costs nothing and calls nobody.

    Every `timeout` is in seconds and bounds the whole call with its retries; None means the
    client's default, `math.inf` none. Every call raises InnkeeperError.
    """

    def __init__(
        self,
        caller: Caller,
        stub: agent_rpc.AgentServiceAsyncStub,
        ref: AgentRef,
        metadata: Mapping[str, str],
    ) -> None:
        self.ref = ref
        self._caller = caller
        self._stub = stub
        self._metadata = metadata

    def __repr__(self) -> str:
        return f"<agent {self.ref}>"

    async def invoke(
        self,
        action: str = "",
        /,
        *,
        input: object = ABSENT,
        timeout: float | None = None,
        busy: Busy = "enqueue",
        retry_unknown: bool = False,
        idempotency_key: str = "",
        **arguments: object,
    ) -> Any:
        """Run an action as one turn and return what it returned, once that is committed.

        `input` is the whole input, for arguments that are not by name or that clash with the
        names here. `retry_unknown` allows a retry where the work may have run already; with an
        `idempotency_key` every retry is safe, since the host runs one call for each key.
        """
        request = invoke_request(to_ref(self.ref), action, input, arguments, busy, idempotency_key)
        return (await self._invoke(request, timeout, retry_unknown)).output

    async def invoke_raw(
        self,
        action: str = "",
        /,
        *,
        input: object = ABSENT,
        timeout: float | None = None,
        busy: Busy = "enqueue",
        retry_unknown: bool = False,
        idempotency_key: str = "",
        **arguments: object,
    ) -> Invoked:
        """As `invoke`, with the turn's and the runtime's ids."""
        request = invoke_request(to_ref(self.ref), action, input, arguments, busy, idempotency_key)
        return await self._invoke(request, timeout, retry_unknown)

    def chat(
        self,
        message: object,
        *,
        timeout: float | None = None,
        busy: Busy = "enqueue",
        on_disconnect: OnDisconnect = "cancel",
        retry_unknown: bool = False,
        idempotency_key: str = "",
    ) -> Chat:
        """Start a chat turn at the first read; iterate for its events.

        With `on_disconnect="continue"` the turn outlives a lost connection, and the reply picks it
        up by itself: every event comes once. With an `idempotency_key` the same message may be
        sent again at any time, from anywhere: it runs once, and each reply is the whole one.
        """
        goes_on = on_disconnect == "continue"
        key = idempotency_key or (uuid.uuid4().hex if goes_on else "")
        return Chat(
            self._caller,
            self._stub,
            chat_request(to_ref(self.ref), message, busy, on_disconnect, key),
            timeout=timeout,
            harmless=retry_unknown or bool(key),
            resumes=goes_on,
            metadata=self._metadata,
        )

    def resume(self, after: Cursor, *, timeout: float | None = None) -> Chat:
        """Pick up the reply of a turn behind an event of it; it always ends."""
        request = agent_pb.StreamChatRequest(agent=to_ref(self.ref), after=to_cursor(after))
        return Chat(
            self._caller,
            self._stub,
            request,
            timeout=timeout,
            harmless=True,
            resumes=True,
            metadata=self._metadata,
        )

    def subscribe(
        self, after: Cursor | None = None, *, new_only: bool = False, timeout: float | None = None
    ) -> AsyncIterator[Event]:
        """Everything that the agent says, in all its turns: from its oldest event that is kept, or
        behind `after`, or (`new_only`) from now on; without end, through lost connections.

        Turns that failed are told as Failed events, and raise nothing here. `timeout` is in
        seconds; None means no deadline.
        """
        request = agent_pb.SubscribeRequest(agent=to_ref(self.ref), new_only=new_only)
        if after is not None:
            request.after.CopyFrom(to_cursor(after))
        return subscription(
            self._caller, self._stub, request, timeout=timeout, metadata=self._metadata
        )

    async def ask(
        self, message: object, *, timeout: float | None = None, busy: Busy = "enqueue"
    ) -> str:
        """Chat, and return the whole text of the reply."""
        async with self.chat(message, timeout=timeout, busy=busy) as reply:
            return await reply.text()

    async def followup(
        self,
        message: object,
        *,
        expires_in: float | None = None,
        timeout: float | None = None,
        idempotency_key: str = "",
        passive: bool = False,
    ) -> Receipt:
        """Leave a message for a later turn; dropped if not begun within `expires_in` seconds. With
        an `idempotency_key` it is left once, however often this is repeated. A `passive` one wakes
        nobody: it runs behind the agent's next work."""
        response = await self._caller.unary(
            self._stub.Followup,
            followup_request(to_ref(self.ref), message, expires_in, idempotency_key, passive),
            timeout=timeout,
            harmless=bool(idempotency_key),
            metadata=self._metadata,
        )
        return record(response.receipt, Receipt)

    async def cancel(
        self, scope: Scope | None = None, *, id: str = "", timeout: float | None = None
    ) -> list[CancelledWork]:
        """Stop the running turn, the queue, all, or one piece of work by its id."""
        response = await self._caller.unary(
            self._stub.Cancel,
            cancel_request(to_ref(self.ref), scope, id),
            timeout=timeout,
            metadata=self._metadata,
        )
        return [record(work, CancelledWork) for work in response.cancelled]

    def session(
        self, *, max_in_flight: int = 256, events: bool = False, after: Cursor | None = None
    ) -> Session:
        """One conversation with many calls in flight: `async with agent.session() as s`.

        `events`: also hear what the agent says in all its turns, by `s.events()`; with `after`,
        from behind that event on, so that a broken session's successor misses nothing.
        """
        return Session(
            self._caller,
            self._stub,
            self.ref,
            metadata=self._metadata,
            max_in_flight=max_in_flight,
            events=events,
            after=after,
        )

    async def _invoke(
        self, request: agent_pb.InvokeRequest, timeout: float | None, harmless: bool
    ) -> Invoked:
        response = await self._caller.unary(
            self._stub.Invoke,
            request,
            timeout=timeout,
            harmless=harmless or bool(request.idempotency_key),
            metadata=self._metadata,
        )
        return record(response, Invoked)
