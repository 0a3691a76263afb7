"""From an envelope to its outcome: acceptance, the turn, the commit, settlement.

Owns the rule that one turn is one transaction: what the handler did to the state is committed when
it returns, before anybody hears of it; otherwise the state is the last committed one. And the rule
that everything accepted settles once: the lease that came with the grant travels with the envelope
and is released by `settle`, in the same block.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
from collections.abc import Callable

from innkeeper_server.agent import Turn, current_turn
from innkeeper_server.calls import CallGraph
from innkeeper_server.content import Content
from innkeeper_server.driver import Driver
from innkeeper_server.ends import absorb_cancellation, end, meaning, status, terminal
from innkeeper_server.errors import (
    AgentDeleted,
    DeadlineExceeded,
    InnkeeperError,
    StaleEpoch,
    VersionMismatch,
)
from innkeeper_server.events import Completed
from innkeeper_server.faults import handler_failed, host_failed
from innkeeper_server.journal import Journal
from innkeeper_server.limits import Limits
from innkeeper_server.mailbox import Envelope, Stage
from innkeeper_server.patience import Patience
from innkeeper_server.runtime import Runtime
from innkeeper_server.slots import Lease
from innkeeper_server.store import AlarmChanges, Chunk, Store

log = logging.getLogger("innkeeper.host")


class _Visit:
    """An envelope waiting for residency."""

    __slots__ = ("envelope", "turns")

    def __init__(self, turns: Turns, envelope: Envelope) -> None:
        self.turns = turns
        self.envelope = envelope

    def granted(self, lease: Lease) -> None:
        self.turns.accept(self.envelope, lease)

    def refused(self, error: InnkeeperError) -> None:
        self.turns.settle(self.envelope, None, error)


class Turns:
    """See the module."""

    def __init__(
        self,
        driver: Driver,
        store: Store,
        calls: CallGraph,
        limits: Limits,
        journal: Journal | None = None,
    ) -> None:
        self._driver = driver
        self._store = store
        self._calls = calls
        self._limits = limits
        self._journal = journal
        if journal is not None:
            journal.on_fault = self._unlogged
        self._numbers = itertools.count(1)  # of envelopes, by their submission
        # Told when a runtime with passive follow-ups has other work; set once.
        self.on_passive: Callable[[Runtime], None]
        # Told of the alarms that a turn has set; set once.
        self.on_alarms: Callable[[AlarmChanges], None]
        self._loop = asyncio.get_running_loop()
        # Every turn starts from this context, so that none inherits another's variables.
        self._context = contextvars.copy_context()
        # Of turns that run, and of turns that were told to stop.
        self._running: Patience[Envelope] = Patience(limits.turn_timeout, self._overstay)
        self._stopping: Patience[Envelope] = Patience(limits.stop_timeout, self._ignored)

    # -- acceptance -----------------------------------------------------------------------------

    def submit(self, envelope: Envelope, *, accepted: bool = False) -> None:
        """Have it accepted now, or stand in line, or settle with the refusal. Never waits.

        `accepted`: an earlier life had accepted it already. It waits for the next one as long as
        its caller does.
        """
        driver = self._driver
        now = driver.now()
        owner = envelope.call.request_id or envelope.id
        envelope.order = envelope.order or next(self._numbers)
        if envelope.outbox is not None and self._journal is not None:
            self._journal.begun(envelope.id)
        lease = driver.account.lease(envelope.agent, envelope.lease_kind, owner, now)
        if lease is not None:
            self.accept(envelope, lease)
            return
        if (refusal := driver.quarantine.refusal(envelope.agent, now)) is not None:
            self.settle(envelope, None, refusal)
            return
        envelope.ticket, effects = driver.account.request(
            envelope.agent,
            envelope.lease_kind,
            now,
            owner=owner,
            deadline=_soonest(envelope.call.deadline, envelope.expires_at),
            order=envelope.order,
            accepted=accepted,
            visitor=_Visit(self, envelope),
        )
        driver.carry_out(effects)

    def enter(self, envelope: Envelope) -> bool:
        """Have it accepted if its agent is here and stays; False if not, and then nothing is
        done for it."""
        owner = envelope.call.request_id or envelope.id
        now = self._driver.now()
        lease = self._driver.account.lease(envelope.agent, envelope.lease_kind, owner, now)
        if lease is not None:
            self.accept(envelope, lease)
        return lease is not None

    def accept(self, envelope: Envelope, lease: Lease) -> None:
        """Into the mailbox, in the block that leased the runtime."""
        assert lease.slot is not None, "a grant that had ended"
        runtime = self._driver.runtimes[lease.slot.runtime_id]
        envelope.ticket = None
        envelope.lease = lease
        try:
            first = runtime.mailbox.put(envelope, hold=runtime.doom is not None)
        except InnkeeperError as refusal:
            self.settle(envelope, None, refusal)
            return
        envelope.runtime_id = runtime.id
        envelope.notify()
        if runtime.has_passive:
            runtime.has_passive = False
            self.on_passive(runtime)
        if first:
            self._begin(runtime, envelope)

    def settle(self, envelope: Envelope, output: Content, error: InnkeeperError | None) -> None:
        """End an envelope: outcome, terminal event, lease. The one place where it happens."""
        lease, envelope.lease = envelope.lease, None
        self._tell(envelope, output, error)
        if lease is not None:
            self._driver.release(lease)

    def _tell(self, envelope: Envelope, output: Content, error: InnkeeperError | None) -> None:
        """The outcome, to whoever waits for it."""
        envelope.ticket = None
        envelope.settle(output, error)
        if envelope.call.chain:
            self._end_call(envelope)
        if envelope.outbox is not None:
            envelope.outbox.put(terminal(envelope, output, error))
            if self._journal is not None:
                self._journal.ended(envelope.agent, envelope.id)
        if envelope.durable is not None:
            envelope.durable.ended(output, error)

    def start_ended(self, runtime: Runtime) -> None:
        """Nobody waits for the calls that an `on_start` left behind."""
        self._calls.turn_ended(runtime.key)

    def _end_call(self, envelope: Envelope) -> None:
        if envelope.call.chain:
            self._calls.end(envelope.call.chain[-1], envelope.id)

    # -- stopping -------------------------------------------------------------------------------

    def withdraw(self, envelope: Envelope, error: InnkeeperError) -> bool:
        """End an envelope that has not begun; False if it has."""
        if envelope.stage is Stage.WAITING:
            ticket = envelope.ticket
            self.settle(envelope, None, error)
            if ticket is not None:
                self._driver.carry_out(self._driver.account.cancel(ticket, self._driver.now()))
            return True
        if envelope.stage is Stage.QUEUED:
            runtime = self._runtime_of(envelope)
            runtime.mailbox.remove(envelope)
            self.settle(envelope, None, error)
            return True
        return False

    def stop(self, runtime: Runtime, error: InnkeeperError) -> bool:
        """Tell the active turn to stop; False if there is none or it is being committed."""
        envelope = runtime.mailbox.active
        if envelope is None or envelope.committing:
            return False
        if envelope.stop is None:
            envelope.stop = error
            self._stopping.begin(envelope)
            if envelope.turn is not None:
                envelope.turn.cancel_requested = error.message
                _cancel(runtime)
        return True

    def abandon(self, runtime: Runtime) -> None:
        """Settle a turn that was told to stop and does not: its caller waits no longer. The code
        runs on, and nothing of what it does is kept; until it ends, it owns its runtime as before,
        where that has not been fenced."""
        envelope = runtime.mailbox.active
        if envelope is None or envelope.stop is None or envelope.committing:
            return
        if envelope.stage is not Stage.SETTLED:
            self._tell(envelope, None, envelope.stop)

    def _overstay(self, envelope: Envelope) -> None:
        limit = self._limits.turn_timeout
        runtime = self._driver.find(envelope.agent)
        if runtime is not None and runtime.mailbox.active is envelope:
            self.stop(runtime, DeadlineExceeded(f"the turn took longer than {limit:g} s"))

    def _ignored(self, envelope: Envelope) -> None:
        """It was told to stop a while ago, and goes on: it is told again, and abandoned."""
        runtime = self._driver.find(envelope.agent)
        if runtime is None or runtime.mailbox.active is not envelope or envelope.committing:
            return
        log.error("%s of %s was told to stop and goes on", envelope.id, runtime.key)
        self.abandon(runtime)
        self._stopping.begin(envelope)
        if envelope.turn is not None:
            _cancel(runtime)

    def _unlogged(self, turn: Turn, error: InnkeeperError) -> None:
        """What a turn said could not be logged, so it must not go on."""
        runtime = self._driver.find(turn.key)
        active = None if runtime is None else runtime.mailbox.active
        if runtime is not None and active is not None and active.turn is turn:
            self.stop(runtime, error)

    def _runtime_of(self, envelope: Envelope) -> Runtime:
        assert envelope.lease is not None, f"{envelope} has no lease"
        assert envelope.lease.slot is not None, f"{envelope} outlived its runtime"
        return self._driver.runtimes[envelope.lease.slot.runtime_id]

    # -- turns ----------------------------------------------------------------------------------

    def go_on(self, runtime: Runtime) -> None:
        """Begin the next turn, if none runs; skip what came too late. A doomed runtime begins
        nothing: what waits goes to the next life."""
        mailbox = runtime.mailbox
        if runtime.doom is not None:
            return
        while mailbox.active is None and (envelope := mailbox.take()) is not None:
            self._begin(runtime, envelope)

    def _begin(self, runtime: Runtime, envelope: Envelope) -> None:
        """The turn of what has just become active, unless it is too late for it."""
        now = self._driver.now()
        deadline, expires_at = envelope.call.deadline, envelope.expires_at
        if (deadline is None or now < deadline) and (expires_at is None or now < expires_at):
            runtime.turn_started = now
            self._running.begin(envelope)
            runtime.task = self._loop.create_task(
                self._run(runtime, envelope), name=envelope.id, context=self._context.copy()
            )
        else:
            runtime.mailbox.active = None
            late = f"{envelope.kind} waited in the mailbox beyond its deadline"
            self.settle(envelope, None, DeadlineExceeded(late))

    async def _run(self, runtime: Runtime, envelope: Envelope) -> None:
        """One turn, in a task of its own. Ends in one synchronous block."""
        output: Content = None
        error: InnkeeperError | None = None
        try:
            output = await self._transact(runtime, envelope)
        except InnkeeperError as failure:
            error = failure
        except GeneratorExit:
            raise  # the loop is gone
        except BaseException as fault:
            error = host_failed("a turn", fault)
        if error is not None and envelope.turn is not None and envelope.turn.log is not None:
            await envelope.turn.log.failed(end(output, error), error)
        runtime.task = None
        runtime.mailbox.active = None
        runtime.last_status = "completed" if error is None else status(error)
        self._running.end(envelope)
        if envelope.stop is not None:
            self._stopping.end(envelope)
        self._calls.turn_ended(runtime.key)
        if runtime.doom is not None:
            self._driver.end(runtime)
        if envelope.stage is not Stage.SETTLED:
            self.settle(envelope, output, error)
        elif envelope.lease is not None:  # it was abandoned, and has ended now
            lease, envelope.lease = envelope.lease, None
            self._driver.release(lease)
        if not runtime.mailbox.is_empty:
            self.go_on(runtime)

    async def _transact(self, runtime: Runtime, envelope: Envelope) -> Content:
        if runtime.saving is not None:  # a checkpoint: were it to end later, a roll-back would
            await runtime.no_save()  # undo it
        expected = envelope.expected_version
        if expected is not None and expected != runtime.version:
            raise VersionMismatch(
                f"{runtime.key} has version {runtime.version}, not {expected}",
                metadata={"version": str(runtime.version)},
            )
        durable = envelope.durable
        try:
            if durable is not None:
                await durable.begin()
            output = await self._handle(runtime, envelope)
            envelope.committing = True
            state = runtime.changed(self._limits.max_state_bytes)
            turn = envelope.turn
            assert turn is not None, "an output without a turn"
            events: Chunk | None = None
            if turn.log is not None:
                events = await turn.log.rest(Completed(output))
            settled = None if durable is None else durable.completed(output)
            alarms = turn.alarms
            if state is not None or settled is not None or events is not None or alarms is not None:
                await runtime.write(self._store, state, settled, events, alarms)
            if turn.log is not None:
                turn.log.told()
            if alarms is not None:
                self.on_alarms(alarms)
        except InnkeeperError as error:
            self.undo(runtime, error)
            raise
        return output

    def undo(self, runtime: Runtime, error: InnkeeperError) -> None:
        """Back to the last committed state; where that cannot be, this life is over."""
        if isinstance(error, StaleEpoch | AgentDeleted) and not error.metadata.get("through"):
            runtime.doom = error
        try:
            runtime.roll_back()
        except Exception as fault:
            runtime.doom = runtime.doom or handler_failed(runtime.key, "its state", fault)

    async def _handle(self, runtime: Runtime, envelope: Envelope) -> Content:
        if envelope.stop is not None:
            raise envelope.stop  # stopped before its first step
        call = envelope.call
        turn = envelope.turn = Turn(
            envelope.id,
            envelope.kind,
            runtime.key,
            runtime.epoch,
            call.principal,
            call.request_id,
            call.deadline,
            call.metadata,
            (*call.chain, runtime.key),
            envelope.outbox,
            self._loop,
            self._journal,
        )
        if envelope.outbox is not None and self._journal is not None:
            turn.log = self._journal.open(turn)
        current_turn.set(turn)
        try:
            output = await envelope.work.run(runtime.instance, turn)
        except GeneratorExit:
            raise
        except BaseException as fault:
            envelope.committing = True
            error = envelope.stop or meaning(runtime, envelope, fault)
            await absorb_cancellation(runtime.task)
            raise error from None
        envelope.committing = True  # beyond stopping
        if envelope.stop is not None:  # it returned in spite of it: nothing is kept all the same
            await absorb_cancellation(runtime.task)
            raise envelope.stop
        return output


def _cancel(runtime: Runtime) -> None:
    assert runtime.task is not None, "a turn without a task"
    runtime.task.cancel()


def _soonest(deadline: float | None, expires_at: float | None) -> float:
    infinity = float("inf")
    return min(
        infinity if deadline is None else deadline,
        infinity if expires_at is None else expires_at,
    )
