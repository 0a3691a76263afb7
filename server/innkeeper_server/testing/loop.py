"""An event loop on virtual time, on which somebody chooses what runs next.

Owns the loop. Nothing on it waits for real: when no callback is ready, time jumps to the next
timer. So a scenario takes as long as it computes, and always takes the same course, unless a
chooser wants another. When nothing can ever go on, it says so, and where everybody stands.

Plain `def` handlers run in real threads, which virtual time waits for: a handler takes no time,
however long it computes. Other threads are waited for only where nothing else is left to do.
"""

from __future__ import annotations

import asyncio
import heapq
import io
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from innkeeper_server.threads import NAME, working

T = TypeVar("T")

# Chooses one of so many ready callbacks, which are in the order in which they became ready.
Chooser = Callable[[int], int]

THREAD_SECONDS = 5.0  # of real time, for a thread that may yet answer; then it counts as stuck
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
        self._waiting_for_quiet: list[asyncio.Future[None]] = []
        self.set_exception_handler(lambda _, context: self.faults.append(context))

    def time(self) -> float:
        return self._virtual

    async def quiet(self) -> None:
        """Return when nothing can go on unless time passes; no time passes meanwhile."""
        self._waiting_for_quiet.append(waiter := self.create_future())
        await waiter

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
                self._look()

    def _look(self) -> None:
        check, self.after_step = self.after_step, None
        assert check is not None
        check()  # once it has failed it is not asked again: the first failure is the one to tell
        self.after_step = self.after_step or check

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
        self._listen(THREAD_SECONDS if working(self) else 0)
        while self._waiting_for_quiet and not self._ready:
            waiter = self._waiting_for_quiet.pop(0)
            if not waiter.done():
                waiter.set_result(None)
        if self._ready:
            return
        if self._scheduled:
            self._virtual = max(self._virtual, self._scheduled[0].when())
            self._fire_timers()
            return
        self._listen(THREAD_SECONDS if _somebody_else() else 0)
        if not self._ready:
            raise Deadlock(f"nothing can go on\n{standing(self)}")

    def _listen(self, seconds: float) -> None:
        """To threads, which announce what they have to say through the selector."""
        self._process_events(self._selector.select(seconds))  # type: ignore[attr-defined]


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
    runner = asyncio.Runner(loop_factory=lambda: loop)
    try:
        result = runner.run(main)
    except BaseException:
        with suppress(Exception):  # what went wrong first is what is told
            runner.close()
        raise
    runner.close()
    if loop.faults and not given:
        fault = loop.faults[0]
        raise RuntimeError(fault.get("message", "a fault")) from fault.get("exception")
    return result


def standing(loop: asyncio.AbstractEventLoop) -> str:
    """Where every task stands: from the place where it waits outwards to where it began."""
    text = io.StringIO()
    for task in sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name()):
        places = list(_places(task.get_coro()))
        text.write(f"  {task.get_name()}: {' < '.join(reversed(places)) or 'not begun'}\n")
    return text.getvalue()


def _places(coroutine: Any) -> Iterator[str]:
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            yield f"{frame.f_code.co_name} line {frame.f_lineno}"
        inner = getattr(coroutine, "cr_await", None)
        coroutine = inner if inner is not None else getattr(coroutine, "gi_yieldfrom", None)


def _somebody_else() -> bool:
    """Whether there are threads of which it cannot be known whether they work or wait."""
    others = [thread for thread in threading.enumerate() if not thread.name.startswith(NAME)]
    return len(others) > 1
