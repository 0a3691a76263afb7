"""The one writing connection: calls that come together are committed together.

Owns the queue, the group under way, and the connection it goes through. While a group is being
committed, further calls gather and make the next one. Each call is told its own result.

A connection that breaks before the commit was sent leaves nothing: the group is sent again. One
that breaks after that leaves it unknown what became of the group. Each transaction therefore also
writes the group's number to a row of this writer's own. When the database is back, that row is
asked for under its lock, so that no transaction of ours is under way, and nobody is told anything
before it has answered.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, Protocol

import asyncpg

from innkeeper_server.errors import StoreUnavailable
from innkeeper_server.signals import Signal
from innkeeper_server.store.postgres.faults import AGAIN, LOST, unavailable
from innkeeper_server.store.postgres.writes import STATEMENTS, Write

__all__ = ["Connect", "Writer"]

MAX_GROUP = 1000  # calls in one transaction
FIRST_PAUSE = 0.05  # seconds before the second attempt to connect; each further one is twice that
LONGEST_PAUSE = 1.0

log = logging.getLogger("innkeeper.store")

# One message to the server. Both values are this module's own.
_BEGIN = (
    "BEGIN; INSERT INTO writers VALUES ('{name}', {number}, extract(epoch FROM now())) "
    "ON CONFLICT (writer) DO UPDATE SET groups = excluded.groups, seen_at = excluded.seen_at"
)


class Connect(Protocol):
    """Makes a connection, with settings of the session."""

    def __call__(self, **settings: str) -> Awaitable[asyncpg.Connection[asyncpg.Record]]: ...


@dataclass(eq=False, slots=True)
class _Call:
    write: Write
    future: asyncio.Future[Any]
    deadline: float  # on the loop's clock

    def tell(self, row: Any) -> None:
        """Settle with what its row means; the caller may be gone."""
        if self.future.done():
            return
        try:
            self.future.set_result(self.write.meaning(row))
        except Exception as error:
            self.future.set_exception(error)

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(slots=True)
class _Group:
    """Calls of one transaction, and how far it has come."""

    calls: list[_Call]
    rows: dict[int, Any] = field(default_factory=dict)  # by the call's place
    sent: bool = False  # the commit was sent, and its outcome is not known


class Writer:
    """See the module. `patience`: seconds for which a call waits; `size`: calls in the queue."""

    def __init__(self, connect: Connect, *, size: int, patience: float) -> None:
        self._connect = connect
        self._size = size
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Call] = deque()
        self._changed = Signal()
        self._closing = False
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._name = f"innkeeper-{uuid.uuid4().hex}"
        self.groups = 0  # transactions so far
        self._task = self._loop.create_task(self._run(), name="innkeeper-store-writer")

    async def call(self, write: Write) -> Any:
        """Have it committed, and return what its row means. StoreUnavailable: see the protocol.

        A caller that is cancelled leaves its call behind: it may be made or not.
        """
        if self._closing:
            raise StoreUnavailable("the store is closed")
        if len(self._queue) >= self._size:
            raise StoreUnavailable(
                f"the store is behind: {self._size} calls wait for it",
                metadata={"limit": str(self._size)},
            )
        deadline = self._loop.time() + self._patience
        call = _Call(write, self._loop.create_future(), deadline)
        self._queue.append(call)
        self._changed.notify()
        return await call.future

    async def close(self) -> bool:
        """Take nothing more, finish what was taken; False if that was not done in time."""
        self._closing = True
        self._changed.notify()
        done, _ = await asyncio.wait({self._task}, timeout=self._patience + 1.0)
        if not done:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=1.0)
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
        return bool(done)

    # -- the task -------------------------------------------------------------------------------

    async def _run(self) -> None:
        calls: list[_Call] = []
        try:
            while calls := await self._next():
                await self._see_through(_Group(calls))
        finally:  # also where it is cut, nobody is left waiting
            for call in (*calls, *self._queue):
                call.fail(StoreUnavailable("the store was closed; the outcome is unknown"))
            self._queue.clear()

    async def _next(self) -> list[_Call]:
        """The calls to commit together; none when the writer closes."""
        while True:
            while not self._queue:
                if self._closing:
                    return []
                await self._changed.next()
            count = min(len(self._queue), MAX_GROUP)
            taken = [self._queue.popleft() for _ in range(count)]
            calls = [call for call in taken if not call.future.done()]
            if calls:
                # Those of one kind go beside one another, in their order. Kinds have no order.
                calls.sort(key=lambda call: call.write.function)
                return calls

    async def _see_through(self, group: _Group) -> None:
        """Until every call of the group has been told something."""
        pause = FIRST_PAUSE
        while self._expire(group):
            try:
                if not group.sent:
                    await self._commit(group)
                    return
                if await self._was_told(group):
                    return
            except AGAIN:
                group.sent = False
            except LOST as error:
                await self._lose(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            except Exception as fault:
                await self._each_alone(group, fault)
                return

    def _expire(self, group: _Group) -> bool:
        """Give up calls whose time is over; true if others are left. Of a transaction that may
        have been committed none is left out, since they stand and fall together."""
        now = self._loop.time()
        if group.sent:
            if all(call.deadline > now for call in group.calls):
                return True
            for call in group.calls:
                call.fail(
                    StoreUnavailable("the database went away in a commit; its outcome is unknown")
                )
            self.groups += 1  # its number is used up, whatever became of it
            return False
        for call in group.calls:
            if call.deadline <= now:
                call.fail(StoreUnavailable("the database cannot be reached; nothing was kept"))
        group.calls = [call for call in group.calls if not call.future.done()]
        return bool(group.calls)

    async def _ready(self) -> asyncpg.Connection[asyncpg.Record]:
        if self._connection is None or self._connection.is_closed():
            self._connection = None
            connection = await self._connect(application_name=self._name)
            self._connection = connection
            # What is left of the connection before, if the other end has not noticed its end.
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = $1 AND pid <> pg_backend_pid()",
                self._name,
            )
        return self._connection

    async def _lose(self, error: BaseException) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            log.warning("the writing connection was lost: %s", unavailable(error).message)
            connection.terminate()

    async def _commit(self, group: _Group) -> None:
        connection = await self._ready()
        try:
            await connection.execute(_BEGIN.format(name=self._name, number=self.groups + 1))
            group.rows = await self._send(connection, group.calls)
        except AGAIN:
            await connection.execute("ROLLBACK")
            raise
        except asyncpg.PostgresError as error:
            if not isinstance(error, LOST):
                await connection.execute("ROLLBACK")
            raise
        group.sent = True
        await connection.execute("COMMIT")
        self._tell(group)

    async def _send(
        self, connection: asyncpg.Connection[asyncpg.Record], calls: list[_Call]
    ) -> dict[int, Any]:
        """One statement for each kind; the rows by the places of their calls."""
        rows: dict[int, Any] = {}
        begin = 0
        while begin < len(calls):
            function = calls[begin].write.function
            end = begin
            while end < len(calls) and calls[end].write.function == function:
                end += 1
            columns = list(zip(*(call.write.arguments for call in calls[begin:end]), strict=True))
            for row in await connection.fetch(STATEMENTS[function], *columns):
                rows[begin + row["number"] - 1] = row
            begin = end
        return rows

    async def _was_told(self, group: _Group) -> bool:
        """Ask what became of a group whose commit was sent; False if it was not made."""
        connection = await self._ready()
        committed = await connection.fetchval(
            "SELECT groups FROM writers WHERE writer = $1 FOR UPDATE", self._name
        )
        group.sent = False
        if (committed or 0) <= self.groups:
            return False
        self._tell(group)
        return True

    async def _each_alone(self, group: _Group, fault: Exception) -> None:
        """Something in the group cannot be done at all: the others must not fail with it."""
        if not isinstance(fault, asyncpg.PostgresError):  # the connection's state is not known
            await self._lose(fault)
        if len(group.calls) > 1:
            for call in group.calls:
                await self._see_through(_Group([call]))
        elif isinstance(fault, asyncpg.PostgresError):
            group.calls[0].fail(unavailable(fault))
        else:  # a defect of this program; it must not end the writer
            log.error("a write failed", exc_info=fault)
            group.calls[0].fail(fault)

    def _tell(self, group: _Group) -> None:
        self.groups += 1
        for place, call in enumerate(group.calls):
            call.tell(group.rows.get(place))
