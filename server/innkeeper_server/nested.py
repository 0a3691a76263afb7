"""Calls from agent to agent.

Owns what `self.host.agent(type, id)` returns. A nested call carries the chain of agents it came
through, is judged by the call graph before it is admitted, lives no longer than the turn that
makes it, and is stopped with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from innkeeper_server.agent import Turn, current_turn, starting
from innkeeper_server.content import Content
from innkeeper_server.errors import DeadlineExceeded, Draining
from innkeeper_server.events import Custom, Event, Text
from innkeeper_server.identity import AgentKey
from innkeeper_server.mailbox import Call, Envelope

if TYPE_CHECKING:
    from innkeeper_server.host import Host
    from innkeeper_server.runtime import Runtime


class NestedAgent:
    """A handle on another agent, for the code of `runtime`'s agent."""

    def __init__(self, host: Host, runtime: Runtime, key: AgentKey) -> None:
        self._host = host
        self._runtime = runtime
        self._key = key

    async def invoke(
        self, action: str = "", /, *, timeout: float | None = None, **arguments: Any
    ) -> Any:
        """Run an action and return its output, within `timeout` seconds.

        Raises what the call ended with; CallCycle or CapacityDeadlock if it could never end.
        """
        call = self._call(timeout)
        envelope = self._host.nested_invoke(self._key, action, arguments or None, call)
        return await self._outcome(envelope, call)

    async def chat(
        self, message: Content, *, timeout: float | None = None
    ) -> AsyncIterator[str | Custom]:
        """Yield what the other agent says: text as str, other events as Custom."""
        call = self._call(timeout)
        envelope = self._host.nested_chat(self._key, message, call)
        try:
            while events := await self._read(envelope, call):
                for event in events:
                    if isinstance(event.body, Text):
                        yield event.body.delta
                    elif isinstance(event.body, Custom):
                        yield event.body
            await envelope.outcome()  # has settled: raises what it ended with
        finally:
            self._host.caller_left(envelope)

    async def followup(self, message: Content) -> str:
        """Leave a message for a later turn; return its receipt's id once it is accepted."""
        envelope = self._host.followup(self._key, message, self._call(None))
        await envelope.accepted()
        return envelope.id

    async def _read(self, envelope: Envelope, call: Call) -> list[Event]:
        """What is ready. The deadline is watched here and not around a `yield`, where it would
        strike in the caller's code."""
        assert envelope.outbox is not None
        try:
            async with asyncio.timeout_at(call.deadline):
                return await envelope.outbox.read()
        except TimeoutError:
            raise DeadlineExceeded(f"{self._key} did not answer in time") from None

    async def _outcome(self, envelope: Envelope, call: Call) -> Content:
        try:
            async with asyncio.timeout_at(call.deadline):
                return await envelope.outcome()
        except TimeoutError:
            raise DeadlineExceeded(f"{self._key} did not answer in time") from None
        finally:
            self._host.caller_left(envelope)

    def _call(self, timeout: float | None) -> Call:
        """The caller as the callee will know it. In `on_start` its chain is the agent itself, which
        can take no call before that has ended. Outside of a turn (in a job, or in a task that
        outlived its turn) there is no chain: nobody's turn waits. Raises Draining."""
        runtime, turn = self._runtime, current_turn.get(None)
        if runtime.mailbox.closed and self._host.draining:
            # Its own end would be put off by what it begins now, and by what that begins.
            raise Draining(f"{runtime.key} is being stopped and can call nobody")
        running = runtime.mailbox.active
        own = running is not None and turn is not None and running.turn is turn
        deadline = None if timeout is None else self._host.now() + timeout
        if not own or turn is None:
            starts = starting.get() == runtime.key and not runtime.loaded
            return Call(
                principal=f"agent:{runtime.key}",
                tenant=self._key.tenant,
                request_id=runtime.id,
                deadline=deadline,
                chain=(runtime.key,) if starts else (),
            )
        return Call(
            principal=turn.principal,
            tenant=self._key.tenant,
            request_id=turn.request_id or turn.id,
            deadline=_sooner(deadline, turn),
            metadata=turn.metadata,
            chain=turn.chain,
        )


def _sooner(deadline: float | None, turn: Turn) -> float | None:
    given = [when for when in (deadline, turn.deadline) if when is not None]
    return min(given, default=None)
