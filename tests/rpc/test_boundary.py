"""The wrapper round every handler: whatever a handler ends with, the client gets a status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from rpc_kit import FUSE, everything, refusal, soon, until

from innkeeper_server.mailbox import Call
from innkeeper_server.rpc import boundary as boundary_module
from innkeeper_server.rpc.boundary import Boundary, Read, Write

Deed = Callable[[], Awaitable[None]]
SHAPES = ("unary", "streaming", "conversation")


@asynccontextmanager
async def serving(deed: Deed) -> AsyncIterator[tuple[grpc.aio.Channel, Boundary, list[Call]]]:
    """A server with one method of each shape; each does the deed."""
    boundary, seen = Boundary(max_message_bytes=1000, default_deadline=60.0), list[Call]()

    async def unary(request: Duration, call: Call) -> Duration:
        seen.append(call)
        await deed()
        return request

    async def streaming(request: Duration, call: Call, write: Write) -> None:
        seen.append(call)
        await write(request)
        await deed()

    async def conversation(read: Read, write: Write, call: Call) -> None:
        seen.append(call)
        await read()
        await deed()

    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    handlers = {
        "unary": boundary.unary("t/unary", Duration, unary),
        "streaming": boundary.streaming("t/streaming", Duration, streaming),
        "conversation": boundary.conversation("t/conversation", Duration, conversation),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel, boundary, seen
    finally:
        await server.stop(0)


async def begin(channel: grpc.aio.Channel, shape: str, **options: Any) -> Any:
    """One call of that shape."""
    if shape == "unary":
        return channel.unary_unary("/t/unary")(b"", **options)
    if shape == "streaming":
        return channel.unary_stream("/t/streaming")(b"", **options)
    talk = channel.stream_stream("/t/conversation")(**options)
    await talk.write(b"")
    return talk


async def finished(channel: grpc.aio.Channel, shape: str, **options: Any) -> Any:
    """One call of that shape, to its end."""
    call = await begin(channel, shape, **options)
    return await (call if shape == "unary" else everything(call))


async def _foreign() -> None:
    """Somebody else's future was cancelled, which has nothing to do with this call."""
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def _secret() -> None:
    raise KeyError("the password is hunter2")


async def _late() -> None:
    raise TimeoutError("hunter2")


async def _nothing() -> None:
    pass


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("deed", "code", "reason"),
    [
        (_foreign, "CANCELLED", "CANCELLED"),
        (_secret, "INTERNAL", "INTERNAL"),
        (_late, "DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED"),
    ],
)
async def test_every_end_has_a_status_that_tells_no_secret(
    shape: str, deed: Deed, code: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(deed) as (channel, boundary, _):
        seen = await refusal(finished(channel, shape))
        assert (seen.code, seen.reason) == (code, reason)
        assert "hunter2" not in repr(seen)
        assert boundary.finished == {(f"t/{shape}", code): 1}
        if code == "INTERNAL":
            assert seen.metadata["error_id"] in caplog.text


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_client_that_leaves_is_no_fault(
    shape: str, caplog: pytest.LogCaptureFixture
) -> None:
    here, ended = asyncio.Event(), asyncio.Event()

    async def deed() -> None:
        here.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with caplog.at_level(logging.INFO):
        async with serving(deed) as (channel, boundary, _):
            leaving = await soon(begin(channel, shape))
            await soon(here.wait())
            leaving.cancel()
            await soon(ended.wait())
            assert await boundary.finish(FUSE)
            assert boundary.finished == {(f"t/{shape}", "CANCELLED"): 1}
    assert caplog.records == []


async def test_a_failure_after_the_client_left_is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    """A handler that turns its cancellation into an error of its own has nobody to tell."""
    here = asyncio.Event()

    async def deed() -> None:
        here.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise TimeoutError from None

    with caplog.at_level(logging.INFO):
        async with serving(deed) as (channel, boundary, _):
            leaving = await begin(channel, "unary")
            await soon(here.wait())
            leaving.cancel()
            assert await boundary.finish(FUSE)
    assert caplog.records == []


async def test_what_is_known_of_the_caller_is_copied() -> None:
    async with serving(_nothing) as (channel, _, seen):
        metadata = (("x-request-id", "r" * 300), ("x-mine", "yes"), ("authorization", "secret"))
        now = asyncio.get_running_loop().time()
        await soon(finished(channel, "unary", metadata=metadata, timeout=FUSE))
        await soon(finished(channel, "unary"))
        await soon(finished(channel, "streaming"))
        named, unnamed, stream = seen
        assert named.request_id == "r" * 256
        assert named.metadata["x-mine"] == "yes"
        assert "authorization" not in named.metadata
        assert named.deadline is not None
        assert now < named.deadline <= now + 2 * FUSE
        assert unnamed.deadline is not None, "unary calls have a default"
        assert unnamed.request_id not in ("", named.request_id)
        assert stream.deadline is None, "streams last as long as they want"


@pytest.mark.parametrize("held", [False, True])
async def test_it_is_quiet_once_nobody_has_come_for_a_while(
    held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A while is so many turns of the loop, however long these take; more if some are held."""
    monkeypatch.setattr(boundary_module, "TURN", 0.0)
    boundary = Boundary(max_message_bytes=1000)
    boundary.held = int(held)
    turns = 20 if held else 4
    waiting = asyncio.create_task(boundary.quiet(4, 20, FUSE))
    for _ in range(5):
        boundary.begun += 1
        for _ in range(turns):
            await asyncio.sleep(0)
            assert not waiting.done()
    await soon(waiting)
    await soon(boundary.quiet(10**9, 10**9, 0.0))  # and nobody waits for ever


@pytest.mark.parametrize("shape", SHAPES)
async def test_who_comes_too_late_is_held_and_then_told_so(shape: str) -> None:
    """Nothing of the call is done, and nobody waits for it to be."""
    async with serving(_nothing) as (channel, boundary, seen):
        boundary.hold()
        late = asyncio.ensure_future(finished(channel, shape))
        await until(lambda: boundary.held == 1)
        assert await boundary.finish(0.0)
        assert not late.done()
        boundary.dismiss()
        told = await refusal(late)
        assert (told.code, told.reason) == ("UNAVAILABLE", "DRAINING")
        assert told.retry_after is not None
        assert seen == []


async def test_only_so_many_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundary_module, "MAX_HELD", 1)
    async with serving(_nothing) as (channel, boundary, _):
        boundary.hold()
        first = asyncio.ensure_future(finished(channel, "unary"))
        await until(lambda: boundary.held == 1)
        assert (await refusal(finished(channel, "unary"))).reason == "DRAINING"
        assert not first.done()
        boundary.dismiss()
        assert (await refusal(first)).reason == "DRAINING"


async def test_a_caller_that_is_held_may_leave() -> None:
    async with serving(_nothing) as (channel, boundary, _):
        boundary.hold()
        late = await begin(channel, "unary")
        await until(lambda: boundary.held == 1)
        late.cancel()
        await until(lambda: boundary.finished == {("t/unary", "CANCELLED"): 1})
        boundary.dismiss()
