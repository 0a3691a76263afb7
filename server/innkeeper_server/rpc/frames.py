"""What a session has to say, on its way to a client that may be slow.

Owns the order, the bounds and the batching: frames that are ready together travel in one message,
whoever produces much waits for room, and a client that takes nothing for too long is let go.
"""

from __future__ import annotations

from collections import deque

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper_server.errors import SlowReader, TooLarge
from innkeeper_server.rpc.boundary import Write
from innkeeper_server.signals import Signal

# What one message carries at most; a larger frame goes alone.
MAX_FRAMES = 64
MAX_BYTES = 1 << 20

# Where producers begin to wait, and where the client is let go in any case.
SOFT_FRAMES = 1_024
SOFT_BYTES = 4 << 20
HARD_FRAMES = 8_192
HARD_BYTES = 32 << 20


class Outgoing:
    """The queue of a session's frames, and the one loop that writes them.

    `patience`: seconds for which a producer waits while no frame leaves.
    """

    def __init__(self, patience: float, max_message_bytes: int) -> None:
        self._patience = patience
        self._max_bytes = max_message_bytes
        self._frames: deque[bytes] = deque()  # each a whole message, serialised
        self._bytes = 0
        self._taken = 0
        self._ended = False
        self._last: BaseException | None = None  # what the writer ends with
        self._lost: SlowReader | None = None
        self._ready = Signal()  # for the writer
        self._drained = Signal()  # for producers

    @property
    def is_full(self) -> bool:
        """Producers have to wait."""
        return len(self._frames) >= SOFT_FRAMES or self._bytes >= SOFT_BYTES

    def put(self, frame: agent_pb.ServerFrame) -> None:
        """Add a frame; never waits. Raises TooLarge for one that no message can carry."""
        raw = agent_pb.SessionResponse(frames=(frame,)).SerializeToString()
        if len(raw) > self._max_bytes:
            raise TooLarge(
                f"the answer has {len(raw)} bytes; at most {self._max_bytes}",
                metadata={"limit": str(self._max_bytes)},
            )
        if self._lost is not None or self._ended:
            return
        self._frames.append(raw)
        self._bytes += len(raw)
        if len(self._frames) > HARD_FRAMES or self._bytes > HARD_BYTES:
            self._let_go()
        self._ready.notify()

    async def room(self) -> None:
        """Return when there is room, or nobody to wait for any more."""
        while self.is_full and self._lost is None:
            taken = self._taken
            await self._drained.wait(self._patience)
            if self._taken == taken:
                self._let_go()

    def end(self, error: BaseException | None = None) -> None:
        """Nothing follows: the writer ends once it has written what is here, with `error`."""
        self._ended = True
        self._last = error
        self._ready.notify()

    async def write_all(self, write: Write) -> None:
        """Write until the end. Raises what `end` said, or SlowReader if the client was let go."""
        while True:
            if self._lost is not None:
                raise self._lost
            if self._frames:
                await write(self._take())
            elif self._last is not None:
                raise self._last
            elif self._ended:
                return
            else:
                await self._ready.next()

    def _take(self) -> bytes:
        """The next message. Serialised messages in a row are one message with all their frames."""
        taken: list[bytes] = []
        total = 0
        while self._frames and len(taken) < MAX_FRAMES:
            raw = self._frames[0]
            if taken and total + len(raw) > MAX_BYTES:
                break
            taken.append(self._frames.popleft())
            total += len(raw)
        self._bytes -= total
        self._taken += len(taken)
        self._drained.notify()
        return b"".join(taken)

    def _let_go(self) -> None:
        self._lost = SlowReader("the client did not keep up with the session and was let go")
        self._frames.clear()
        self._bytes = 0
        self._drained.notify()
        self._ready.notify()
