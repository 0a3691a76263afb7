"""One follow-up in memory: what its envelope knows of the store.

Owns the record as it was last stored, and where its attempts stand.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from innkeeper_server.content import Content
from innkeeper_server.errors import InnkeeperError
from innkeeper_server.letters import write_output
from innkeeper_server.mailbox import Envelope
from innkeeper_server.store import Followup, Settled

if TYPE_CHECKING:
    from innkeeper_server.followups import Followups

__all__ = ["Live"]


class Live:
    """See the module."""

    __slots__ = ("_owner", "envelope", "has_begun", "record", "timer", "tries")

    def __init__(self, owner: Followups, record: Followup) -> None:
        self._owner = owner
        self.record = record
        self.envelope: Envelope | None = None
        self.has_begun = False  # this attempt
        self.tries = 0  # in a row that came to nothing, of any kind; for the pause
        self.timer: asyncio.TimerHandle | None = None  # until the next one

    async def begin(self) -> None:
        await self._owner.begin(self)

    def completed(self, output: Content) -> Settled:
        return Settled(self.record.id, "completed", write_output(output))

    def ended(self, output: Content, error: InnkeeperError | None) -> None:
        self._owner.ended(self, error)

    def is_wanted(self) -> bool:
        return True
