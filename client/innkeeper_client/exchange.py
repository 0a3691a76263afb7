"""The calls of one session and their answers.

Owns the pairing by call id, the room for calls in flight, their deadlines (frames carry none, so
this side keeps them, and tells the host to stop what it gave up), and what happens to each when
the session ends. Everything that waits in here is bounded by the room: a call has one frame in
line, and at most one more that takes it back.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable

import grpc

from innkeeper.v1 import agent_service_pb2 as agent_pb

from .calls import Deadline, out_of_time
from .errors import ClientClosed, InnkeeperError, OutcomeUnknown, SlowReader
from .events import Gap, Push, from_event, from_going_away
from .frames import Call, FrameStream
from .inbox import Inbox
from .inflight import InFlight, OneResult
from .statuses import from_status

# What may wait for the reader of pushes, in bytes; more is dropped, and told as a Gap.
PUSH_BOUND = 1 << 20


class Exchange:
    """An open session from the inside. Needs a running event loop."""

    def __init__(
        self, call: Call, early: Iterable[agent_pb.ServerFrame], max_in_flight: int
    ) -> None:
        self.end: InnkeeperError | None = None
        self.clean = False
        self._told: InnkeeperError | None = None
        self._room = asyncio.Semaphore(max_in_flight)
        self._numbers = itertools.count(1)
        self._in_flight: dict[str, InFlight] = {}
        self._pushes: Inbox[Push] = Inbox(PUSH_BOUND)
        self._missed = 0
        self._stream = FrameStream(call, self._on_frame, self._on_end)
        for frame in early:
            self._on_frame(frame)

    async def ask(self, frame: agent_pb.ClientFrame, deadline: Deadline) -> agent_pb.ServerFrame:
        """Send a call with one answer and wait for it."""
        call = OneResult()
        key = await self.start(frame, call, deadline)
        try:
            return await call.answer()
        finally:
            self.abandon(key)

    async def start(self, frame: agent_pb.ClientFrame, call: InFlight, deadline: Deadline) -> str:
        """Wait for room, then send a call; returns its key. The answers go to `call`."""
        await self._enter(deadline)
        if self.end is not None:
            self._room.release()
            raise ClientClosed(f"the session has ended: {self.end}") from self.end
        key = self._name(frame)
        self._in_flight[key] = call
        left = deadline.left()
        if left is not None:
            call.timer = asyncio.get_running_loop().call_later(left, self._expire, key)
        self._stream.send(frame)
        return key

    def abandon(self, key: str) -> None:
        """Give a call up and tell the host to stop it. Does nothing for one that has ended."""
        if self._settle(key) is not None and self.end is None and not key.startswith("ping"):
            cancel = agent_pb.CancelRequest(call_id=key)
            frame = agent_pb.ClientFrame(call_id=f"{key}-stop", cancel=cancel)
            self._stream.send(frame)

    async def pushes(self) -> AsyncIterator[Push]:
        """What belongs to no call, until the session ends."""
        while (push := await self._pushes.get()) is not None:
            yield push
        if self._missed:
            yield Gap(self._missed)

    async def close(self, timeout: float) -> bool:
        """End cleanly, within so many seconds; False if the host did not confirm."""
        try:
            if self.end is None:
                self._stream.send(agent_pb.ClientFrame(close=agent_pb.CloseFrame()))
            await self._stream.ended(timeout)
        finally:
            self._stream.cut()
        await self._stream.gone()
        return self.clean

    async def detach(self) -> None:
        """End at once."""
        self._stream.cut()
        await self._stream.gone()

    def cut(self) -> None:
        """End at once, without waiting."""
        self._stream.cut()

    async def _enter(self, deadline: Deadline) -> None:
        try:
            async with asyncio.timeout(deadline.left()):
                await self._room.acquire()
        except TimeoutError:
            raise out_of_time("waiting for room in the session") from None

    def _name(self, frame: agent_pb.ClientFrame) -> str:
        number = next(self._numbers)
        if frame.WhichOneof("frame") == "ping":
            frame.ping.nonce = number
            return _ping_key(number)
        frame.call_id = f"c{number}"
        return frame.call_id

    def _settle(self, key: str) -> InFlight | None:
        call = self._in_flight.pop(key, None)
        if call is not None:
            self._room.release()
            if call.timer is not None:
                call.timer.cancel()
        return call

    def _expire(self, key: str) -> None:
        call = self._in_flight[key]
        self.abandon(key)
        call.fail(out_of_time("the call"))

    def _on_frame(self, frame: agent_pb.ServerFrame) -> None:
        kind = frame.WhichOneof("frame")
        key = _ping_key(frame.pong.nonce) if kind == "pong" else frame.call_id
        if key:
            self._on_answer(key, frame)
        elif kind == "event":
            event = from_event(frame.event)
            if event is not None:
                self._push(event, frame.ByteSize())
        elif kind == "going_away":
            self._push(from_going_away(frame.going_away), frame.ByteSize())
        elif kind == "error":
            self._told = from_status(frame.error)
        elif kind == "closed":
            self.clean = True

    def _on_answer(self, key: str, frame: agent_pb.ServerFrame) -> None:
        call = self._in_flight.get(key)
        if call is None:
            return  # Given up on this side.
        try:
            if call.take(frame):
                self._settle(key)
        except SlowReader as slow:
            self.abandon(key)
            call.fail(slow)

    def _push(self, push: Push, size: int) -> None:
        # A gap stands where the pushes are missing: before the first that fits again.
        if self._missed and self._pushes.fits(size):
            self._pushes.put(Gap(self._missed), 0)
            self._missed = 0
        if self._missed or not self._pushes.put(push, size):
            self._missed += 1

    def _on_end(self, error: InnkeeperError | None) -> None:
        self.end = self._told or error or _over()
        mine = isinstance(self.end, ClientClosed) and not self.clean
        for key in list(self._in_flight):
            call = self._settle(key)
            if call is not None:
                call.fail(_closed_under(self.end) if mine else _lost(self.end))
        self._pushes.end(None if self.clean or mine else self.end)


def _ping_key(nonce: int) -> str:
    return f"ping-{nonce}"


def _over() -> InnkeeperError:
    return ClientClosed("the session has ended", code=grpc.StatusCode.CANCELLED)


def _closed_under(end: InnkeeperError) -> InnkeeperError:
    error = ClientClosed("the session was closed while the call was in flight", code=end.code)
    error.__cause__ = end
    return error


def _lost(end: InnkeeperError) -> InnkeeperError:
    error = OutcomeUnknown(f"the session ended while the call was in flight: {end}", code=end.code)
    error.__cause__ = end
    return error
