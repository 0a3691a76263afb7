"""One life of one agent in memory.

Owns the instance, its mailbox, its place in the store (epoch, version, last committed state), and
the tasks that belong to this life: the turn that runs and the jobs that the agent spawned. An idle
runtime is this object, its mailbox and its state: no task, no timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from innkeeper_server.content import Content
from innkeeper_server.errors import InnkeeperError, TooLarge
from innkeeper_server.faults import handler_failed
from innkeeper_server.identity import AgentKey
from innkeeper_server.mailbox import Mailbox
from innkeeper_server.signals import Signal
from innkeeper_server.slots import Lease

if TYPE_CHECKING:
    from innkeeper_server.agent import AgentHandle, Alarm
    from innkeeper_server.registry import AgentType
    from innkeeper_server.store import AlarmChanges, Chunk, Outcome, Settled, Store
    from innkeeper_server.visits import Connection

T = TypeVar("T")


class AlarmClock(Protocol):
    """What keeps the alarms of all agents."""

    def set(
        self,
        runtime: Runtime,
        when: float | timedelta | datetime,
        message: Content,
        name: str,
        every: float | timedelta | None,
    ) -> str:
        """Have its turn set an alarm; return its name."""

    def cancel(self, name: str) -> None:
        """Have the turn that runs cancel an alarm."""

    async def of(self, runtime: Runtime) -> list[Alarm]:
        """Its agent's alarms."""


class Port(Protocol):
    """What a life needs from its host."""

    @property
    def alarm_clock(self) -> AlarmClock:
        """Where its alarms are set."""

    def nested(self, runtime: Runtime, type: str, id: str) -> AgentHandle:
        """A handle on another agent of the same tenant."""

    def spawn(
        self, runtime: Runtime, job: Coroutine[Any, Any, Any], name: str | None
    ) -> asyncio.Task[Any]:
        """Start a job that keeps the runtime resident."""


class Runtime:
    """See the module. `number` is the account's runtime id; `id` is the same for the world."""

    __slots__ = (
        "committed",
        "connections",
        "doom",
        "epoch",
        "has_passive",
        "id",
        "instance",
        "jobs",
        "key",
        "known",
        "last_status",
        "loaded",
        "mailbox",
        "number",
        "port",
        "saving",
        "signal",
        "task",
        "turn_started",
        "type",
        "version",
    )

    def __init__(
        self, key: AgentKey, number: int, id: str, type: AgentType, port: Port, mailbox_size: int
    ) -> None:
        self.key = key
        self.number = number
        self.id = id
        self.type = type
        self.port = port
        self.mailbox = Mailbox(mailbox_size)
        self.epoch = 0  # until hydrated
        self.version = 0
        self.committed: bytes | None = None  # what the store has
        self.known: bytes | None = None  # the same as this code writes it; what a change is told by
        self.instance: Any = None
        self.has_passive = False  # follow-ups wait in the store for its next turn
        self.loaded = False
        self.doom: InnkeeperError | None = None  # why this life must end, once that is known
        self.task: asyncio.Task[None] | None = None  # of the active turn
        self.turn_started = 0.0
        self.last_status = ""
        self.jobs: dict[asyncio.Task[Any], Lease] | None = None
        self.connections: dict[Connection, None] | None = None
        self.signal = Signal()  # it moved: claimed, restored, or ended
        self.saving: asyncio.Task[None] | None = None  # the commit that is under way

    def __repr__(self) -> str:
        return f"<runtime {self.id} of {self.key}>"

    # What its agent sees as `self.host`.

    def agent(self, type: str, id: str) -> AgentHandle:
        """Another agent of the same tenant."""
        return self.port.nested(self, type, id)

    def spawn(self, job: Coroutine[Any, Any, Any], *, name: str | None = None) -> asyncio.Task[Any]:
        """Background work that keeps this agent resident until it ends."""
        return self.port.spawn(self, job, name)

    def set_alarm(
        self,
        when: float | timedelta | datetime,
        message: Content,
        *,
        name: str = "",
        every: float | timedelta | None = None,
    ) -> str:
        """As `Agent.set_alarm`."""
        return self.port.alarm_clock.set(self, when, message, name, every)

    def cancel_alarm(self, name: str) -> None:
        """As `Agent.cancel_alarm`."""
        self.port.alarm_clock.cancel(name)

    async def alarms(self) -> list[Alarm]:
        """As `Agent.alarms`."""
        return await self.port.alarm_clock.of(self)

    # State.

    def restored(self, state: bytes | None) -> None:
        """The instance holds what the store has."""
        self.committed = state
        self.known = self.type.known(self.instance, state)

    def changed(self, max_bytes: int) -> bytes | None:
        """The state that is to be committed; None if the store has it already.

        Raises TooLarge, or HandlerFailed for what is no JSON.
        """
        try:
            state = self.type.dump(self.instance, self.known)
        except InnkeeperError:
            raise
        except Exception as fault:
            raise handler_failed(self.key, "its state, which is no JSON", fault) from None
        if state is None or state == self.known:
            return None
        if len(state) > max_bytes:
            raise TooLarge(
                f"the state of {self.key} has {len(state)} bytes; at most {max_bytes}",
                metadata={"agent": str(self.key), "limit": str(max_bytes)},
            )
        return state

    async def write(
        self,
        store: Store,
        state: bytes | None,
        settled: Settled | Outcome | None = None,
        events: Chunk | None = None,
        alarms: AlarmChanges | None = None,
    ) -> None:
        """Commit a state, and with it how a follow-up ended, what a turn said last, and which
        alarms it changed. Cannot be cut half-way: a commit that was begun is seen to its end, so
        what memory holds and what the store holds never part."""
        assert self.saving is None, "two commits at once"
        commit = self._commit(store, state, settled, events, alarms)
        self.saving = asyncio.get_running_loop().create_task(commit)
        await finished(self.saving)

    async def checkpoint(self, store: Store, max_bytes: int) -> None:
        """Commit what changed outside of turns. While one is active, the state is half-way, and
        left alone. Raises what `changed` raises, and what the store does."""
        await self.no_save()
        if self.mailbox.active is None and (state := self.changed(max_bytes)) is not None:
            await self.write(store, state)

    async def no_save(self) -> None:
        """Return when no commit is under way. How it ended is told to whoever began it."""
        while self.saving is not None:
            try:
                await finished(self.saving)
            except Exception:
                continue

    def roll_back(self) -> None:
        """Put the state back to the last committed one."""
        self.type.restore(self.instance, self.committed)

    async def _commit(
        self,
        store: Store,
        state: bytes | None,
        settled: Settled | Outcome | None,
        events: Chunk | None,
        alarms: AlarmChanges | None,
    ) -> None:
        try:
            self.version = await store.commit(
                self.key,
                epoch=self.epoch,
                version=self.version,
                state=state,
                settled=settled,
                events=events,
                alarms=alarms,
            )
            if state is not None:
                self.committed = self.known = state
        finally:
            self.saving = None


async def finished(task: asyncio.Task[T]) -> T:
    """The result of a task, awaited to its end whatever happens to the one who waits.

    A cancellation meanwhile is dropped: use it only where the waiter ends right after.
    """
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            continue
    return task.result()
