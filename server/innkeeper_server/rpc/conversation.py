"""The Session RPC: many calls in flight over one stream.

Owns what each frame means and how a session ends:

* `close`: what is in flight ends, then `closed`, then the stream, with OK;
* the end of the client's stream without it is a detach: see `Host.caller_left` for what becomes of
  each call;
* the end of the host: what is in flight has ended before, and the RPC fails with Draining;
* a first frame other than `open`, an agent that cannot be opened, a message that is none, or a
  client that does not read: the RPC fails with that error.

Any other frame out of place is answered by an error with its `call_id`, and the session goes on:
that is also what a second `open`, a `call_id` that is in flight already, and any call after
`close` get. A call that was refused is answered by an error; one that ran by its result, or by
events up to a terminal one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import Any

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper_server.errors import (
    Draining,
    InnkeeperError,
    InvalidRequest,
    SessionProtocol,
    WorkCancelled,
)
from innkeeper_server.events import Event
from innkeeper_server.faults import host_failed
from innkeeper_server.host import Host
from innkeeper_server.identity import AgentKey
from innkeeper_server.mailbox import Call, Envelope
from innkeeper_server.rpc import ingress
from innkeeper_server.rpc.boundary import Read, Write
from innkeeper_server.rpc.convert import agent_ref, from_cursor, to_event
from innkeeper_server.rpc.frames import Outgoing
from innkeeper_server.rpc.inflight import MAX_CALL_ID, InFlight
from innkeeper_server.rpc.status import to_status
from innkeeper_server.visits import Connection

_FRAMES_AT_ONCE = 64  # then everybody else gets a turn of the loop

_STARTS: dict[str, Callable[..., Envelope]] = {
    "invoke": ingress.invoke,
    "chat": ingress.chat,
    "followup": ingress.followup,
    "message": ingress.message,
}


class Session:
    """One session. Its reader, its writer and its calls live no longer than `run`."""

    def __init__(self, host: Host, id: str, call: Call, *, max_message_bytes: int) -> None:
        self.id = id
        self.agent: AgentKey | None = None  # the opened one
        self._host = host
        self._call = call
        self._out = Outgoing(host.limits.reader_timeout, max_message_bytes)
        self._calls = InFlight(host, self._out, on_empty=self._maybe_finish)
        self._connection: Connection | None = None
        self._is_open = False
        self._hearing: asyncio.Task[None] | None = None  # of what the opened agent says
        self._farewells: list[agent_pb.GoingAwayFrame] = []  # from before it was open
        self._closing = False  # nothing more is begun
        self._last: InnkeeperError | None = None  # what it ends with then; None: it was closed

    async def run(self, read: Read, write: Write) -> None:
        """Serve the session until it ends. Raises the error that it fails with."""
        reader = asyncio.create_task(self._receive(read), name=f"session {self.id} reads")
        writer = asyncio.create_task(self._out.write_all(write), name=f"session {self.id} writes")
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            if not writer.done():
                fault = _fault(reader)
                if fault is not None or not self._closing:  # broken, or detached
                    self._let_go()
                    self._out.end(fault)
                await asyncio.wait((writer,))
            writer.result()
        finally:
            await _ended((reader, writer, *self._let_go()))

    def _let_go(self) -> list[asyncio.Task[Any]]:
        """Own and answer nothing any more; returns the tasks, which are about to end."""
        if self._connection is not None:
            self._connection.close()
        hearing = [] if self._hearing is None else [self._hearing]
        return [*hearing, *self._calls.abandon()]

    def leave(self, reason: str) -> None:
        """Tell the client that the host is about to end."""
        self._say_farewell(agent_pb.GoingAwayFrame(reason=reason))

    def end(self) -> None:
        """The host ends: begin nothing more, and fail once what is in flight was answered."""
        if not self._closing:
            self._closing = True
            self._last = Draining("the host has stopped")
            self._maybe_finish()

    # -- in -------------------------------------------------------------------------------------

    async def _receive(self, read: Read) -> None:
        """Take frames until the client's stream ends."""
        while (message := await read()) is not None:
            for number, frame in enumerate(message.frames, 1):
                await self._take(frame)
                if self._out.is_full:
                    await self._out.room()
                if number % _FRAMES_AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def _take(self, frame: agent_pb.ClientFrame) -> None:
        kind = frame.WhichOneof("frame")
        if not self._is_open:
            if kind != "open":
                raise SessionProtocol(f"the first frame of a session is open, not {kind}")
            await self._opening(frame.open)
            return
        try:
            self._dispatch(kind, frame)
        except InnkeeperError as error:
            self._refuse(frame.call_id, error)
        except Exception as fault:
            self._refuse(frame.call_id, host_failed(f"a session's {kind} frame", fault))

    def _dispatch(self, kind: str | None, frame: agent_pb.ClientFrame) -> None:
        if self._closing:
            raise self._last or SessionProtocol("the session is closing and takes nothing more")
        if kind in _STARTS:
            self._begin(kind, frame)
        elif kind == "ping":
            pong = agent_pb.PongFrame(nonce=frame.ping.nonce)
            self._out.put(agent_pb.ServerFrame(call_id=frame.call_id, pong=pong))
        elif kind == "cancel":
            self._cancel(frame)
        elif kind == "close":
            self._closing = True
            self._maybe_finish()
        elif kind == "open":
            raise SessionProtocol("the session is open already")
        elif kind == "ack":
            if not frame.ack.cursor.turn_id:
                raise InvalidRequest.of("cursor", "is required")
        else:
            raise InvalidRequest.of("frame", "is empty, or of a kind that is not served")

    def _begin(self, kind: str, frame: agent_pb.ClientFrame) -> None:
        start, request = _STARTS[kind], getattr(frame, kind)
        self._calls.begin(frame.call_id, lambda: start(self._host, request, self._call, self.agent))

    def _cancel(self, frame: agent_pb.ClientFrame) -> None:
        """The control lane: it stands behind nothing, and is answered at once."""
        self._calls.check(frame.call_id)
        own = self._calls.envelopes
        stopped = ingress.cancel(self._host, frame.cancel, self._call, self.agent, own)
        result = agent_pb.ResultFrame(cancel=ingress.cancelled(stopped))
        self._out.put(agent_pb.ServerFrame(call_id=frame.call_id, result=result))

    # -- the opened agent -----------------------------------------------------------------------

    async def _opening(self, frame: agent_pb.OpenFrame) -> None:
        """Have the agent here, and keep it. Raises why it cannot be had."""
        opened = agent_pb.OpenedFrame(session_id=self.id)
        if ingress.names_agent(frame):
            key = ingress.addressed(frame, self._call, None)
            self._connection = connection = self._host.connect(
                key, self._call, name=f"session {self.id}", on_leaving=self._on_leaving
            )
            opened.runtime_id = await connection.ready()
            assert connection.runtime is not None
            self.agent = connection.runtime.key
            opened.agent.CopyFrom(agent_ref(self.agent))
        elif self._host.draining:
            raise Draining("the host is draining and opens no sessions")
        subscribes = frame.events or frame.HasField("after")
        after = from_cursor(frame.after, "after") if frame.HasField("after") else None
        if subscribes and self.agent is None:
            raise InvalidRequest.of("agent", "is required for its events")
        self._out.put(agent_pb.ServerFrame(opened=opened))
        self._is_open = True
        if subscribes and self.agent is not None:
            events = self._host.followed().agent(self.agent, after, new_only=after is None)
            name = f"session {self.id} hears"
            self._hearing = asyncio.create_task(self._hear(events), name=name)
        for farewell in self._farewells:
            self._out.put(agent_pb.ServerFrame(going_away=farewell))

    async def _hear(self, events: AsyncGenerator[Event, None]) -> None:
        """Send what the opened agent says, no faster than it is read."""
        async with aclosing(events):
            try:
                async for event in events:
                    if self._out.is_full:
                        await self._out.room()
                    self._out.put(agent_pb.ServerFrame(event=to_event(event)))
            except InnkeeperError as error:
                self._refuse("", error)

    def _on_leaving(self, reason: str) -> None:
        """The opened agent's life is about to end; who asks for it later gets the next one."""
        connection = self._connection
        assert connection is not None
        assert connection.runtime is not None
        agent = agent_ref(connection.runtime.key)
        connection.close()
        self._say_farewell(agent_pb.GoingAwayFrame(reason=reason, agent=agent))

    def _say_farewell(self, farewell: agent_pb.GoingAwayFrame) -> None:
        """`opened` comes before everything else."""
        if self._is_open:
            self._out.put(agent_pb.ServerFrame(going_away=farewell))
        else:
            self._farewells.append(farewell)

    # -- out ------------------------------------------------------------------------------------

    def _refuse(self, call_id: str, error: InnkeeperError) -> None:
        shown = call_id[:MAX_CALL_ID]
        self._out.put(agent_pb.ServerFrame(call_id=shown, error=to_status(error)))

    def _maybe_finish(self) -> None:
        """Nothing more is begun, and nothing is in flight."""
        if self._closing and not self._calls.envelopes:
            if self._last is None:
                self._out.put(agent_pb.ServerFrame(closed=agent_pb.ClosedFrame()))
            self._out.end(self._last)


def _fault(task: asyncio.Task[None]) -> BaseException | None:
    """What a task that is done failed with."""
    if task.cancelled():
        return WorkCancelled("the session was cancelled inside the host")
    return task.exception()


async def _ended(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cut tasks and wait until they are gone; what they ended with has been told already.

    They end at once, so a cancellation meanwhile waits for them too.
    """
    pending = set(tasks)
    for task in pending:
        task.cancel()
    cut: asyncio.CancelledError | None = None
    while not all(task.done() for task in pending):
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as cancelled:
            cut = cancelled
    for task in pending:
        if not task.cancelled():
            task.exception()
    if cut is not None:
        raise cut
