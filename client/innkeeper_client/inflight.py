"""The calls that are in flight in one session.

Owns what a call waits for: one result, or a row of events.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from innkeeper.v1 import agent_service_pb2 as agent_pb

from .errors import InnkeeperError, SlowReader
from .events import Cancelled, Completed, Event, Failed, from_event
from .inbox import Inbox
from .statuses import from_status

# What one reply may have unread, in bytes, before its reader counts as too slow.
REPLY_BOUND = 8 << 20


class InFlight(ABC):
    """One call that the host has not finished."""

    def __init__(self) -> None:
        self.timer: asyncio.TimerHandle | None = None

    @abstractmethod
    def take(self, frame: agent_pb.ServerFrame) -> bool:
        """Take an answer; True if it was the last. Raises SlowReader if there is no room."""

    @abstractmethod
    def fail(self, error: InnkeeperError) -> None:
        """End the call from this side."""


class OneResult(InFlight):
    """A call with a single answer."""

    def __init__(self) -> None:
        super().__init__()
        self._answer: asyncio.Future[agent_pb.ServerFrame] = (
            asyncio.get_running_loop().create_future()
        )

    async def answer(self) -> agent_pb.ServerFrame:
        """The frame that answers."""
        return await self._answer

    def take(self, frame: agent_pb.ServerFrame) -> bool:
        if frame.WhichOneof("frame") == "error":
            self.fail(from_status(frame.error))
        elif not self._answer.done():
            self._answer.set_result(frame)
        return True

    def fail(self, error: InnkeeperError) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)


class ManyEvents(InFlight):
    """A call that is answered by events up to a terminal one."""

    def __init__(self, bound: int = REPLY_BOUND) -> None:
        super().__init__()
        self._inbox: Inbox[Event] = Inbox(bound)

    async def event(self) -> Event | None:
        """The next event, None after the last. Raises what the call ended with."""
        return await self._inbox.get()

    def take(self, frame: agent_pb.ServerFrame) -> bool:
        if frame.WhichOneof("frame") == "error":
            self.fail(from_status(frame.error))
            return True
        event = from_event(frame.event) if frame.WhichOneof("frame") == "event" else None
        if event is None:
            return False
        if not self._inbox.put(event, frame.ByteSize()):
            raise SlowReader("the reply was not read quickly enough and was let go")
        last = isinstance(event, Completed | Failed | Cancelled)
        if last:
            self._inbox.end()
        return last

    def fail(self, error: InnkeeperError) -> None:
        self._inbox.end(error)
