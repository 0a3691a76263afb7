"""The calls that a session has in flight, by the client's `call_id`.

Owns their bound, the task that answers each of them, and what becomes of them when the session
ends. Nothing is answered faster than the client reads: an answer waits for room first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper_server.errors import (
    InnkeeperError,
    InvalidRequest,
    SessionProtocol,
    TooManyWaiting,
)
from innkeeper_server.faults import host_failed
from innkeeper_server.host import Host
from innkeeper_server.mailbox import Envelope
from innkeeper_server.rpc import ingress
from innkeeper_server.rpc.convert import to_event
from innkeeper_server.rpc.frames import Outgoing
from innkeeper_server.rpc.hearing import heard
from innkeeper_server.rpc.status import to_status

MAX_IN_FLIGHT = 256
MAX_CALL_ID = 256  # characters


class InFlight:
    """See the module. `on_empty` is called when the last call has been answered."""

    def __init__(self, host: Host, out: Outgoing, on_empty: Callable[[], None]) -> None:
        self.envelopes: dict[str, Envelope] = {}
        self._host = host
        self._out = out
        self._on_empty = on_empty
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def check(self, call_id: str) -> None:
        """Raise what is wrong with the id of a new call."""
        if not call_id:
            raise InvalidRequest.of("call_id", "is required")
        if len(call_id) > MAX_CALL_ID:
            raise InvalidRequest.of("call_id", f"has more than {MAX_CALL_ID} characters")
        if call_id in self.envelopes:
            raise SessionProtocol("a call with this call_id is in flight already")

    def begin(self, call_id: str, start: Callable[[], Envelope]) -> None:
        """Start a call, to be answered under `call_id`. Raises what refuses it."""
        self.check(call_id)
        if len(self.envelopes) >= MAX_IN_FLIGHT:
            raise TooManyWaiting(
                f"the session has {MAX_IN_FLIGHT} calls in flight already",
                metadata={"limit": str(MAX_IN_FLIGHT)},
            )
        envelope = self.envelopes[call_id] = start()
        self._tasks[call_id] = asyncio.create_task(
            self._serve(call_id, envelope), name=f"call {call_id}"
        )

    def abandon(self) -> list[asyncio.Task[Any]]:
        """Nobody waits for any of them; returns the tasks, which are about to end."""
        tasks = list(self._tasks.values())
        for envelope in self.envelopes.values():
            self._host.caller_left(envelope)
        for task in tasks:
            task.cancel()
        return tasks

    async def _serve(self, call_id: str, envelope: Envelope) -> None:
        """From the start of a call to its last frame."""
        try:
            await self._answer(call_id, envelope)
        except InnkeeperError as error:
            await self._fail(call_id, error)
        except Exception as fault:
            await self._fail(call_id, host_failed("a call of a session", fault))
        self._host.caller_left(envelope)  # where it could not be told how the call ended
        del self.envelopes[call_id], self._tasks[call_id]
        if not self.envelopes:
            self._on_empty()

    async def _answer(self, call_id: str, envelope: Envelope) -> None:
        if envelope.outbox is not None:
            await self._say(call_id, envelope)
            return
        result = agent_pb.ResultFrame()
        if envelope.kind == "followup":
            await envelope.accepted()
            result.followup.CopyFrom(ingress.followed_up(envelope))
        else:
            output = await envelope.outcome()
            result.invoke.CopyFrom(ingress.invoked(envelope, output))
        await self._put(agent_pb.ServerFrame(call_id=call_id, result=result))

    async def _say(self, call_id: str, envelope: Envelope) -> None:
        """What a turn says, up to its terminal event. What was refused has no turn."""
        async with aclosing(heard(self._host, envelope)) as events:
            async for event in events:
                await self._put(agent_pb.ServerFrame(call_id=call_id, event=to_event(event)))

    async def _fail(self, call_id: str, error: InnkeeperError) -> None:
        await self._put(agent_pb.ServerFrame(call_id=call_id, error=to_status(error)))

    async def _put(self, frame: agent_pb.ServerFrame) -> None:
        if self._out.is_full:
            await self._out.room()
        self._out.put(frame)
