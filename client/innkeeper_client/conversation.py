"""The Session RPC: one long conversation with many calls in flight.

Owns what a session offers; exchange.py pairs calls with answers, frames.py moves the frames.

    async with agent.session() as s:
        first, second = await asyncio.gather(s.invoke("add", n=1), s.invoke("add", n=2))
        async for event in s.chat("hello"):
            print(event.text, end="")
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Self

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import agent_service_pb2_grpc as agent_rpc
from innkeeper.v1 import common_pb2 as common_pb

from .calls import Caller, Deadline
from .errors import ClientClosed
from .events import Cancelled, Cursor, Event, Failed, Push, to_cursor
from .exchange import Exchange
from .frames import open_stream
from .inflight import ManyEvents
from .records import AgentRef, CancelledWork, Invoked, Receipt, record, to_ref
from .reply import Reply, cancelled
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
from .values import to_payload

# How long a clean end may take, in seconds, unless `close` is told otherwise.
CLOSE_TIMEOUT = 30.0


class Session:
    """One session; use it with `async with`.

    Leaving the block cleanly lets the calls in flight end; leaving it by an exception detaches.
    `agent=` of a call names another agent than the opened one. A call that is cancelled, or that
    runs out of time, is stopped on the host too. At most `max_in_flight` calls are under way;
    more wait for their turn, under their deadlines.
    """

    def __init__(
        self,
        caller: Caller,
        stub: agent_rpc.AgentServiceAsyncStub,
        agent: AgentRef | None,
        *,
        metadata: Mapping[str, str],
        max_in_flight: int,
        events: bool = False,
        after: Cursor | None = None,
    ) -> None:
        self.agent = agent
        self.id = ""
        self.runtime_id = ""
        self._caller = caller
        self._stub = stub
        self._metadata = metadata
        self._max_in_flight = max_in_flight
        self._frame = agent_pb.OpenFrame(agent=_ref(agent), events=events)
        if after is not None:
            self._frame.after.CopyFrom(to_cursor(after))
        self._exchange: Exchange | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await (self.close() if kind is None else self.detach())

    async def open(self, *, timeout: float | None = None) -> None:
        """Open the session; the agent stays resident while it lasts. Raises InnkeeperError."""
        if self._exchange is not None:
            raise RuntimeError("the session is open already")
        deadline = self._caller.deadline(timeout)
        metadata = self._caller.metadata(self._metadata)
        call, opened, early = await self._caller.repeat(
            lambda: open_stream(self._stub, self._frame, metadata, deadline),
            deadline,
            harmless=True,
        )
        self.id, self.runtime_id = opened.session_id, opened.runtime_id
        if opened.HasField("agent"):
            self.agent = record(opened.agent, AgentRef)
        self._exchange = Exchange(call, early, self._max_in_flight)

    async def close(self, *, timeout: float = CLOSE_TIMEOUT) -> bool:
        """End the session cleanly: what is in flight ends first, for so many seconds at most.

        False if the host did not confirm the end.
        """
        return await self._exchange.close(timeout) if self._exchange is not None else False

    async def detach(self) -> None:
        """End the session at once; the host skips what it has not begun."""
        if self._exchange is not None:
            await self._exchange.detach()

    async def invoke(
        self,
        action: str = "",
        /,
        *,
        agent: AgentRef | str | None = None,
        input: object = ABSENT,
        timeout: float | None = None,
        busy: Busy = "enqueue",
        **arguments: object,
    ) -> Any:
        """As RemoteAgent.invoke."""
        request = invoke_request(_ref(agent), action, input, arguments, busy)
        return (await self._invoke(request, timeout)).output

    async def invoke_raw(
        self,
        action: str = "",
        /,
        *,
        agent: AgentRef | str | None = None,
        input: object = ABSENT,
        timeout: float | None = None,
        busy: Busy = "enqueue",
        **arguments: object,
    ) -> Invoked:
        """As RemoteAgent.invoke_raw."""
        request = invoke_request(_ref(agent), action, input, arguments, busy)
        return await self._invoke(request, timeout)

    def chat(
        self,
        message: object,
        *,
        agent: AgentRef | str | None = None,
        timeout: float | None = None,
        busy: Busy = "enqueue",
        on_disconnect: OnDisconnect = "cancel",
    ) -> Reply:
        """As RemoteAgent.chat."""
        request = chat_request(_ref(agent), message, busy, on_disconnect)
        return self._reply(agent_pb.ClientFrame(chat=request), timeout)

    def message(
        self, message: object, *, agent: AgentRef | str | None = None, timeout: float | None = None
    ) -> Reply:
        """Say something to the agent's `on_message`; iterate for its events."""
        frame = agent_pb.MessageFrame(agent=_ref(agent), message=to_payload(message))
        return self._reply(agent_pb.ClientFrame(message=frame), timeout)

    async def followup(
        self,
        message: object,
        *,
        agent: AgentRef | str | None = None,
        expires_in: float | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """As RemoteAgent.followup."""
        request = followup_request(_ref(agent), message, expires_in)
        answer = await self._answer(agent_pb.ClientFrame(followup=request), timeout)
        return record(answer.result.followup.receipt, Receipt)

    async def cancel(
        self,
        scope: Scope | None = None,
        *,
        id: str = "",
        agent: AgentRef | str | None = None,
        timeout: float | None = None,
    ) -> list[CancelledWork]:
        """As RemoteAgent.cancel."""
        request = cancel_request(_ref(agent), scope, id)
        answer = await self._answer(agent_pb.ClientFrame(cancel=request), timeout)
        return [record(work, CancelledWork) for work in answer.result.cancel.cancelled]

    async def ping(self, *, timeout: float | None = None) -> None:
        """Ask for a sign of life, and wait for it."""
        await self._answer(agent_pb.ClientFrame(ping=agent_pb.PingFrame()), timeout)

    def events(self) -> AsyncIterator[Push]:
        """What the agent pushes, and farewells, until the session ends. For one reader.

        Ends quietly with a closed session, and raises what a broken one ended with.
        """
        return self._opened().pushes()

    def _opened(self) -> Exchange:
        if self._exchange is None:
            raise ClientClosed("the session is not open")
        return self._exchange

    def _reply(self, frame: agent_pb.ClientFrame, timeout: float | None) -> SessionReply:
        return SessionReply(self._caller, self._opened(), frame, timeout)

    async def _invoke(self, request: agent_pb.InvokeRequest, timeout: float | None) -> Invoked:
        answer = await self._answer(agent_pb.ClientFrame(invoke=request), timeout)
        return record(answer.result.invoke, Invoked)

    async def _answer(
        self, frame: agent_pb.ClientFrame, timeout: float | None
    ) -> agent_pb.ServerFrame:
        exchange, deadline = self._opened(), self._caller.deadline(timeout)
        return await self._caller.repeat(
            lambda: exchange.ask(frame, deadline), deadline, harmless=False
        )


class SessionReply(Reply):
    """The reply to a chat or message of a session, which is sent at the first read."""

    def __init__(
        self,
        caller: Caller,
        exchange: Exchange,
        frame: agent_pb.ClientFrame,
        timeout: float | None,
    ) -> None:
        super().__init__()
        self._caller = caller
        self._exchange = exchange
        self._frame = frame
        self._timeout = timeout
        self._call = ManyEvents()
        self._key = ""

    def __del__(self) -> None:
        # A reader that just drops the reply has left it.
        self._leave()

    async def aclose(self) -> None:
        await super().aclose()
        self._leave()

    async def _next(self) -> Event | None:
        try:
            event = await (self._call.event() if self._key else self._first())
        except BaseException:
            self._leave()
            raise
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Cancelled):
            raise cancelled(event)
        return event

    async def _first(self) -> Event | None:
        deadline = self._caller.deadline(self._timeout, stream=True)
        return await self._caller.repeat(lambda: self._attempt(deadline), deadline, harmless=False)

    async def _attempt(self, deadline: Deadline) -> Event | None:
        self._leave()
        self._call = ManyEvents()
        self._key = await self._exchange.start(self._frame, self._call, deadline)
        return await self._call.event()

    def _leave(self) -> None:
        if self._key:
            self._exchange.abandon(self._key)


def _ref(agent: AgentRef | str | None) -> common_pb.AgentRef | None:
    return None if agent is None else to_ref(agent)
