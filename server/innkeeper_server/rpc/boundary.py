"""The one wrapper round every handler, made when the method is registered.

Owns what must hold for each call, whatever it does: the request is parsed here, so that a broken
one is INVALID_ARGUMENT; what is known of the caller is copied, so that gRPC's context, which is
deadly to touch after the call, never leaves this file; every exception becomes a status here and
nowhere else; every running call is known, so that a stop can wait for it; and the last calls of a
host that stops are kept until its port is closed.

A CancelledError that the client did not cause would leave it without any status. It becomes one.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from innkeeper_server.errors import (
    DeadlineExceeded,
    Draining,
    InnkeeperError,
    InvalidRequest,
    SlowReader,
    TooLarge,
    WorkCancelled,
)
from innkeeper_server.faults import host_failed
from innkeeper_server.mailbox import Call
from innkeeper_server.rpc.status import to_status, trailers
from innkeeper_server.signals import Signal

log = logging.getLogger("innkeeper.rpc")

REQUEST_ID_KEY = "x-request-id"
TENANT = "default"  # until there is authentication, everybody is of one tenant
PRINCIPAL = "local"
_WITHHELD = frozenset({"authorization", "cookie", "user-agent"})
_PROCESS = secrets.token_hex(4)
_NUMBERS = itertools.count(1)
MAX_METADATA_VALUE = 256
MAX_HELD = 10_000  # calls; more are refused at once
TURN = 0.01  # seconds

Request = TypeVar("Request", bound=Message)
Reply = Message | bytes  # bytes: a message that is serialised already
Write = Callable[[Reply], Awaitable[None]]
Read = Callable[[], Awaitable[Any]]


class Boundary:
    """Makes handlers, and knows the calls that run.

    `default_deadline`: seconds for unary calls that name none. `reader_timeout`: seconds for which
    a stream's client may leave a message untaken.
    """

    def __init__(
        self,
        *,
        max_message_bytes: int,
        default_deadline: float | None = None,
        reader_timeout: float = 5.0,
    ) -> None:
        self.max_message_bytes = max_message_bytes
        self.default_deadline = default_deadline
        self.reader_timeout = reader_timeout
        self.running: set[_Rpc] = set()
        self.begun = 0  # calls so far
        self._fewer = Signal()  # a call ended
        self.held = 0  # calls that `hold` has kept so far
        self._closed: asyncio.Event | None = None  # while there is one, calls that begin are held
        self.finished: dict[tuple[str, str], int] = {}  # calls by method and code name

    # -- handlers of the four shapes that there are ---------------------------------------------

    def unary(
        self,
        method: str,
        request_type: type[Request],
        serve: Callable[[Request, Call], Awaitable[Message]],
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """A handler for one request and one reply."""

        async def handle(raw: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
            rpc = _Rpc(self, method, context, self.default_deadline)
            try:
                if self._closed is not None:
                    await self._too_late(rpc)
                reply = await serve(self._parsed(request_type, raw), rpc.call)
                raw = self._serialised(reply)
            except BaseException as fault:
                await rpc.failed(fault)
                raise
            rpc.ended("OK")
            return raw

        return grpc.unary_unary_rpc_method_handler(handle)

    def streaming(
        self,
        method: str,
        request_type: type[Request],
        serve: Callable[[Request, Call, Write], Awaitable[None]],
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """A handler for one request and many replies. `serve` writes; it must have one writer."""

        async def handle(raw: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            rpc = _Rpc(self, method, context)
            try:
                if self._closed is not None:
                    await self._too_late(rpc)
                await serve(self._parsed(request_type, raw), rpc.call, self._writer(context))
            except BaseException as fault:
                await rpc.failed(fault)
                raise
            rpc.ended("OK")

        return grpc.unary_stream_rpc_method_handler(handle)

    def conversation(
        self,
        method: str,
        request_type: type[Request],
        serve: Callable[[Read, Write, Call], Awaitable[None]],
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """A handler for many requests and many replies.

        `serve` gets a `read` that returns a request, or None at the end of the client's stream,
        which may be a clean end, a lost connection or a cancellation: it cannot be told. There
        must be one reader and one writer, and none may outlive `serve`. A write may be cancelled
        only if the client is gone.
        """

        async def handle(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            async def read() -> Request | None:
                raw = await context.read()
                if raw is grpc.aio.EOF:
                    return None
                return self._parsed(request_type, raw)

            rpc = _Rpc(self, method, context)
            try:
                if self._closed is not None:
                    await self._too_late(rpc)
                await serve(read, self._writer(context), rpc.call)
            except BaseException as fault:
                await rpc.failed(fault)
                raise
            rpc.ended("OK")

        return grpc.stream_stream_rpc_method_handler(handle)

    # -- messages -------------------------------------------------------------------------------

    def _parsed(self, request_type: type[Request], raw: bytes) -> Request:
        try:
            return request_type.FromString(raw)
        except DecodeError:
            name = request_type.DESCRIPTOR.full_name
            raise InvalidRequest.of("request", f"is no valid {name}") from None

    def _serialised(self, reply: Reply) -> bytes:
        raw = reply if isinstance(reply, bytes) else reply.SerializeToString()
        if len(raw) > self.max_message_bytes:
            raise TooLarge(
                f"the reply has {len(raw)} bytes; at most {self.max_message_bytes}",
                metadata={"limit": str(self.max_message_bytes)},
            )
        return raw

    def _writer(self, context: grpc.aio.ServicerContext[Any, Any]) -> Write:
        has_headers = False

        async def write(reply: Reply) -> None:
            nonlocal has_headers
            raw = self._serialised(reply)
            try:
                if not has_headers:
                    # By themselves: gRPC counts them as sent once a whole first write has ended,
                    # and after one that timed out could send no status either.
                    await context.send_initial_metadata(())
                    has_headers = True
                async with asyncio.timeout(self.reader_timeout):
                    await context.write(raw)
            except TimeoutError:
                raise SlowReader(
                    f"the client took nothing for {self.reader_timeout:g} s and was let go"
                ) from None
            except grpc.aio.BaseError:
                raise WorkCancelled("the client is gone") from None

        return write

    def hold(self) -> None:
        """Keep whatever begins from now on waiting, until `dismiss`.

        What gRPC has taken in but not handed over when it stops gets a bare CANCELLED from it, and
        a caller that is refused at once is back before the port can be closed. One that is held
        has no other call under way; and what it is told after the port was closed comes after the
        word of that, on the same connection, so that its next call finds no server, not half a one.
        """
        self._closed = self._closed or asyncio.Event()

    def dismiss(self) -> None:
        """The port is closed: refuse whatever was held."""
        if self._closed is not None:
            self._closed.set()

    async def _too_late(self, rpc: _Rpc) -> NoReturn:
        assert self._closed is not None
        self.held += 1
        if self.held <= MAX_HELD:
            self.running.discard(rpc)  # nothing of the host's is done for it
            self._fewer.notify()
            await self._closed.wait()
        raise Draining("the host has stopped")

    async def quiet(self, turns: int, held_turns: int, timeout: float) -> None:
        """Return once no call has come for `turns` turns of the loop, or `held_turns` if some are
        held: their clients may be slow to call again. After `timeout` seconds in any case.

        A turn takes TURN seconds, or longer: by the clock alone, a process that was given no time
        to run would take that for quiet.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        seen, quiet = self.begun, 0
        while quiet < (held_turns if self.held else turns) and loop.time() < deadline:
            await asyncio.sleep(TURN)
            quiet = quiet + 1 if self.begun == seen else 0
            seen = self.begun

    async def finish(self, timeout: float) -> bool:
        """Wait for running calls, at most `timeout` seconds; tell whether all have ended."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while self.running and loop.time() < deadline:
            await self._fewer.wait(deadline - loop.time())
        return not self.running

    def ended(self, rpc: _Rpc, code: str) -> None:
        """A call has done its work; its status may yet wait for the client to take it."""
        self.running.discard(rpc)
        self._fewer.notify()
        name = rpc.method, code
        self.finished[name] = self.finished.get(name, 0) + 1


class _Rpc:
    """One RPC from its first step to its status."""

    __slots__ = ("_boundary", "_context", "call", "method")

    def __init__(
        self,
        boundary: Boundary,
        method: str,
        context: grpc.aio.ServicerContext[Any, Any],
        default_deadline: float | None = None,
    ) -> None:
        self._boundary = boundary
        self._context = context
        self.method = method
        self.call = _caller(context, default_deadline)
        boundary.begun += 1
        boundary.running.add(self)

    def ended(self, code: str) -> None:
        """Its work is done, with the status of that name."""
        self._boundary.ended(self, code)

    async def failed(self, fault: BaseException) -> None:
        """Give the call its status, by raising what gRPC wants; or return, and `fault` is raised
        as it is: nobody is there to be told."""
        if isinstance(fault, asyncio.CancelledError) and _is_cancelled():
            self.ended("CANCELLED")
            return  # the client left, or its deadline passed: nobody is there to be told
        if isinstance(fault, GeneratorExit):
            self.ended("CANCELLED")
            return
        error = _meaning(self.method, fault)
        status = to_status(error)
        self.ended(error.status_code.name)
        try:
            await self._context.abort(
                error.status_code, status.message, trailing_metadata=trailers(error, status)
            )
        except grpc.aio.AbortError:
            raise
        except grpc.aio.BaseError:  # the client has gone meanwhile; gRPC ends such calls quietly
            raise asyncio.CancelledError from None


def _is_cancelled() -> bool:
    """Whether gRPC cancelled this call, and not somebody's own CancelledError came by."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _meaning(method: str, fault: BaseException) -> InnkeeperError:
    if isinstance(fault, InnkeeperError):
        return fault
    if isinstance(fault, asyncio.CancelledError):
        return WorkCancelled("the work was cancelled inside the host")
    if isinstance(fault, TimeoutError):
        return DeadlineExceeded("the call took too long")
    return host_failed(method, fault)


def _caller(context: grpc.aio.ServicerContext[Any, Any], default: float | None) -> Call:
    """Everything there is to know of the caller, in values of our own. Of its metadata agents may
    see what is text and no credential."""
    metadata: dict[str, str] = {}
    for key, value in context.invocation_metadata() or ():
        if key not in _WITHHELD and isinstance(value, str):
            metadata[key] = value
    left = context.time_remaining()
    left = default if left is None else left
    deadline = None if left is None else asyncio.get_running_loop().time() + left
    request_id = metadata.get(REQUEST_ID_KEY, "")[:MAX_METADATA_VALUE]
    if not request_id:  # unique, and cheaper than a random one
        request_id = f"{_PROCESS}-r{next(_NUMBERS)}"
    return Call(PRINCIPAL, TENANT, request_id, deadline, metadata)
