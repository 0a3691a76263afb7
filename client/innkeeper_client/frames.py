"""The frames of one session, both ways over one stream.

Owns the stream: its opening, one reader task and one writer task, and its end. What frames mean is
conversation.py's business.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from grpc import aio

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import agent_service_pb2_grpc as agent_rpc

from .calls import Deadline, Metadata, out_of_time, typed_errors
from .errors import InnkeeperError, OutcomeUnknown
from .statuses import from_status

Call = aio.StreamStreamCall[agent_pb.SessionRequest, agent_pb.SessionResponse]

# Frames that are ready together travel together, up to this many or this many bytes.
MAX_FRAMES = 64
MAX_BYTES = 1 << 20
# How long a stream that is over may take to be gone, in seconds.
FAREWELL = 5.0


async def open_stream(
    stub: agent_rpc.AgentServiceAsyncStub,
    frame: agent_pb.OpenFrame,
    metadata: Metadata,
    deadline: Deadline,
) -> tuple[Call, agent_pb.OpenedFrame, Sequence[agent_pb.ServerFrame]]:
    """Open a session. Returns the stream, the host's answer, and frames that came with it.

    Nothing but `open` was sent when this fails, so it may be tried again.
    """
    with typed_errors():
        call = stub.Session(metadata=metadata)
    try:
        first, *rest = await _first_frames(call, frame, deadline)
        if first.WhichOneof("frame") == "error":
            raise from_status(first.error)
        if first.WhichOneof("frame") != "opened":
            raise OutcomeUnknown("the host did not answer the opening of a session")
    except BaseException:
        call.cancel()
        raise
    return call, first.opened, rest


async def _first_frames(
    call: Call, frame: agent_pb.OpenFrame, deadline: Deadline
) -> Sequence[agent_pb.ServerFrame]:
    request = agent_pb.SessionRequest(frames=[agent_pb.ClientFrame(open=frame)])
    try:
        async with asyncio.timeout(deadline.left()):
            with typed_errors():
                await call.write(request)
                message = await call.read()
    except TimeoutError:
        raise out_of_time("opening the session") from None
    if not isinstance(message, agent_pb.SessionResponse) or not message.frames:
        raise OutcomeUnknown("the session ended before it was open")
    return message.frames


class FrameStream:
    """Sends and receives frames until the stream ends.

    `on_frame` is called for every frame in order, `on_end` once, with the error that the stream
    ended with, or None. Neither may block. `send` never waits: whoever sends bounds how much is
    outstanding.
    """

    def __init__(
        self,
        call: Call,
        on_frame: Callable[[agent_pb.ServerFrame], None],
        on_end: Callable[[InnkeeperError | None], None],
    ) -> None:
        self._call = call
        self._on_frame = on_frame
        self._on_end = on_end
        self._outbox: deque[agent_pb.ClientFrame] = deque()
        self._ready = asyncio.Event()
        self._reader = asyncio.create_task(self._read(), name="session-reader")
        self._writer = asyncio.create_task(self._write(), name="session-writer")

    def send(self, frame: agent_pb.ClientFrame) -> None:
        """Put a frame in line."""
        self._outbox.append(frame)
        self._ready.set()

    async def ended(self, timeout: float | None) -> bool:
        """Wait for the host to end the stream; False if it did not in so many seconds."""
        done, _ = await asyncio.wait([self._reader], timeout=timeout)
        return bool(done)

    def cut(self) -> None:
        """End the stream now, from this side."""
        self._writer.cancel()
        self._call.cancel()

    async def gone(self) -> None:
        """Wait until both tasks have ended, after the stream did."""
        self._writer.cancel()
        await asyncio.wait([self._reader, self._writer], timeout=FAREWELL)

    async def _read(self) -> None:
        error: InnkeeperError | None = None
        try:
            with typed_errors():
                while isinstance(message := await self._call.read(), agent_pb.SessionResponse):
                    for frame in message.frames:
                        self._on_frame(frame)
        except InnkeeperError as broken:
            error = broken
        finally:
            self._call.cancel()
            self._writer.cancel()
            self._on_end(error)

    async def _write(self) -> None:
        while True:
            await self._ready.wait()
            try:
                await self._call.write(agent_pb.SessionRequest(frames=self._take()))
            except (aio.AioRpcError, asyncio.InvalidStateError):
                return  # The stream is over; the reader learns why.

    def _take(self) -> list[agent_pb.ClientFrame]:
        frames: list[agent_pb.ClientFrame] = []
        size = 0
        while self._outbox and len(frames) < MAX_FRAMES:
            size += self._outbox[0].ByteSize()
            if frames and size > MAX_BYTES:
                break
            frames.append(self._outbox.popleft())
        if not self._outbox:
            self._ready.clear()
        return frames
