"""How a turn ends: what its fault means, and what is said of it last.

Owns the translation from what happened in a handler to the error, the terminal event and the word
for it.
"""

from __future__ import annotations

import asyncio

from innkeeper_server.content import Content
from innkeeper_server.errors import AgentError, InnkeeperError, WorkCancelled
from innkeeper_server.events import Body, Cancelled, Completed, Event, Failed
from innkeeper_server.faults import handler_failed, passed_through
from innkeeper_server.mailbox import Envelope
from innkeeper_server.runtime import Runtime

__all__ = ["absorb_cancellation", "end", "meaning", "status", "terminal"]


def meaning(runtime: Runtime, envelope: Envelope, fault: BaseException) -> InnkeeperError:
    """What a handler's exception tells its caller. A CancelledError that nobody asked for is the
    handler's own, and fails this turn alone, like any other exception."""
    if isinstance(fault, AgentError):
        return fault
    if isinstance(fault, InnkeeperError):
        return passed_through(runtime.key, fault)
    return handler_failed(runtime.key, envelope.kind, fault)


async def absorb_cancellation(task: asyncio.Task[None] | None) -> None:
    """Forget cancellations aimed at the handler, delivered or not, before work of the host.
    `task` is the turn's own, which this runs in."""
    if task is None or not task.cancelling():
        return
    while task.cancelling():
        task.uncancel()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        pass


def end(output: Content, error: InnkeeperError | None) -> Body:
    if error is None:
        return Completed(output)
    return Cancelled(error.message) if isinstance(error, WorkCancelled) else Failed(error)


def terminal(envelope: Envelope, output: Content, error: InnkeeperError | None) -> Event:
    body, turn = end(output, error), envelope.turn
    if turn is None:
        return Event(0, envelope.id, 1, body)
    return Event(turn.epoch, envelope.id, turn.last_seq + 1, body)


def status(error: InnkeeperError) -> str:
    return "cancelled" if isinstance(error, WorkCancelled) else "failed"
