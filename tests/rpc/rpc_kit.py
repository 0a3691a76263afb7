"""A host behind real sockets, agents that stop where a test wants them to, and generated stubs.

Owns the world of the RPC tests. `Gate` holds whoever comes to it until the test lets go; every wait
of a test has the same generous fuse, which only a hang burns.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import pytest
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct, Value
from google.rpc import error_details_pb2, status_pb2

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import agent_service_pb2_grpc as agent_rpc
from innkeeper.v1 import common_pb2 as common_pb
from innkeeper_server.agent import Agent, action
from innkeeper_server.content import Blob
from innkeeper_server.errors import AgentError
from innkeeper_server.host import Host
from innkeeper_server.identity import AgentKey
from innkeeper_server.limits import Limits
from innkeeper_server.registry import Registry
from innkeeper_server.rpc.agents import SERVICE, AgentService
from innkeeper_server.rpc.boundary import Boundary
from innkeeper_server.rpc.ending import Ending
from innkeeper_server.store import MemoryStore

T = TypeVar("T")

FUSE = 30.0  # seconds
MAX_MESSAGE = 4 << 20


async def soon(work: Awaitable[T]) -> T:
    """Wait, but not for ever."""
    async with asyncio.timeout(FUSE):
        return await work


async def until(is_so: Callable[[], bool]) -> None:
    """Let the loop go on until something is so."""
    async with asyncio.timeout(FUSE):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0)


class Gate:
    """A point that is passed freely, until a test shuts it."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._here = asyncio.Event()

    def shut(self) -> Gate:
        self._open.clear()
        self._here.clear()
        return self

    def open(self) -> None:
        self._open.set()

    async def reached(self) -> None:
        """Wait until somebody is held here."""
        await soon(self._here.wait())

    async def pass_through(self) -> None:
        self._here.set()
        await self._open.wait()


@dataclass
class Count:
    n: int = 0


class World:
    """One server, its host, and a client."""

    def __init__(self, **limits: Any) -> None:
        self.gates: dict[str, Gate] = {}
        self.ended: dict[str, asyncio.Event] = {}
        registry = Registry()
        registry.register("counter", _counter(self))
        bounds = Limits(**{"capacity": 8, "stop_timeout": 2.0, **limits})
        self.host = Host(registry, MemoryStore(), bounds)
        self.boundary = Boundary(
            max_message_bytes=MAX_MESSAGE, reader_timeout=self.host.limits.reader_timeout
        )
        self.ending = Ending()
        self.service = AgentService(self.host, self.boundary, self.ending)
        self.channel: grpc.aio.Channel
        self.address: str
        self.stub: agent_rpc.AgentServiceAsyncStub

    def gate(self, name: str) -> Gate:
        """The gate of that name, made when first asked for."""
        return self.gates.setdefault(name, Gate())

    def end(self, name: str) -> asyncio.Event:
        """Set once the step of that name was left."""
        return self.ended.setdefault(name, asyncio.Event())

    async def count(self, id: str = "a") -> int:
        """What the store says of a counter."""
        record = await self.host.store.read(key(id))
        if record is None or record.state is None:
            return 0
        return int(self.host.registry.resolve("counter")._codec.load(record.state).n)

    async def no_calls(self) -> None:
        """Wait until no call runs on the server."""
        assert await self.boundary.finish(FUSE), "a call goes on for ever"

    def queued(self, id: str = "a") -> int:
        """How many wait in an agent's mailbox."""
        runtime = self.host.driver.find(key(id))
        return len(runtime.mailbox) if runtime is not None else 0


@asynccontextmanager
async def serving(**limits: Any) -> AsyncIterator[World]:
    """A world with an open channel; nothing of it remains afterwards."""
    it = World(**limits)
    await it.host.start()
    server = grpc.aio.server(
        options=(("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MAX_MESSAGE))
    )
    methods = grpc.method_handlers_generic_handler(SERVICE, it.service.handlers())
    server.add_generic_rpc_handlers((methods,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        it.address = f"127.0.0.1:{port}"
        async with grpc.aio.insecure_channel(it.address) as it.channel:
            it.stub = agent_rpc.AgentServiceStub(it.channel)
            yield it
    finally:
        for gate in it.gates.values():
            gate.open()
        await it.host.close()
        await server.stop(0)
        await it.no_calls()


def _counter(world: World) -> type[Agent[Count]]:
    class Counter(Agent[Count]):
        async def _step(self, name: str) -> None:
            try:
                await world.gate(name).pass_through()
            finally:
                world.end(name).set()

        @action
        async def add(self, n: int = 1) -> int:
            self.state.n += n
            return self.state.n

        @action
        async def hold(self, name: str = "hold") -> str:
            self.state.n += 1
            await self._step(name)
            return name

        @action
        async def echo(self, value: Any) -> Any:
            return value

        @action
        async def data(self) -> Blob:
            return Blob(b"\x00\x01", "image/png")

        @action
        async def big(self, size: int) -> str:
            return "x" * size

        @action
        async def fail(self, how: str) -> None:
            self.state.n += 1
            raise FAULTS[how]

        async def chat(self, message: str) -> AsyncIterator[Any]:
            """Says each word; some are orders."""
            self.state.n += 1
            for word in message.split():
                if word == "fail":
                    raise FAULTS["secret"]
                if word == "flood":
                    for _ in range(40):
                        self.turn.emit("x" * 300_000)
                elif word == "pour":
                    for _ in range(100):
                        yield "x" * 200_000
                elif word == "custom":
                    yield {"half": 0.5, "whole": 3, "list": [None, True, "text"]}
                elif word.startswith("at-"):
                    await self._step(word)
                else:
                    yield word

        async def followup(self, message: str) -> None:
            self.state.n += 1
            if message == "refuse":
                raise FAULTS["on purpose"]
            await self._step(message)

        async def on_message(self, message: str) -> str:
            self.state.n += 1
            await self._step(message)
            return f"heard {message}"

    return Counter


DETAILS = {str(n): "y" * 290 for n in range(9)}  # as much as fits
FAULTS: Mapping[str, BaseException] = {
    "secret": KeyError("the password is hunter2"),
    "cancelled": asyncio.CancelledError(),
    "on purpose": AgentError("NOT_FOUND", "no such thing", {"thing": "x"}),
    "at length": AgentError("NOT_FOUND", "x" * 2_000, DETAILS),
    "at length in another script": AgentError("NOT_FOUND", "漢" * 2_000, DETAILS),
    "exit": SystemExit(3),
}


# -- requests -----------------------------------------------------------------------------------


def key(id: str = "a") -> AgentKey:
    return AgentKey("default", "counter", id)


def ref(id: str = "a", type: str = "counter") -> common_pb.AgentRef:
    return common_pb.AgentRef(type=type, id=id)


def arguments(**named: Any) -> common_pb.Payload:
    struct = Struct()
    struct.update(named)
    return common_pb.Payload(json=Value(struct_value=struct))


def text(said: str) -> common_pb.Payload:
    return common_pb.Payload(text=said)


def invoke(action: str = "add", id: str = "a", **named: Any) -> agent_pb.InvokeRequest:
    return agent_pb.InvokeRequest(agent=ref(id), action=action, input=arguments(**named))


def chat(said: str, id: str = "a", **more: Any) -> agent_pb.StreamChatRequest:
    return agent_pb.StreamChatRequest(agent=ref(id), message=text(said), **more)


def followup(said: str, id: str = "a", **more: Any) -> agent_pb.FollowupRequest:
    return agent_pb.FollowupRequest(agent=ref(id), message=text(said), **more)


# -- errors -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refusal:
    """An error as a client sees it."""

    code: str
    reason: str
    text: str
    metadata: dict[str, str]
    fields: tuple[str, ...]
    retry_after: float | None
    pushback: str | None = None


def unpacked(status: status_pb2.Status, pushback: str | None = None) -> Refusal:
    """What a status carries."""
    info = error_details_pb2.ErrorInfo()
    bad = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    retries = False
    for packed in status.details:
        packed.Unpack(info)
        packed.Unpack(bad)
        retries = packed.Unpack(retry) or retries
    assert info.domain == "innkeeper"
    return Refusal(
        code=_name(status.code),
        reason=info.reason,
        text=status.message,
        metadata=dict(info.metadata),
        fields=tuple(violation.field for violation in bad.field_violations),
        retry_after=retry.retry_delay.ToMilliseconds() / 1000 if retries else None,
        pushback=pushback,
    )


async def refusal(call: Awaitable[Any]) -> Refusal:
    """Why a call failed."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await soon(call)
    error = caught.value
    trailers: dict[str, Any] = dict(error.trailing_metadata() or ())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    assert _name(status.code) == error.code().name
    assert status.message == error.details()
    return unpacked(status, str(trailers["grpc-retry-pushback-ms"]))


def _name(code: int) -> str:
    return next(each.name for each in grpc.StatusCode if each.value[0] == code)


# -- streams ------------------------------------------------------------------------------------


async def everything(call: Any) -> list[Any]:
    """The messages of a stream that are left; raises what it ended with."""
    messages = []
    while (message := await call.read()) is not grpc.aio.EOF:
        messages.append(message)
    return messages


class Talk:
    """A session as a client sees it: frames out, frames in."""

    def __init__(self, it: World, **options: Any) -> None:
        self.call = it.stub.Session(**options)
        self.sizes: list[int] = []  # frames of each message that came
        self._frames: list[agent_pb.ServerFrame] = []

    async def send(self, *frames: agent_pb.ClientFrame) -> None:
        """Send frames in one message."""
        await soon(self.call.write(agent_pb.SessionRequest(frames=frames)))

    async def next(self) -> agent_pb.ServerFrame:
        """The next frame; EOFError after the last. Raises what the session ended with."""
        while not self._frames:
            message = await soon(self.call.read())
            if not isinstance(message, agent_pb.SessionResponse):
                raise EOFError
            assert message.frames, "an empty message"
            self.sizes.append(len(message.frames))
            self._frames.extend(message.frames)
        return self._frames.pop(0)

    async def answer(self, call_id: str) -> agent_pb.ServerFrame:
        """The next frame, which must be of that call."""
        frame = await self.next()
        assert frame.call_id == call_id, frame
        return frame

    async def error(self, call_id: str) -> Refusal:
        """The next frame, which must be that call's error."""
        answer = await self.answer(call_id)
        assert answer.WhichOneof("frame") == "error", answer
        return unpacked(answer.error)

    async def open(self, id: str | None = "a") -> agent_pb.OpenedFrame:
        """Open it, on an agent or on none."""
        await self.send(frame(open=agent_pb.OpenFrame(agent=ref(id) if id else None)))
        answer = await self.answer("")
        assert answer.WhichOneof("frame") == "opened"
        return answer.opened

    async def over(self) -> grpc.StatusCode:
        """The status, after everything was read."""
        while True:
            try:
                await self.next()
            except EOFError:
                return await soon(self.call.code())

    async def close(self) -> None:
        """Close it cleanly; nothing but `closed` must come."""
        await self.send(CLOSE)
        frame = await self.next()
        assert frame.WhichOneof("frame") == "closed", frame
        assert await self.over() is grpc.StatusCode.OK


CLOSE = agent_pb.ClientFrame(close=agent_pb.CloseFrame())


def frame(call_id: str = "", **kind: Message) -> agent_pb.ClientFrame:
    """A client's frame."""
    return agent_pb.ClientFrame(call_id=call_id, **kind)  # type: ignore[arg-type]


def ping(nonce: int, call_id: str = "") -> agent_pb.ClientFrame:
    return frame(call_id, ping=agent_pb.PingFrame(nonce=nonce))


def said(message: str, id: str | None = None) -> agent_pb.MessageFrame:
    return agent_pb.MessageFrame(agent=None if id is None else ref(id), message=text(message))
