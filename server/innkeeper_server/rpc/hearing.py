"""What the reader of a turn hears, wherever it comes from.

Owns the choice: the turn's own outbox, where the reader's call began it; the log, where a call with
the same key did, now or before. The last event is the one that ends the turn.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from innkeeper_server.errors import InnkeeperError, TurnNotFound, WorkCancelled
from innkeeper_server.events import Cancelled, Event, Failed, Gap
from innkeeper_server.host import Host
from innkeeper_server.mailbox import Envelope, Stage

__all__ = ["error_of", "heard"]


async def heard(host: Host, envelope: Envelope) -> AsyncGenerator[Event, None]:
    """The events of an envelope's turn. Raises what it was refused with: then there was no turn."""
    following = host.following
    while (leader := envelope.leader) is not None and envelope.stage is not Stage.SETTLED:
        if following is not None and leader.runtime_id:  # it is on its way: hear it live
            async for event in following.turn(leader.agent, leader.id, 0, envelope.call):
                yield event
            return
        await leader.next()
    try:
        await envelope.accepted()
    except InnkeeperError:
        if not envelope.replayed:
            raise
    if envelope.replayed:
        try:
            if following is not None:
                async for event in following.turn(envelope.agent, envelope.id, 0, envelope.call):
                    yield event
                return
        except TurnNotFound:
            pass
        yield Event(0, envelope.id, 0, Gap(0))  # its end is known, and nothing else of it
    assert envelope.outbox is not None, "a turn that cannot say anything"
    while events := await envelope.outbox.read():
        for event in events:
            yield event


def error_of(event: Event | None) -> InnkeeperError | None:
    """What the RPC of a turn that ended with that event ends with."""
    body = None if event is None else event.body
    if isinstance(body, Failed):
        return body.error
    return WorkCancelled(body.reason) if isinstance(body, Cancelled) else None
