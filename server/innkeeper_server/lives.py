"""How a runtime begins and how it ends.

Owns hydration, start, and the steps of an eviction, each bounded in time and run in tasks of the
host: whoever asked can go away, and cannot cancel them half-way.

    load:   hydrate (takes the epoch) → construct → on_start → `loaded`
    evict:  checkpoint → the fence (one block) → stop the turn → on_stop → stop jobs → last save
            → `stopped`
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from innkeeper_server import explain
from innkeeper_server.agent import starting
from innkeeper_server.driver import Driver
from innkeeper_server.errors import (
    AgentDeleted,
    AgentError,
    Draining,
    Evicted,
    InnkeeperError,
    StartFailed,
    StartTimeout,
    StoreUnavailable,
)
from innkeeper_server.faults import handler_failed, host_failed
from innkeeper_server.identity import AgentKey
from innkeeper_server.letters import interruption
from innkeeper_server.limits import Limits
from innkeeper_server.mailbox import Envelope, Stage
from innkeeper_server.registry import Registry
from innkeeper_server.runtime import Port, Runtime
from innkeeper_server.slots import Claim, ClaimReason
from innkeeper_server.store import Store
from innkeeper_server.turns import Turns
from innkeeper_server.visits import tell_connections

log = logging.getLogger("innkeeper.host")


class Lives:
    """See the module."""

    def __init__(
        self,
        driver: Driver,
        turns: Turns,
        registry: Registry,
        store: Store,
        limits: Limits,
        port: Port,
    ) -> None:
        self._driver = driver
        self._turns = turns
        self._registry = registry
        self._store = store
        self._limits = limits
        self._port = port
        driver.on_load = self._begin
        driver.on_evict = self._leave
        driver.on_discard = self._discard
        driver.give_up = self._give_up
        self._starts: dict[int, asyncio.Future[InnkeeperError]] = {}  # until the start has ended
        self.lost_total = 0  # states of which something uncommitted was lost

    # -- beginning ------------------------------------------------------------------------------

    def _begin(self, agent: AgentKey, number: int) -> None:
        runtime = Runtime(
            agent,
            number,
            f"{self._driver.host_id}-{number}",
            self._registry.resolve(agent.type),
            self._port,
            self._limits.mailbox_size,
        )
        self._driver.runtimes[number] = runtime
        self._driver.own(self._load(runtime), f"load {runtime.id}")

    async def _load(self, runtime: Runtime) -> None:
        limit = self._limits.start_timeout
        task = self._child(self._start(runtime), f"start {runtime.id}")
        given_up = self._starts[runtime.number] = asyncio.get_running_loop().create_future()
        await asyncio.wait((task, given_up), timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        del self._starts[runtime.number]
        error: InnkeeperError | None = None
        if task.done():
            error = StartFailed(f"{runtime.key} gave up") if task.cancelled() else task.result()
        elif given_up.done():
            error = given_up.result()
        else:
            what = f"{runtime.key} did not start within {limit:g} s"
            error = StartTimeout(what, metadata={"agent": str(runtime.key)})
        if not task.done():
            task.cancel()
            await self._within(self._limits.stop_timeout, task)
        self._turns.start_ended(runtime)
        error = error or runtime.doom
        if error is None:
            self._loaded(runtime)
        else:
            self._count_failure(runtime, error)
            await self._abandon(runtime, error, task)

    def _count_failure(self, runtime: Runtime, error: InnkeeperError) -> None:
        """Where its own code or state was at fault: before the store had answered, none was."""
        quarantine, key = self._driver.quarantine, runtime.key
        if isinstance(error, AgentDeleted):
            quarantine.well(key)
        elif runtime.epoch and isinstance(error, StartFailed | StartTimeout | AgentError):
            failures, pause = quarantine.failed(key, self._driver.now())
            if pause:
                log.error("%s failed to start %d times; next try in %g s", key, failures, pause)
                error.retry_after = pause

    def _give_up(self, runtime: Runtime, error: InnkeeperError) -> bool:
        given_up = self._starts.get(runtime.number)
        if given_up is None or given_up.done():
            return False
        given_up.set_result(error)
        return True

    async def _start(self, runtime: Runtime) -> InnkeeperError | None:
        """Hydrate, construct and start; return what went wrong instead of raising it."""
        starting.set(runtime.key)
        try:
            stored = await self._store.hydrate(runtime.key, interrupted=interruption())
            runtime.epoch, runtime.version = stored.epoch, stored.version
            runtime.has_passive |= stored.passive
            runtime.instance = runtime.type.create(runtime.key, runtime, stored.state)
            runtime.restored(stored.state)
            await runtime.type.start(runtime.instance)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except InnkeeperError as error:
            return error
        except BaseException as fault:
            failed = handler_failed(runtime.key, "on_start", fault)
            return StartFailed(failed.message, metadata=failed.metadata)
        return None

    def _loaded(self, runtime: Runtime) -> None:
        runtime.loaded = True
        self._driver.quarantine.well(runtime.key)
        driver = self._driver
        driver.carry_out(driver.account.loaded(runtime.key, runtime.number, driver.now()))

    async def _abandon(
        self, runtime: Runtime, error: InnkeeperError, start: asyncio.Task[InnkeeperError | None]
    ) -> None:
        """A load that failed. While its code still runs, its slot stays charged. Whoever has
        started all the same is stopped like any other: one that was deleted meanwhile, or one
        that was deaf to its cancellation, however late it ends."""
        runtime.mailbox.close()  # it can spawn nothing more
        running: list[asyncio.Task[Any]] = []
        if not start.done():
            running += self._cancel_jobs(runtime)
            self._outlived(runtime, error)
            await asyncio.wait((start,))
        if not start.cancelled() and start.result() is None:
            running += await self._stop_in_time(runtime, ClaimReason.OPERATOR)
        running += self._cancel_jobs(runtime)
        if any(not task.done() for task in running):
            self._outlived(runtime, error)
            await asyncio.wait(running)
        driver = self._driver
        del driver.runtimes[runtime.number]
        runtime.signal.notify()
        now = driver.now()
        driver.carry_out(driver.account.load_failed(runtime.key, runtime.number, error, now))
        driver.carry_out(driver.account.stopped(runtime.key, runtime.number, now))

    def _outlived(self, runtime: Runtime, error: InnkeeperError) -> None:
        """Code of a failed start runs on: its callers are told, and its slot stays charged."""
        driver, now = self._driver, self._driver.now()
        driver.overdue()
        driver.carry_out(
            driver.account.load_failed(runtime.key, runtime.number, error, now, ended=False)
        )

    # -- ending ---------------------------------------------------------------------------------

    def _leave(self, runtime: Runtime, claim: Claim) -> None:
        self._driver.own(self._evict(runtime, claim), f"evict {runtime.id}")

    async def _evict(self, runtime: Runtime, claim: Claim) -> None:
        driver = self._driver
        if not claim.force and not await self._checkpoint(runtime):
            driver.carry_out(driver.account.restore(claim, driver.now(), hold=True))
            runtime.signal.notify()
            self._end_if_doomed(runtime)
            return
        error = runtime.doom or Evicted(f"{runtime.key} was evicted: {claim.reason.value}")
        fenced, effects = driver.account.commit(claim, driver.now())
        moved_on = runtime.mailbox.close() if fenced else []
        if fenced:
            self._turns.stop(runtime, error)
        driver.carry_out(effects)
        runtime.signal.notify()
        if not fenced:
            self._end_if_doomed(runtime)
            return
        try:
            self._hand_over(runtime, moved_on)
            tell_connections(runtime, f"{runtime.key} is being evicted: {claim.reason.value}")
            await self._deactivate(runtime, claim)
        except Exception as fault:
            host_failed("an eviction", fault)
        finally:
            del driver.runtimes[runtime.number]
            runtime.signal.notify()
            driver.carry_out(driver.account.stopped(runtime.key, runtime.number, driver.now()))

    def _end_if_doomed(self, runtime: Runtime) -> None:
        """A claim was given up, but this life must end all the same."""
        if runtime.doom is not None and runtime.number in self._driver.runtimes:
            self._driver.end(runtime)

    def _hand_over(self, runtime: Runtime, waiting: list[Envelope]) -> None:
        """What waited in a mailbox that closed goes to the next life, ahead of what comes later;
        unless the agent was deleted: then there is none."""
        for envelope in waiting:
            envelope.lease = None  # the fence ended it
            try:
                self._hand_on(runtime, envelope)
            except Exception as fault:  # a defect; the others, and what still runs, go their way
                error = host_failed("a hand-over", fault)
                if envelope.stage is Stage.QUEUED:
                    self._turns.settle(envelope, None, error)
                else:
                    self._turns.withdraw(envelope, error)

    def _hand_on(self, runtime: Runtime, envelope: Envelope) -> None:
        if isinstance(runtime.doom, AgentDeleted):
            self._turns.settle(envelope, None, runtime.doom)
        elif envelope.kept and self._driver.account.draining:  # the store keeps it
            self._turns.settle(envelope, None, Draining(explain.DRAINING))
        else:
            envelope.wait_again()
            self._turns.submit(envelope, accepted=True)

    async def _checkpoint(self, runtime: Runtime) -> bool:
        """Save what changed outside of turns. False if that failed, or took too long."""
        try:
            task = self._child(self._save(runtime), f"checkpoint {runtime.id}")
            return await self._within(self._limits.stop_timeout, task) and task.result()
        except Exception as fault:
            host_failed("a checkpoint", fault)
            return False

    async def _save(self, runtime: Runtime) -> bool:
        try:
            await runtime.checkpoint(self._store, self._limits.max_state_bytes)
        except InnkeeperError as error:
            log.error("the state of %s could not be saved: %s", runtime.key, error.reason)
            if isinstance(error, StoreUnavailable):
                return False  # it is tried again
            # It never can be: what was done to it outside of turns is undone, as a turn's is that
            # fails. To keep its agent for it would only put the loss off.
            self._turns.undo(runtime, error)
            if not isinstance(error, AgentDeleted):
                self._lost(runtime, error.reason)
        return runtime.doom is None

    def _lost(self, runtime: Runtime, why: str) -> None:
        self.lost_total += 1
        log.error("what %s did to its state since its last commit is lost: %s", runtime.key, why)

    async def _deactivate(self, runtime: Runtime, claim: Claim) -> None:
        """Everything after the fence. Returns when nothing of this life runs any more."""
        limit = self._limits.stop_timeout
        running: list[asyncio.Task[Any]] = [runtime.task] if runtime.task is not None else []
        quiet = await self._within(limit, *running)
        if quiet:  # its hook never runs beside its turn
            running += await self._stop_in_time(runtime, claim.reason)
        running += self._cancel_jobs(runtime)
        if not await self._within(limit, *running):
            driver = self._driver
            driver.carry_out(driver.account.overrun(runtime.key, runtime.number, driver.now()))
            log.error("%s did not stop in time; its slot stays charged until it does", runtime)
            self._turns.abandon(runtime)
            runtime.signal.notify()
            driver.overdue()
            await asyncio.wait(running)
            return  # its state may be half-way through anything: the last commit is what counts
        if runtime.doom is None:
            save = self._child(self._save(runtime), f"last save {runtime.id}")
            if not await self._within(limit, save):
                self._lost(runtime, f"its last save took longer than {limit:g} s")
            elif not save.result() and runtime.doom is None:
                self._lost(runtime, StoreUnavailable.reason)

    async def _stop_in_time(self, runtime: Runtime, reason: ClaimReason) -> list[asyncio.Task[Any]]:
        """Run `on_stop`, and cancel it when its time is over; return its task, perhaps not done."""
        hook = self._child(self._stop_hook(runtime, reason), f"stop {runtime.id}")
        if not await self._within(self._limits.stop_timeout, hook):
            log.error("on_stop of %s took too long and was cancelled", runtime.key)
            hook.cancel()
        return [hook]

    async def _stop_hook(self, runtime: Runtime, reason: ClaimReason) -> None:
        try:
            await runtime.type.stop(runtime.instance, reason.value)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as fault:
            handler_failed(runtime.key, "on_stop", fault)

    def _cancel_jobs(self, runtime: Runtime) -> list[asyncio.Task[Any]]:
        jobs = list(runtime.jobs or ())
        for job in jobs:
            job.cancel()
        return jobs

    def _discard(self, runtime: Runtime) -> None:
        """A runtime without a slot: a defect. It ends without touching the account."""
        if not runtime.mailbox.closed:
            for envelope in runtime.mailbox.close():
                self._turns.settle(envelope, None, Evicted(f"{runtime.key} was discarded"))
            self._turns.stop(runtime, Evicted(f"{runtime.key} was discarded"))
            self._driver.own(self._end_discarded(runtime), f"discard {runtime.id}")

    async def _end_discarded(self, runtime: Runtime) -> None:
        running = self._cancel_jobs(runtime)
        if runtime.task is not None:
            running.append(runtime.task)
        if running:
            await asyncio.wait(running)
        self._driver.runtimes.pop(runtime.number, None)

    # -- waiting --------------------------------------------------------------------------------

    def _child(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        context = self._driver.context.copy()
        return asyncio.get_running_loop().create_task(work, name=name, context=context)

    async def _within(self, seconds: float, *tasks: asyncio.Task[Any]) -> bool:
        """Whether all have ended, at the latest after so many seconds. Never raises for them."""
        if not tasks:
            return True
        _, pending = await asyncio.wait(tasks, timeout=seconds)
        return not pending
