"""Where plain `def` handlers run: threads, so that they never hold up the event loop.

Owns the threads. They are shared by all hosts of the process, at most THREADS, started when needed
and kept; what waits for one is bounded by the number of resident agents, which have one turn each.
They are daemons: a handler that never returns cannot keep the process from ending.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any

__all__ = ["NAME", "THREADS", "Threads", "in_thread", "working"]

THREADS = 32
NAME = "innkeeper-handler"  # how the names of the threads begin

_Job = tuple["Future[Any]", Callable[[], Any]]


class Threads:
    """A queue and at most `most` threads that serve it."""

    def __init__(self, most: int) -> None:
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._free = threading.Semaphore(0)
        self._starting = threading.Lock()
        self._left = most

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Have it called by a thread that is free, or will be."""
        job: Future[Any] = Future()
        self._jobs.put((job, call))
        if not self._free.acquire(blocking=False):
            self._start()
        return job

    def _start(self) -> None:
        with self._starting:
            if self._left:
                threading.Thread(
                    target=self._serve, name=f"{NAME}-{self._left}", daemon=True
                ).start()
                self._left -= 1

    def _serve(self) -> None:
        while True:
            tell = _carried_out(*self._jobs.get())
            self._free.release()  # first, so that whoever hears of the outcome finds it free
            tell()
            del tell  # an idle thread keeps nothing of its last job


def _carried_out(job: Future[Any], call: Callable[[], Any]) -> Callable[[], None]:
    """Do the job; return what tells its outcome."""
    if not job.set_running_or_notify_cancel():
        return lambda: None
    try:
        return partial(job.set_result, call())
    except BaseException as fault:  # it belongs to whoever waits for the job
        return partial(job.set_exception, fault)


_threads = Threads(THREADS)
_under_way: dict[Future[Any], asyncio.AbstractEventLoop] = {}  # who will be told of which call


def working(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a call has been made from this loop that has not been answered yet."""
    return loop in list(_under_way.values())


async def in_thread(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call in a thread, which sees the caller's context variables.

    A thread cannot be stopped. When the waiting task is cancelled, a call that has not begun never
    does; one that has is waited for, and only then CancelledError goes on. So whoever waits for
    this can rely on it that nothing runs any more.
    """
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    context = contextvars.copy_context()
    job = _threads.submit(partial(context.run, function, *args, **kwargs))
    _under_way[job] = loop
    job.add_done_callback(lambda _: _tell(loop, over))
    job.add_done_callback(_under_way.pop)
    cancelled: tuple[object, ...] | None = None
    while not over.done():
        try:
            await asyncio.wait([over])
        except asyncio.CancelledError as error:
            cancelled = error.args
            job.cancel()  # which settles `over`, unless the call has begun
    if cancelled is not None:
        raise asyncio.CancelledError(*cancelled)
    return job.result()


def _tell(loop: asyncio.AbstractEventLoop, over: asyncio.Future[None]) -> None:
    try:
        loop.call_soon_threadsafe(_settle, over)
    except RuntimeError:
        pass  # the loop is closed: nobody waits


def _settle(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)
