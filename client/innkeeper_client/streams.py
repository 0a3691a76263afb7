"""Reading a server stream that is a read and nothing more.

Owns `messages`; a turn's stream is reply.py's.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Protocol, TypeVar, cast

from grpc import aio

from .calls import Caller, Metadata, typed_errors

Q = TypeVar("Q")
A = TypeVar("A")


class Streaming(Protocol[Q, A]):
    """A stub's server-streaming method."""

    def __call__(
        self, request: Q, *, timeout: float | None, metadata: Metadata
    ) -> aio.UnaryStreamCall[Q, A]: ...


async def messages(
    caller: Caller, method: Streaming[Q, A], request: Q, *, timeout: float | None = None
) -> AsyncIterator[A]:
    """The messages of a stream, to its end; made again only before the first message.

    `timeout` is in seconds; None means no deadline. Raises InnkeeperError.
    """
    deadline = caller.deadline(math.inf if timeout is None else timeout)
    metadata = caller.metadata()

    async def first() -> tuple[aio.UnaryStreamCall[Q, A], A | None]:
        with typed_errors():
            call = method(request, timeout=deadline.left(), metadata=metadata)
        return call, await _read(call)

    call, message = await caller.repeat(first, deadline, harmless=True)
    try:
        while message is not None:
            yield message
            message = await _read(call)
    finally:
        if not call.done():
            call.cancel()


async def _read(call: aio.UnaryStreamCall[Q, A]) -> A | None:
    with typed_errors():
        message = await call.read()
    return None if message is aio.EOF else cast(A, message)
