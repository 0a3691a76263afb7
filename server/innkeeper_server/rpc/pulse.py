"""Does the loop keep time?

Owns the watchdog of the loop. Code that blocks holds up everybody, and whoever is held up cannot
say so; but once the loop goes on, a beat that comes late tells by how much. A host that sleeps
through its own deadlines is found out the same way: it would refuse nobody and evict nobody, and
look well.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

EVERY = 1.0  # seconds from beat to beat
WORTH_A_LINE = 1.0  # seconds of lag
TOO_LATE = 5.0  # seconds of lag beyond which nobody should be sent here
REMEMBERED = 60  # beats

log = logging.getLogger("innkeeper.server")


class Pulse:
    """Beats from `start` to `stop`. `next_deadline` tells when the host is to act by itself, on the
    loop's clock; `changed` is called when `steady` has changed."""

    def __init__(self, next_deadline: Callable[[], float], changed: Callable[[], None]) -> None:
        self.steady = True
        self._next_deadline = next_deadline
        self._changed = changed
        self._lags: deque[float] = deque(maxlen=REMEMBERED)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def lag(self) -> float:
        """The longest lag of the last minute, in seconds."""
        return max(self._lags, default=0.0)

    def start(self) -> None:
        """Begin to beat."""
        loop = asyncio.get_running_loop()
        due = loop.time() + EVERY

        def beat() -> None:
            try:
                self.beat(due, loop.time())
            finally:
                self.start()

        self._timer = loop.call_at(due, beat)

    def stop(self) -> None:
        """Beat no more."""
        if self._timer is not None:
            self._timer.cancel()

    def beat(self, due: float, now: float) -> None:
        """One beat, which was due at that time."""
        lag = max(0.0, now - due)
        self._lags.append(lag)
        if lag >= WORTH_A_LINE:
            log.warning("the loop stood still for %.1f s: something blocks it", lag)
        overdue = now - self._next_deadline()
        if overdue >= TOO_LATE and self.steady:
            log.error("the host is %.1f s behind its own deadlines", overdue)
        steady = max(lag, overdue) < TOO_LATE
        if steady != self.steady:
            self.steady = steady
            self._changed()
