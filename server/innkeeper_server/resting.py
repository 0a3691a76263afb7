"""Follow-ups whose agents are in quarantine: they rest in the store, and not in memory.

Owns from where the store is to be read again for each agent, and when. So the work of an agent that
does not start takes no place among the live, however much of it there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from innkeeper_server.identity import AgentKey

__all__ = ["Resting"]


class Resting:
    """See the module. `read_on` is told a seq: the store has work to be run behind it."""

    def __init__(self, read_on: Callable[[int], None]) -> None:
        self._read_on = read_on
        self._loop = asyncio.get_running_loop()
        self._first: dict[AgentKey, int] = {}  # the lowest seq of each
        self._timers: dict[AgentKey, asyncio.TimerHandle] = {}

    def put(self, agent: AgentKey, seq: int, seconds: float) -> None:
        """One of the agent's rests for so long, and with it those that rest already."""
        self._first[agent] = min(seq, self._first.get(agent, seq))
        if agent in self._timers:
            self._timers[agent].cancel()
        self._timers[agent] = self._loop.call_later(seconds, self._over, agent)

    def close(self) -> None:
        """Wake nobody any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._first.clear()

    def _over(self, agent: AgentKey) -> None:
        del self._timers[agent]
        self._read_on(self._first.pop(agent) - 1)
