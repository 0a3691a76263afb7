"""Who goes: when a runtime is claimed, and when its claim is given up.

Owns the balance between those who need a slot and those who are on their way out of one:

    A claim is given up for work that arrives, unless older tickets then lack a slot. Where an idle
    runtime can take its place, that one is *promised* to the line: no newcomer revokes it. So a
    line loses each victim to newcomers at most once, and no stream of them starves it.

    A claim that the line can do without is given up too, the youngest first.

    An eviction that takes long is not counted on any more: it goes on, and another is begun.

    What is idle for too long goes, and so does everything idle in a drain.
"""

from __future__ import annotations

from innkeeper_server.moves import Moves
from innkeeper_server.slots import ClaimReason, Phase, Slot


class Leaving(Moves):
    """See the module."""

    def __init__(
        self,
        *,
        capacity: int,
        idle_timeout: float,
        max_claims: int,
        hold_time: float,
        eviction_time: float,
        slow_after: float,
        story_length: int,
    ) -> None:
        super().__init__(hold_time, eviction_time, slow_after, story_length)
        self.capacity = capacity
        self.idle_timeout = idle_timeout
        self.max_claims = max_claims
        self.draining = False

    def _shortage(self) -> int:
        """How many slots the line needs beyond those that are free or on their way."""
        need = len(self.wanted) + len(self.returning) + len(self.slots)
        return need - self.capacity - self._going() + self.late

    def _balance(self, now: float) -> None:
        """Have as many runtimes on their way out as the line needs: no fewer, and no more."""
        shortage = self._shortage()
        while shortage > 0 and self.idle.head is not None:
            reason = ClaimReason.ADMISSION if self.wanted else ClaimReason.CAPACITY
            self._claim(self.idle.head, reason, now)
            shortage -= 1
        while self._for_line:
            slot = next(reversed(self._for_line.values()))
            if shortage + _worth(slot) > 0:
                break
            self._unclaim(slot, "not needed", now)
            shortage = self._shortage()
        if not self.wanted:
            self._dissolve_line(now)

    def _is_calm(self) -> bool:
        """Nobody is in line, nobody has to go for it, and nobody is too many: the common case."""
        if self.wanted or self._for_line or self._while_line:
            return False
        return len(self.slots) <= self.capacity

    def _dissolve_line(self, now: float) -> None:
        """Nobody is in line any more: who was to go for it, or was kept from coming back, stays."""
        for slot in list(self._while_line.values()):
            if self._shortage() + _worth(slot) <= 0:
                self._unclaim(slot, "not needed", now)

    def _claim_due(self, now: float) -> bool:
        """Claim one idle runtime whose time is over; true if there was one."""
        head = self.idle.head
        if head is None or self._going() >= self.max_claims:
            return False
        if self.draining:
            self._claim(head, ClaimReason.DRAIN, now)
        elif head.idle_since + self.idle_timeout <= now:
            self._claim(head, ClaimReason.IDLE, now)
        else:
            return False
        return True

    def _opens(self, slot: Slot, now: float) -> bool:
        """Whether work may enter this life now; gives up a claim that stands in the way if it may.

        If not, the newcomer waits behind the older tickets and runs in the next life.
        """
        if slot.phase is Phase.RESIDENT:
            return not slot.leaving
        if slot.phase is not Phase.CLAIMED or (slot.claim is not None and slot.claim.firm):
            return False
        others = len(self.wanted) + len(self.returning) - (slot in self.returning)
        lacking = self._shortage() + _worth(slot)
        if others and lacking > len(self.idle):
            return False
        self._unclaim(slot, "work arrived", now, keep=True)
        if others and lacking > 0 and self.idle.head is not None:
            self._claim(self.idle.head, ClaimReason.ADMISSION, now, firm=True)
        return True


def _worth(slot: Slot) -> int:
    """How many slots the line loses if this one's claim is given up: none if nobody counts on it,
    or if its own agent is wanted again."""
    return 0 if slot.late or slot.waiting else 1
