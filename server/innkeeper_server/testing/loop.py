"""An event loop on virtual time, on which somebody chooses what runs next.

Owns the loop. Nothing on it waits for real: when no callback is ready, time jumps to the next
timer. So a scenario takes as long as it computes, and always takes the same course, unless a
chooser wants another. When nothing can ever go on, it says so, and where everybody stands.
"""

from __future__ import annotations

import asyncio
import heapq
import io
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

# Chooses one of so many ready callbacks, which are in the order in which they became ready.
Chooser = Callable[[int], int]

THREAD_SECONDS = 10.0  # of real time, for a thread that may yet answer
MAX_STEPS = 5_000_000


class Deadlock(RuntimeError):
    """Nothing is ready, no timer runs, and the scenario is not over."""


class Livelock(RuntimeError):
    """The scenario does not end, however many steps it makes."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module. `chooser`: default is the oldest first, as on any loop. `after_step` is
    called after each callback. `faults` collects what nobody else would hear of."""

    # Of the base class, which keeps them from its subclasses by name only.
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _selector: Any

    def __init__(self, chooser: Chooser | None = None, max_steps: int = MAX_STEPS) -> None:
        self._virtual = 0.0
        super().__init__()
        self._chooser = chooser
        self._max_steps = max_steps
        self.steps = 0
        self.after_step: Callable[[], None] | None = None
        self.faults: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.faults.append(context))

    def time(self) -> float:
        return self._virtual

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        """Run it at once, in order: threads have no place in a course that can be repeated."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as fault:
            future.set_exception(fault)
        return future

    def _run_once(self) -> None:
        """One callback."""
        self._fire_timers()
        while not self._ready:
            self._advance()
        self.steps += 1
        if self.steps > self._max_steps:
            raise Livelock(f"not over after {self._max_steps} steps\n{standing(self)}")
        index = 0
        if len(self._ready) > 1 and self._chooser is not None:
            index = self._chooser(len(self._ready))
        handle = self._ready[index]
        del self._ready[index]
        if not handle.cancelled():
            handle._run()
            if self.after_step is not None:
                self.after_step()

    def _fire_timers(self) -> None:
        while self._scheduled and (
            self._scheduled[0].cancelled() or self._scheduled[0].when() <= self._virtual
        ):
            timer = heapq.heappop(self._scheduled)
            timer._scheduled = False  # type: ignore[attr-defined]
            if not timer.cancelled():
                self._ready.append(timer)

    def _advance(self) -> None:
        """Let time jump; where no timer runs, a thread may yet have something to say."""
        self._process_events(self._selector.select(0))  # type: ignore[attr-defined]
        if self._ready:
            return
        if self._scheduled:
            self._virtual = max(self._virtual, self._scheduled[0].when())
            self._fire_timers()
            return
        events = self._selector.select(THREAD_SECONDS if _threads_work() else 0)
        if not events:
            raise Deadlock(f"nothing can go on\n{standing(self)}")
        self._process_events(events)  # type: ignore[attr-defined]


def run(
    main: Coroutine[Any, Any, T],
    *,
    chooser: Chooser | None = None,
    max_steps: int = MAX_STEPS,
    loop: VirtualLoop | None = None,
) -> T:
    """Play a scenario to its end and return its result.

    Raises what it raises, Deadlock, Livelock; and RuntimeError for the first exception that no one
    retrieved, on a loop that was not given.
    """
    given = loop is not None
    loop = loop or VirtualLoop(chooser, max_steps)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        result = runner.run(main)
    if loop.faults and not given:
        fault = loop.faults[0]
        raise RuntimeError(fault.get("message", "a fault")) from fault.get("exception")
    return result


def standing(loop: asyncio.AbstractEventLoop) -> str:
    """Where every task stands."""
    text = io.StringIO()
    for task in sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name()):
        text.write(f"  {task.get_name()}:")
        stack = task.get_stack(limit=3)
        places = [f"{frame.f_code.co_name} line {frame.f_lineno}" for frame in stack]
        text.write(f" {' < '.join(reversed(places)) or 'not begun'}\n")
    return text.getvalue()


def _threads_work() -> bool:
    import threading

    return threading.active_count() > 1
