"""How one call is made: its deadline, its request id, and whether it may be made again.

Owns the retry policy; gRPC's own is switched off, so there is one. A call is made again

* when the host says that the work never began and that a retry helps (DRAINING, CAPACITY_EXHAUSTED,
  MAILBOX_FULL and their like), or when no connection came about;
* for reads, and where the caller said `retry_unknown=True`, also when the outcome is unknown, or
  when the host says that nothing of the work was kept;
* never otherwise, never after the first message of a stream, never past the deadline, and never
  when the host's push-back says no. A push-back or RetryInfo is the least pause.
"""

from __future__ import annotations

import asyncio
import math
import random
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import grpc
from grpc import aio

from .errors import (
    ClientClosed,
    DeadlineExceeded,
    InnkeeperError,
    OutcomeUnknown,
    Unreachable,
)
from .statuses import from_rpc

Q = TypeVar("Q", contravariant=True)
A = TypeVar("A", covariant=True)
T = TypeVar("T")

REQUEST_ID_KEY = "x-request-id"
Metadata = tuple[tuple[str, str], ...]


class Unary(Protocol[Q, A]):
    """A stub's unary method."""

    def __call__(
        self, request: Q, *, timeout: float | None, metadata: Metadata
    ) -> Awaitable[A]: ...


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in the event loop's time; infinity means none."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """So many seconds from now. ValueError unless above 0."""
        if not seconds > 0:
            raise ValueError(f"a timeout must be above 0 seconds, not {seconds}")
        return cls(asyncio.get_running_loop().time() + seconds)

    def left(self) -> float | None:
        """Seconds left, at least 0; None without a deadline. What gRPC takes as a timeout."""
        if math.isinf(self.at):
            return None
        return max(0.0, self.at - asyncio.get_running_loop().time())


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how patiently a call is made again.

    At most `attempts` calls in all. Pauses begin at `first` seconds, double up to `most`, and are
    cut by up to half at random; what the host asked for is added in front. `sleep` and `random`
    are there for tests.
    """

    attempts: int = 4
    first: float = 0.1
    most: float = 5.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random

    def pause(self, made: int, asked: float | None) -> float:
        """Seconds to wait after `made` calls, given what the host asked for."""
        backoff = min(self.most, self.first * 2.0 ** (made - 1))
        return (asked or 0.0) + backoff * (0.5 + self.random() / 2)


def may_repeat(error: InnkeeperError, *, harmless: bool) -> bool:
    """True if a call that ended so may be made again.

    `harmless`: doing the work twice would do no harm.
    """
    if error.no_retry:
        return False
    if isinstance(error, Unreachable):
        return True
    if isinstance(error, OutcomeUnknown):
        return harmless
    return error.retry_after is not None and (error.never_began or harmless)


@contextmanager
def typed_errors() -> Iterator[None]:
    """Raise what gRPC raises as our own, `from` the original."""
    try:
        yield
    except aio.AioRpcError as error:
        raise from_rpc(error) from error
    except aio.UsageError as error:
        raise _closed() from error  # The channel is closed.
    except asyncio.CancelledError:
        # Closing a channel cancels the calls on it locally, which looks like a cancelled task.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise _closed() from None


def _closed() -> ClientClosed:
    return ClientClosed("the client is closed", code=grpc.StatusCode.CANCELLED)


class Caller:
    """Makes calls with one client's settings."""

    def __init__(
        self, *, timeout: float, stream_timeout: float, retry: Retry, metadata: Mapping[str, str]
    ) -> None:
        self.timeout = timeout
        self.stream_timeout = stream_timeout
        self.retry = retry
        self._metadata: Metadata = tuple(metadata.items())

    def metadata(self, extra: Mapping[str, str] | None = None) -> Metadata:
        """What one call sends along: the client's own, the call's, and a fresh request id."""
        own = () if extra is None else tuple(extra.items())
        return (*self._metadata, *own, (REQUEST_ID_KEY, uuid.uuid4().hex))

    def deadline(self, timeout: float | None, *, stream: bool = False) -> Deadline:
        """A call's deadline; None means the client's default, infinity none."""
        default = self.stream_timeout if stream else self.timeout
        return Deadline.after(default if timeout is None else timeout)

    async def unary(
        self,
        method: Unary[Q, A],
        request: Q,
        *,
        timeout: float | None = None,
        harmless: bool = False,
        metadata: Mapping[str, str] | None = None,
    ) -> A:
        """Make a unary call, again if that is safe. Raises InnkeeperError."""
        sent = self.metadata(metadata)
        deadline = self.deadline(timeout)

        async def attempt() -> A:
            with typed_errors():
                return await method(request, timeout=deadline.left(), metadata=sent)

        return await self.repeat(attempt, deadline, harmless=harmless)

    async def repeat(
        self, attempt: Callable[[], Awaitable[T]], deadline: Deadline, *, harmless: bool
    ) -> T:
        """Run an attempt until it succeeds, must not be repeated, or could not end in time."""
        made = 0
        while True:
            try:
                return await attempt()
            except InnkeeperError as error:
                made += 1
                if made >= self.retry.attempts or not may_repeat(error, harmless=harmless):
                    raise
                pause = self.retry.pause(made, error.retry_after)
                left = deadline.left()
                if left is not None and pause >= left:
                    raise
            await self.retry.sleep(pause)


def out_of_time(what: str) -> DeadlineExceeded:
    """The error for a deadline that this side keeps."""
    return DeadlineExceeded(f"{what} did not end in time", code=grpc.StatusCode.DEADLINE_EXCEEDED)
