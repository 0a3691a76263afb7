"""Owners of a runtime other than envelopes: connections, pins, jobs.

Owns how each of them waits for residency and lets go again.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

from innkeeper_server import explain
from innkeeper_server.agent import starting
from innkeeper_server.driver import Driver
from innkeeper_server.errors import Draining, InnkeeperError
from innkeeper_server.faults import handler_failed, host_failed
from innkeeper_server.identity import AgentKey
from innkeeper_server.mailbox import Call
from innkeeper_server.runtime import Runtime
from innkeeper_server.signals import Signal
from innkeeper_server.slots import Lease, LeaseKind, Ticket


class Visit:
    """Somebody who wants a lease and keeps it until `close`, or until the life ends."""

    def __init__(self, driver: Driver, kind: LeaseKind, name: str) -> None:
        self._driver = driver
        self._kind = kind
        self._name = name
        self._ticket: Ticket | None = None
        self._error: InnkeeperError | None = None
        self._signal = Signal()
        self.lease: Lease | None = None
        self.runtime: Runtime | None = None

    def ask(self, agent: AgentKey, deadline: float | None, ttl: float = float("inf")) -> None:
        """Ask for the lease; `ready` tells how it went. A pin is an operator's, who may want to see
        whether an agent in quarantine starts again."""
        refusal = self._driver.quarantine.refusal(agent, self._driver.now())
        if refusal is not None and self._kind is not LeaseKind.PIN:
            self.refused(refusal)
            return
        self._ticket, effects = self._driver.account.request(
            agent,
            self._kind,
            self._driver.now(),
            owner=self._name,
            deadline=float("inf") if deadline is None else deadline,
            ttl=ttl,
            visitor=self,
        )
        self._driver.carry_out(effects)

    async def ready(self) -> str:
        """Return the runtime's id once the lease is granted, or raise why it was refused.

        A waiter that is cancelled must still call `close`.
        """
        while self.runtime is None:
            if self._error is not None:
                raise self._error
            await self._signal.next()
        return self.runtime.id

    def close(self) -> None:
        """Let go, or stop asking. Idempotent."""
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._driver.carry_out(self._driver.account.cancel(ticket, self._driver.now()))

    def granted(self, lease: Lease) -> None:
        assert lease.slot is not None, "a grant that had ended"
        self.lease = lease
        self.runtime = self._driver.runtimes[lease.slot.runtime_id]
        self._signal.notify()

    def refused(self, error: InnkeeperError) -> None:
        self._error = error
        self._ticket = None
        self._signal.notify()


class Connection(Visit):
    """An open conversation with an agent. `on_leaving` is told, once, that this life is about to
    end; the owner of the connection then closes it."""

    def __init__(
        self,
        driver: Driver,
        agent: AgentKey,
        call: Call,
        name: str,
        on_leaving: Callable[[str], None],
    ) -> None:
        super().__init__(driver, LeaseKind.CONNECTION, name)
        self._on_leaving: Callable[[str], None] | None = on_leaving
        self.ask(agent, call.deadline)

    def granted(self, lease: Lease) -> None:
        super().granted(lease)
        assert self.runtime is not None
        if self.runtime.connections is None:
            self.runtime.connections = {}
        self.runtime.connections[self] = None
        if self._driver.account.draining:  # it was granted as its agent loaded: told with nobody
            self.leaving(explain.DRAINING)

    def close(self) -> None:
        if self.runtime is not None and self.runtime.connections is not None:
            self.runtime.connections.pop(self, None)
            self.runtime.connections = self.runtime.connections or None
        self._on_leaving = None
        super().close()

    def leaving(self, reason: str) -> None:
        """Tell the owner that this life is about to end."""
        tell, self._on_leaving = self._on_leaving, None
        if tell is not None:
            tell(reason)


def tell_connections(runtime: Runtime, reason: str) -> None:
    """Tell everybody who has this agent open that its life is about to end."""
    for connection in list(runtime.connections or ()):
        try:
            connection.leaving(reason)
        except Exception as fault:  # a defect; the others are told all the same
            host_failed("telling a connection", fault)


def spawn_job(
    driver: Driver, runtime: Runtime, job: Coroutine[Any, Any, Any], name: str | None
) -> asyncio.Task[Any]:
    """Start background work of an agent, which owns its runtime from this block on."""
    if runtime.mailbox.closed or runtime.doom is not None:
        job.close()
        raise Draining(f"{runtime.key} is being stopped and can begin nothing new")
    label = str(name or getattr(job, "__qualname__", "job"))
    lease, effects = driver.account.join(
        runtime.key, runtime.number, LeaseKind.JOB, label, driver.now()
    )
    assert lease is not None, f"{runtime} can spawn jobs and has no slot"
    context = contextvars.copy_context()
    context.run(starting.set, None)
    task = asyncio.get_running_loop().create_task(
        _contained(runtime, label, job), name=label, context=context
    )
    if runtime.jobs is None:
        runtime.jobs = {}
    runtime.jobs[task] = lease
    task.add_done_callback(lambda done: _job_ended(driver, runtime, job, done))
    driver.carry_out(effects)
    return task


def _job_ended(
    driver: Driver, runtime: Runtime, job: Coroutine[Any, Any, Any], task: asyncio.Task[Any]
) -> None:
    job.close()  # if it was cancelled before its first step, nobody else does
    if not task.cancelled():
        task.exception()  # it belongs to whoever awaits the job; here it is only marked as seen
    assert runtime.jobs is not None, "a job that nobody knows"
    lease = runtime.jobs.pop(task)
    runtime.jobs = runtime.jobs or None
    runtime.signal.notify()
    driver.release(lease)


async def _contained(runtime: Runtime, label: str, job: Coroutine[Any, Any, Any]) -> Any:
    """Run a job so that not even SystemExit gets past it."""
    try:
        return await job
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as fault:
        raise handler_failed(runtime.key, f"its job {label!r}", fault) from None
