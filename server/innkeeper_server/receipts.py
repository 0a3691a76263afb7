"""Receipts: how a follow-up stands, now or once it has ended.

Owns those who wait for an end, and how long receipts are kept. What is told comes from the store;
what this host knows of its own live ones only says when to look there again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from innkeeper_server.errors import ReceiptNotFound
from innkeeper_server.signals import Signal
from innkeeper_server.store import Followup, Store

__all__ = ["Receipt", "Receipts"]


@dataclass(frozen=True, slots=True)
class Receipt:
    """A follow-up as it stands. `running`: its turn is under way, on this host."""

    followup: Followup
    running: bool


@dataclass(slots=True)
class _Watch:
    """One follow-up whose end somebody waits for."""

    ended: bool = False
    watchers: int = 0
    signal: Signal = field(default_factory=Signal)


class Receipts:
    """See the module. `runs` tells whether the turn of a follow-up is under way."""

    def __init__(self, store: Store, runs: Callable[[str], bool]) -> None:
        self._store = store
        self._runs = runs
        self._watches: dict[str, _Watch] = {}

    def ended(self, id: str) -> None:
        """The store has how it ended."""
        watch = self._watches.get(id)
        if watch is not None:
            watch.ended = True
            watch.signal.notify()

    async def get(self, id: str, tenant: str, *, deadline: float | None = None) -> Receipt:
        """How a follow-up stands. With a `deadline` (on the host's clock), once it has ended, or
        then if that comes first. Raises ReceiptNotFound, also for another tenant's."""
        watch = self._watches.setdefault(id, _Watch())
        watch.watchers += 1
        try:
            while True:
                had_ended = watch.ended
                followup = await self._store.followup(id)
                if followup is None or followup.key.tenant != tenant:
                    raise ReceiptNotFound("there is no such receipt", metadata={"receipt_id": id})
                left = 0.0 if deadline is None else deadline - asyncio.get_running_loop().time()
                has_ended = followup.settled_at is not None  # the store knows before the turn does
                if has_ended or left <= 0:
                    return Receipt(followup, running=not has_ended and self._runs(id))
                if watch.ended == had_ended:  # else it ended while the store was asked
                    await watch.signal.wait(left)
        finally:
            watch.watchers -= 1
            if not watch.watchers:
                del self._watches[id]
