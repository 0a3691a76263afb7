"""A thread that serves calls from the event loop with a connection of its own.

Owns the way there and the way back. There: a bounded queue, and a full one refuses at once. Back:
outcomes go to the loop together and settle the futures there, some of which may have lost their
caller meanwhile. A lane survives every fault of its database and ends only when it is told to.

    loop      call ─▶ queue                            ┌─▶ futures settled
    thread              └─▶ take ─▶ serve ─▶ deliver ──┘

How calls are served is the subclass's: `Reader` here, `Writer` in writer.py.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from innkeeper_server.errors import StoreUnavailable
from innkeeper_server.store.database import Database
from innkeeper_server.store.faults import is_own, leaves_doubt, unavailable

__all__ = ["Call", "Lane", "Operation", "Reader"]

T = TypeVar("T")

# What a lane is asked to do. It runs in the lane's thread and keeps nothing of the connection.
Operation = Callable[[sqlite3.Connection], T]


@dataclass(slots=True)
class Call:
    """One operation, its outcome, and the future on the loop that waits for it."""

    operation: Operation[Any]
    future: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = None

    def settle(self) -> None:
        """On the loop. The caller may be gone, or may have been told something else before."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


class Lane:
    """One thread, one connection, and a queue of at most `size` calls.

    `patience` is in seconds: how long a caller waits at most, whatever hangs below.
    """

    name: ClassVar[str]
    at_once: ClassVar[int | None] = None  # how many calls are taken together; None: all there are

    def __init__(self, database: Database, *, size: int, patience: float) -> None:
        self._database = database
        self._size = size
        self._patience = patience
        self._loop: asyncio.AbstractEventLoop
        self._ended: asyncio.Future[None]
        # The next two are shared, under the lock of the condition.
        self._changed = threading.Condition()
        self._queue: deque[Call] = deque()
        self._accepting = False
        # The thread's own.
        self._connection: sqlite3.Connection | None = None

    async def start(self) -> None:
        """Start the thread and return once it has its connection, or raise StoreUnavailable."""
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._accepting = True
        # A daemon: a disk that hangs must not keep the process from ending.
        threading.Thread(target=self._run, name=self.name, daemon=True).start()
        await self.call(lambda connection: None)

    async def call(self, operation: Operation[T]) -> T:
        """Run the operation in the thread and return what it returned, or raise what it raised.

        StoreUnavailable for every fault of the database. If the caller is cancelled, an operation
        that has not begun is left out.
        """
        call = Call(operation, self._loop.create_future())
        self._put(call)
        timer = self._loop.call_later(self._patience, self._give_up, call)
        try:
            result: T = await call.future
            return result
        finally:
            timer.cancel()

    def stop(self) -> None:
        """Accept nothing more. The thread ends when it has served what was accepted."""
        with self._changed:
            self._accepting = False
            self._changed.notify()

    async def ended(self) -> bool:
        """Wait for the thread to end, within patience; False if it has not."""
        await asyncio.wait({self._ended}, timeout=self._patience)
        return self._ended.done()

    def _put(self, call: Call) -> None:
        with self._changed:
            if not self._accepting:
                raise StoreUnavailable("the store is closed")
            if len(self._queue) >= self._size:
                raise StoreUnavailable(
                    f"the store is behind: {self._size} calls wait for it",
                    metadata={"limit": str(self._size)},
                )
            self._queue.append(call)
            self._changed.notify()

    def _give_up(self, call: Call) -> None:
        if not call.future.done():
            call.future.set_exception(
                StoreUnavailable(
                    f"the store did not answer within {self._patience:g} s; the outcome is unknown"
                )
            )

    # In the thread from here on.

    def _run(self) -> None:
        try:
            while taken := self._take():
                calls = [call for call in taken if not call.future.done()]
                self._serve_safely(calls)
                self._tell(_settle, calls)
        finally:
            self._end()

    def _take(self) -> list[Call]:
        """The next calls; none once the lane was stopped and has served all."""
        with self._changed:
            while not self._queue and self._accepting:
                self._changed.wait()
            count = min(len(self._queue), self.at_once or self._size)
            return [self._queue.popleft() for _ in range(count)]

    def _serve_safely(self, calls: list[Call]) -> None:
        try:
            if calls:
                self._serve(calls)
        except Exception as error:  # a defect here must not end the lane
            self._drop()
            for call in calls:
                call.error = error

    def _serve(self, calls: list[Call]) -> None:
        raise NotImplementedError

    def _connect(self) -> sqlite3.Connection:
        raise NotImplementedError

    def _ready(self) -> sqlite3.Connection:
        """The connection, made anew if the last one was dropped; raises one of FAULTS."""
        if self._connection is None:
            self._connection = self._connect()
        self._database.check()
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except sqlite3.Error:
                pass  # it is being dropped because it does not work

    def _end(self) -> None:
        with self._changed:
            self._accepting = False
            left = list(self._queue)
            self._queue.clear()
        for call in left:
            call.error = StoreUnavailable("the store has stopped")
        self._drop()
        self._tell(self._say_ended, left)

    def _say_ended(self, left: list[Call]) -> None:
        _settle(left)
        self._ended.set_result(None)

    def _tell(self, callback: Callable[[list[Call]], None], calls: list[Call]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, calls)
        except RuntimeError:
            pass  # the loop is closed, so nobody waits any more


class Reader(Lane):
    """Serves each call by itself, so that a slow list delays one answer and not a group."""

    name = "innkeeper-store-reader"
    at_once = 1

    def _connect(self) -> sqlite3.Connection:
        return self._database.reader()

    def _serve(self, calls: list[Call]) -> None:
        for call in calls:
            try:
                call.result = call.operation(self._ready())
            except Exception as error:
                call.error = error if is_own(error) else unavailable(error)
                if leaves_doubt(error):
                    self._drop()


def _settle(calls: list[Call]) -> None:
    for call in calls:
        call.settle()
