"""The one hand that carries out what the account decides.

Owns the runtimes that physically exist, the host's clock and timer, and the host's background
tasks. Effects are carried out in order, in the block that produced them; what they produce in turn
is appended, so nothing recurses. Callers hand results back as the account's next events.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from math import inf
from typing import Any, Protocol

from innkeeper_server.errors import InnkeeperError
from innkeeper_server.faults import host_failed
from innkeeper_server.identity import AgentKey
from innkeeper_server.quarantine import Quarantine
from innkeeper_server.residency import Account
from innkeeper_server.runtime import Runtime
from innkeeper_server.signals import Signal
from innkeeper_server.slots import Claim, Effect, Evict, Grant, Lease, Load, Refuse

log = logging.getLogger("innkeeper.host")


class Visitor(Protocol):
    """Whoever stands behind a ticket. Both are called in the block that decided."""

    def granted(self, lease: Lease) -> None:
        """Use the lease, or release it, before returning."""

    def refused(self, error: InnkeeperError) -> None:
        """The wait is over."""


class Driver:
    """See the module. The callbacks are set once, by the owner of lives."""

    def __init__(self, account: Account, host_id: str, quarantine: Quarantine) -> None:
        self.account = account
        self.quarantine = quarantine
        self.host_id = host_id  # part of every name that must never be used twice
        self.runtimes: dict[int, Runtime] = {}
        self.changed = Signal()  # something in the account moved
        self.on_load: Callable[[AgentKey, int], None]
        self.on_evict: Callable[[Runtime, Claim], None]
        self.on_discard: Callable[[Runtime], None]
        # Give up a start, with this error for whoever waits; False if that was told before.
        self.give_up: Callable[[Runtime, InnkeeperError], bool]
        self._loop = asyncio.get_running_loop()
        self.now: Callable[[], float] = self._loop.time  # the host's clock: monotonic seconds
        # Tasks of the host start from this context: they inherit nothing of any caller's turn.
        self.context = contextvars.copy_context()
        self._effects: deque[Effect] = deque()
        self._carrying = False
        self._told = 0  # the last transition that `changed` was notified of
        self._timer: asyncio.TimerHandle | None = None
        self._due = inf
        self._tasks: set[asyncio.Task[None]] = set()
        self._overdue: set[asyncio.Task[Any] | None] = set()  # of these, who wait for zombies
        account.live = self.runtimes.keys

    def find(self, agent: AgentKey) -> Runtime | None:
        """The runtime behind an agent's slot, if it has come to exist."""
        slot = self.account.slots.get(agent)
        return self.runtimes.get(slot.runtime_id) if slot is not None else None

    def release(self, lease: Lease) -> None:
        """End a lease and carry out what follows."""
        self.carry_out(self.account.release(lease, self.now()))

    def end(self, runtime: Runtime) -> None:
        """End a life in spite of its owners; its eviction begins in this block."""
        _, effects = self.account.evict(runtime.key, self.now(), force=True)
        self.carry_out(effects)

    def carry_out(self, effects: Iterable[Effect]) -> None:
        """Do what the account decided."""
        self._effects.extend(effects)
        if self._carrying:
            return
        if self._effects:
            self._carry_all()
        story = self.account.story
        if story and story[-1].seq != self._told:
            self._told = story[-1].seq
            self.changed.notify()
        if self.account.due < self._due:
            self._rearm()

    def own(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a background task of the host: kept alive, and never failing in silence."""
        task = self._loop.create_task(work, name=name, context=self.context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._disown)
        return task

    def overdue(self) -> None:
        """The task of the host that calls this is about to wait for code that had its time to end,
        and may never: nobody shall wait for it in turn."""
        self._overdue.add(asyncio.current_task())

    async def finish_tasks(self, timeout: float) -> bool:
        """Wait for the host's tasks, at most `timeout` seconds, but not for those that wait for
        zombies; tell whether all have ended."""
        if waited_for := self._tasks - self._overdue:
            await asyncio.wait(waited_for, timeout=timeout)
        return not self._tasks

    def close(self) -> None:
        """Stop the timer. The account decides nothing by time any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due = -inf

    def _carry_all(self) -> None:
        self._carrying = True
        while self._effects:
            effect = self._effects.popleft()
            try:
                self._carry(effect)
            except Exception as fault:  # a defect; the other effects are somebody else's
                host_failed(f"carrying out {type(effect).__name__}", fault)
        self._carrying = False

    def _carry(self, effect: Effect) -> None:
        if isinstance(effect, Grant):
            visitor: Visitor = effect.ticket.visitor  # type: ignore[assignment]
            visitor.granted(effect.lease)
        elif isinstance(effect, Load):
            self.on_load(effect.agent, effect.runtime_id)
        elif isinstance(effect, Evict):
            self.on_evict(self.runtimes[effect.claim.runtime_id], effect.claim)
        elif isinstance(effect, Refuse):
            refused: Visitor = effect.ticket.visitor  # type: ignore[assignment]
            refused.refused(effect.error)
        else:
            runtime = self.runtimes.get(effect.runtime_id)
            log.error("runtime %d exists without a slot; ending it", effect.runtime_id)
            if runtime is not None:
                self.on_discard(runtime)

    def _rearm(self) -> None:
        """Sleep until the account's next deadline; a timer that comes too early looks again."""
        if self._timer is not None:
            self._timer.cancel()
        self._due = self.account.due
        self._timer = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        now = max(self.now(), self._due)
        self._timer = None
        self._due = inf
        self.carry_out(self.account.tick(now))

    def _disown(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._overdue.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("background task %s failed", task.get_name(), exc_info=fault)
