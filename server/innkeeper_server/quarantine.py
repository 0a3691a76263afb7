"""Agents that do not start: left alone, for longer each time.

Owns how often in a row each agent's start has failed, and until when nobody starts it again. So an
agent whose hook or state is broken costs a refusal instead of a slot, and takes no other agent's
place. When its time is over, the next call tries it once; an operator's pin tries it at once.

It lives in memory: a host that starts, perhaps with mended code, tries everybody afresh.
"""

from __future__ import annotations

from typing import NamedTuple

from innkeeper_server.errors import Quarantined
from innkeeper_server.identity import AgentKey

__all__ = ["Quarantine"]

FIRST_PAUSE = 5.0  # seconds; each further one is twice as long
LONGEST_PAUSE = 300.0
KEPT = 10_000  # agents; of more, those whose last failure is the oldest are forgotten


class _Record(NamedTuple):
    failures: int  # in a row
    until: float  # nobody starts it before


class Quarantine:
    """See the module. `after`: how many failures in a row it takes. Times are the host's."""

    def __init__(self, after: int) -> None:
        self._after = after
        self._records: dict[AgentKey, _Record] = {}  # the latest failure last

    def failed(self, agent: AgentKey, now: float) -> tuple[int, float]:
        """A start has failed by the agent's own fault: how many have in a row, and for how many
        seconds it is left alone."""
        last = self._records.pop(agent, None)
        failures = 1 if last is None else last.failures + 1
        doublings = failures - self._after
        pause = min(FIRST_PAUSE * 2 ** min(doublings, 30), LONGEST_PAUSE) if doublings >= 0 else 0.0
        self._records[agent] = _Record(failures, now + pause)
        if len(self._records) > KEPT:
            del self._records[next(iter(self._records))]
        return failures, pause

    def well(self, agent: AgentKey) -> None:
        """It has started, or is gone."""
        self._records.pop(agent, None)

    def left(self, agent: AgentKey, now: float) -> float:
        """For how many seconds more nobody starts it; 0 if it is not in quarantine."""
        record = self._records.get(agent)
        return 0.0 if record is None else max(0.0, record.until - now)

    def refusal(self, agent: AgentKey, now: float) -> Quarantined | None:
        """What its callers are told; None if it may be started."""
        left = self.left(agent, now)
        if not left:
            return None
        failures = self._records[agent].failures
        return Quarantined(
            self.words(agent, now),
            metadata={"agent": str(agent), "failures": str(failures)},
            retry_after=left,
        )

    def words(self, agent: AgentKey, now: float) -> str:
        """What there is to say of it; "" if it is not in quarantine."""
        left = self.left(agent, now)
        if not left:
            return ""
        failures = self._records[agent].failures
        return (
            f"{agent} is in quarantine: it failed to start {failures} times in a row; "
            f"next try in {left:.1f} s"
        )

    def count(self, now: float) -> int:
        """How many are in quarantine."""
        return sum(1 for record in self._records.values() if record.until > now)
