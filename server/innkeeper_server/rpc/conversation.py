"""The Session RPC: many calls in flight over one stream.

Owns what each frame means and how a session ends:

* `close`: what is in flight ends, then `closed`, then the stream, with OK;
* the end of the client's stream without it is a detach: see `ingress.left` for what becomes of
  each call;
* a first frame other than `open`, an agent that cannot be opened, a message that is none, or a
  client that does not read: the RPC fails with that error.

Any other frame out of place is answered by an error with its `call_id`, and the session goes on:
that is also what a second `open`, a `call_id` that is in flight already, and any call after
`close` get. A call that was refused is answered by an error; one that ran by its result, or by
events up to a terminal one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper_server.errors import Draining, InnkeeperError, InvalidRequest, SessionProtocol
from innkeeper_server.faults import host_failed
from innkeeper_server.host import Host
from innkeeper_server.identity import AgentKey
from innkeeper_server.mailbox import Call
from innkeeper_server.rpc import ingress
from innkeeper_server.rpc.boundary import Read, Write
from innkeeper_server.rpc.convert import agent_ref
from innkeeper_server.rpc.frames import Outgoing
from innkeeper_server.rpc.inflight import InFlight
from innkeeper_server.rpc.status import to_status
from innkeeper_server.visits import Connection

_FRAMES_AT_ONCE = 64  # then everybody else gets a turn of the loop

_CALLS = ("invoke", "chat", "followup", "message")


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
        self._open = False
        self._closing = False

    async def run(self, read: Read, write: Write) -> None:
        """Serve the session until it ends. Raises the error that it fails with."""
        reader = asyncio.create_task(self._receive(read), name=f"session {self.id} reads")
        writer = asyncio.create_task(self._out.write_all(write), name=f"session {self.id} writes")
        self._host.drains.listeners.append(self._on_draining)
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            if reader.done() and not writer.done():
                reader.result()  # a broken session ends here
                if not self._closing:
                    return  # detached
                await asyncio.wait((writer,))
            writer.result()
        finally:
            self._host.drains.listeners.remove(self._on_draining)
            if self._connection is not None:
                self._connection.close()
            await _ended(reader, writer, *self._calls.abandon())

    # -- in -------------------------------------------------------------------------------------

    async def _receive(self, read: Read) -> None:
        """Take frames until the client's stream ends."""
        while (message := await read()) is not None:
            for number, frame in enumerate(message.frames, 1):
                await self._take(frame)
                await self._out.room()
                if number % _FRAMES_AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def _take(self, frame: agent_pb.ClientFrame) -> None:
        kind = frame.WhichOneof("frame")
        if not self._open:
            if kind != "open":
                raise SessionProtocol(f"the first frame of a session is open, not {kind}")
            await self._opened(frame)
            return
        try:
            self._dispatch(kind, frame)
        except InnkeeperError as error:
            self._refuse(frame.call_id, error)
        except Exception as fault:
            self._refuse(frame.call_id, host_failed(f"a session's {kind} frame", fault))

    def _dispatch(self, kind: str | None, frame: agent_pb.ClientFrame) -> None:
        if self._closing:
            raise SessionProtocol("the session is closing and takes nothing more")
        if kind in _CALLS:
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
        elif kind is None:
            raise InvalidRequest.of("frame", "is empty, or of a kind that is not served")

    # -- out ------------------------------------------------------------------------------------
