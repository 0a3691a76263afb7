"""Stopping work on request: the control lane, which never waits behind a mailbox.

Owns which pieces of an agent's work are meant, and the list of what was told to stop.
"""

from __future__ import annotations

from dataclasses import dataclass

from innkeeper_server.driver import Driver
from innkeeper_server.errors import WorkCancelled
from innkeeper_server.identity import AgentKey
from innkeeper_server.mailbox import Envelope
from innkeeper_server.turns import Turns

__all__ = ["CancelScope", "CancelledWork", "cancel_work"]

CancelScope = str  # "turn", "queue", "all"


@dataclass(frozen=True, slots=True)
class CancelledWork:
    """One piece of work that was told to stop."""

    id: str
    kind: str
    was_running: bool


def cancel_work(
    driver: Driver, turns: Turns, key: AgentKey, scope: CancelScope, id: str = ""
) -> list[CancelledWork]:
    """Stop what is meant, in this block. `id`: only that piece of work."""
    error = WorkCancelled("it was cancelled on request")
    runtime = driver.find(key)
    running = runtime.mailbox.active if runtime is not None else None
    waiting = (runtime.mailbox.queued() if runtime is not None else []) + _in_line(driver, key)
    stopped = []
    if runtime is not None and running is not None:
        meant = running.id == id if id else scope in ("turn", "all")
        if meant and turns.stop(runtime, error):
            stopped.append(CancelledWork(running.id, running.kind, True))
    for envelope in waiting:
        if envelope.id == id if id else scope in ("queue", "all"):
            turns.withdraw(envelope, error)
            stopped.append(CancelledWork(envelope.id, envelope.kind, False))
    return stopped


def _in_line(driver: Driver, key: AgentKey) -> list[Envelope]:
    """Envelopes for an agent that wait for residency, oldest first."""
    slot = driver.account.slots.get(key)
    tickets = slot.waiting if slot is not None else driver.account.wanted.get(key)
    visitors = [ticket.visitor for ticket in (tickets or {}).values()]
    return [visitor.envelope for visitor in visitors if hasattr(visitor, "envelope")]
