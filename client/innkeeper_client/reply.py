"""Reading what one turn says.

Owns `Reply`, the reader's side of a turn, and `Chat`, the reply over a StreamChat call of its own.
(A session's replies are in conversation.py.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import grpc
from grpc import aio

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import agent_service_pb2_grpc as agent_rpc
from innkeeper.v1 import common_pb2 as common_pb

from .calls import Caller, Deadline, typed_errors
from .errors import InnkeeperError, OutcomeUnknown, SlowReader, WorkCancelled
from .events import Cancelled, Completed, Event, Failed, from_event

_Call = aio.UnaryStreamCall[agent_pb.StreamChatRequest, agent_pb.StreamChatResponse]


class Reply(ABC):
    """An asynchronous iterator over one turn's events, for one reader.

    It ends after Completed; a turn that failed or was cancelled raises its InnkeeperError instead.
    Leaving early (`aclose`, or the end of an `async with`) tells the host that the reader left.
    `runtime_id` is known after the first event, `output` after the last.
    """

    def __init__(self) -> None:
        self.runtime_id = ""
        self.output: Any = None
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if self._over:
            raise StopAsyncIteration
        try:
            event = await self._next()
        except BaseException:
            self._over = True
            raise
        if event is None:
            self._over = True
            raise StopAsyncIteration
        if isinstance(event, Completed):
            self.output = event.output
        return event

    async def text(self) -> str:
        """Read to the end. The text that was streamed; if none, the output where that is text."""
        text = "".join([event.text async for event in self])
        return text or (self.output if isinstance(self.output, str) else "")

    async def aclose(self) -> None:
        """Stop reading. Does nothing after the end."""
        self._over = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    @abstractmethod
    async def _next(self) -> Event | None:
        """The next event, None after the last. Raises for a turn that did not complete."""


class Chat(Reply):
    """The reply to one StreamChat call, which is made at the first read."""

    def __init__(
        self,
        caller: Caller,
        stub: agent_rpc.AgentServiceAsyncStub,
        request: agent_pb.StreamChatRequest,
        *,
        timeout: float | None,
        harmless: bool,
        metadata: Mapping[str, str],
        resumes: bool = False,
    ) -> None:
        super().__init__()
        self._caller = caller
        self._stub = stub
        self._request = request
        self._timeout = timeout
        self._harmless = harmless
        self._resumes = resumes  # the turn goes on without us, and can be picked up
        self._deadline: Deadline | None = None
        self._metadata = caller.metadata(metadata)
        self._call: _Call | None = None
        self._completed = False

    def __del__(self) -> None:
        # A reader that just drops the reply has left it.
        if self._call is not None and not self._call.done():
            self._call.cancel()

    async def aclose(self) -> None:
        await super().aclose()
        if self._call is not None and not self._call.done():
            self._call.cancel()
            await self._call.code()

    async def _next(self) -> Event | None:
        while True:
            message = await self._read()
            if message is None:
                return None
            self.runtime_id = self.runtime_id or message.runtime_id
            event = from_event(message.event)
            self._seen(message.event)
            if isinstance(event, Failed | Cancelled):
                await self._raise(event)
            self._completed = isinstance(event, Completed)
            if event is not None:
                return event

    async def _read(self) -> agent_pb.StreamChatResponse | None:
        if self._call is None:
            self._deadline = self._caller.deadline(self._timeout, stream=True)
            return await self._begin(self._deadline)
        if self._completed:
            # The turn is committed; nothing that the connection does now can change that.
            with suppress(InnkeeperError):
                await _read(self._call)
            return None
        try:
            return await _read(self._call) or _cut_short()
        except InnkeeperError as error:
            if not (self._resumes and _broke_off(error)):
                raise
        assert self._deadline is not None, "a call without a deadline"
        return await self._begin(self._deadline)

    async def _begin(self, deadline: Deadline) -> agent_pb.StreamChatResponse:
        return await self._caller.repeat(
            lambda: self._first(deadline), deadline, harmless=self._harmless
        )

    def _seen(self, event: common_pb.Event) -> None:
        """Where a broken stream is to be picked up."""
        if self._resumes and not event.HasField("gap"):
            self._request = agent_pb.StreamChatRequest(
                agent=self._request.agent, after=event.cursor
            )

    async def _first(self, deadline: Deadline) -> agent_pb.StreamChatResponse:
        with typed_errors():
            call = self._stub.StreamChat(
                self._request, timeout=deadline.left(), metadata=self._metadata
            )
        message = await _read(call) or _cut_short()
        self._call = call
        return message

    async def _raise(self, event: Failed | Cancelled) -> None:
        """Raise the RPC's own status, which agrees with the event; the event's where it is OK."""
        assert self._call is not None
        await _read(self._call)
        raise event.error if isinstance(event, Failed) else cancelled(event)


async def _read(call: _Call) -> agent_pb.StreamChatResponse | None:
    with typed_errors():
        message = await call.read()
    return message if isinstance(message, agent_pb.StreamChatResponse) else None


def _broke_off(error: InnkeeperError) -> bool:
    """Whether only the stream ended, and not the turn."""
    return isinstance(error, OutcomeUnknown | SlowReader) or error.retry_after is not None


def _cut_short() -> agent_pb.StreamChatResponse:
    raise OutcomeUnknown("the stream ended without its last event")


def cancelled(event: Cancelled) -> WorkCancelled:
    """The error for a turn that ended so."""
    return WorkCancelled(event.reason or "cancelled", code=grpc.StatusCode.CANCELLED)
