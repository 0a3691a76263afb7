"""Follow-ups: accepted when the store has them, and run until they have ended.

Owns the way from a message to its receipt, and from the store to a mailbox:

    accept ──▶ the store ──▶ live (an envelope in memory) ──▶ ended
                  │    ▲                                        │
                  └────┴─ behind: waits its turn in the store ◀─┘ tried again later

At most `backlog` are live; the others wait in the store, and are taken from it oldest first as
live ones end. So a host that starts finds what its predecessor had accepted, and takes it up at the
pace at which it can run it. The effect of a follow-up and its end are committed together.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import replace

from innkeeper_server.content import Content
from innkeeper_server.driver import Driver
from innkeeper_server.errors import (
    AgentDeleted,
    AgentError,
    DeadLettered,
    DeadlineExceeded,
    Draining,
    Evicted,
    HandlerFailed,
    InnkeeperError,
    InvalidRequest,
    MailboxFull,
    NoHandler,
    StoreUnavailable,
    TooLarge,
    UnknownAgentType,
    WorkCancelled,
)
from innkeeper_server.identity import AgentKey
from innkeeper_server.letters import Letter, read_message, write_error, write_message
from innkeeper_server.limits import Limits
from innkeeper_server.live import Live
from innkeeper_server.mailbox import Call, Envelope, Stage
from innkeeper_server.receipts import Receipts
from innkeeper_server.registry import Registry
from innkeeper_server.repeats import fingerprint, mismatch
from innkeeper_server.resting import Resting
from innkeeper_server.runtime import Runtime
from innkeeper_server.signals import Signal
from innkeeper_server.slots import LeaseKind
from innkeeper_server.store import Followup, Settled, Store
from innkeeper_server.turns import Turns

__all__ = ["Followups"]

FIRST_PAUSE = 1.0  # seconds before the second attempt; each further pause is twice as long
LONGEST_PAUSE = 60.0
PASSIVE_AT_ONCE = 100

log = logging.getLogger("innkeeper.host")


class Followups:
    """See the module. `clock` tells the world's time, in seconds of Unix time."""

    def __init__(
        self,
        driver: Driver,
        turns: Turns,
        registry: Registry,
        store: Store,
        limits: Limits,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._driver = driver
        self._turns = turns
        self._registry = registry
        self._store = store
        self._limits = limits
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._live: dict[str, Live] = {}
        self.newest = 0  # the highest seq that was met here
        self._behind: int | None = None  # the store may have more behind this seq
        self._taking: asyncio.Task[None] | None = None
        self.receipts = Receipts(store, self._runs)
        turns.on_passive = self._wake_passive
        self._resting = Resting(self.read_on)
        self._closed = False
        self._closing = Signal()

    # -- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Take up what was accepted before."""
        self.read_on(0)

    def go_on(self) -> None:
        """Take up what is left in the store: the host takes work again."""
        self._catch_up()

    def close(self) -> None:
        """Begin nothing more. What has not ended is the next host's to run."""
        self._closed = True
        self._closing.notify()
        self._resting.close()
        for live in self._live.values():
            if live.timer is not None:
                live.timer.cancel()

    # -- acceptance -----------------------------------------------------------------------------

    def accept(
        self,
        key: AgentKey,
        message: Content,
        call: Call,
        expires_at: float | None,
        idempotency_key: str = "",
        passive: bool = False,
    ) -> Envelope:
        """Have the store take a message. The envelope's `accepted` tells how that went, its
        `outcome` how the work did. `expires_at` is in seconds of Unix time."""
        record = Followup(
            id=secrets.token_hex(10),
            key=key,
            message=write_message(message, call),
            accepted_at=self._clock(),
            expires_at=expires_at,
            passive=passive,
            idempotency_key=idempotency_key,
            fingerprint=fingerprint("followup", "", message) if idempotency_key else b"",
        )
        envelope = self._envelope(record, Letter(message, call))
        if self._is_full(key):
            raise MailboxFull(
                f"the mailbox of {key} is full: {self._limits.mailbox_size} wait already",
                metadata={"agent": str(key), "limit": str(self._limits.mailbox_size)},
            )
        self._driver.own(self._accept(record, envelope), f"accept {record.id}")
        return envelope

    async def _accept(self, record: Followup, envelope: Envelope) -> None:
        newest = self.newest
        try:
            kept = await self._store.accept(record)
        except InnkeeperError as error:
            self._turns.settle(envelope, None, error)
            self.read_on(newest)  # where the outcome is unknown, it may have been kept
            return
        if kept.id != record.id:
            self._answer_again(kept, record, envelope)
            return
        envelope.kept = True
        envelope.notify()
        if kept.passive:
            runtime = self._driver.find(kept.key)
            if runtime is not None:  # else its next life finds it
                runtime.has_passive = True
        elif self._must_wait():
            self.read_on(kept.seq - 1)
        else:
            self._run(Live(self, kept), envelope)

    def take(self, kept: Followup) -> None:
        """Run one that the store has accepted without this door: an alarm that fired."""
        if self._must_wait():
            self.read_on(kept.seq - 1)
        else:
            self._take_up(kept)

    def _answer_again(self, kept: Followup, record: Followup, envelope: Envelope) -> None:
        """There is one with the same key: its receipt is the answer, if it is the same one."""
        if kept.fingerprint != record.fingerprint:
            self._turns.settle(envelope, None, mismatch(record.key))
            return
        envelope.id = kept.id
        envelope.kept = envelope.replayed = True
        envelope.notify()

    def _is_full(self, key: AgentKey) -> bool:
        runtime = self._driver.find(key)
        return runtime is not None and len(runtime.mailbox) >= self._limits.mailbox_size

    def _must_wait(self) -> bool:
        """Whether others are to be taken from the store first."""
        return self._behind is not None or self._taking is not None or not self._has_room()

    def _has_room(self) -> bool:
        return len(self._live) < self._limits.backlog and not self._is_shut()

    def _is_shut(self) -> bool:
        return self._closed or self._driver.account.draining

    # -- from the store -------------------------------------------------------------------------

    def read_on(self, seq: int) -> None:
        """The store has more, behind that seq."""
        self._behind = seq if self._behind is None else min(self._behind, seq)
        self._catch_up()

    def _catch_up(self) -> None:
        if self._behind is not None and self._taking is None and self._has_room():
            self._taking = self._driver.own(self._take(), "take up follow-ups")

    async def _take(self) -> None:
        try:
            while self._behind is not None and self._has_room():
                room = self._limits.backlog - len(self._live)
                after, self._behind = self._behind, None  # who falls behind from here on, says so
                try:
                    page = await self._store.pending(after=after, limit=room)
                except StoreUnavailable as error:
                    log.warning("follow-ups cannot be read: %s", error)
                    self.read_on(after)
                    await self._closing.wait(FIRST_PAUSE)
                    continue
                for record in page:
                    self._take_up(record)
                if len(page) == room:
                    self.read_on(page[-1].seq)
        finally:
            self._taking = None

    def _take_up(self, record: Followup) -> None:
        if self._is_shut():  # it is taken up once the host takes work again
            self.read_on(record.seq - 1)
            return
        self.newest = max(self.newest, record.seq)
        if record.id in self._live:
            return
        live = Live(self, record)
        if (envelope := self._read(live)) is not None:
            self._run(live, envelope)

    def _read(self, live: Live) -> Envelope | None:
        """An envelope for a follow-up that was read from the store; None if nobody takes it."""
        record = live.record
        try:
            envelope = self._envelope(record, read_message(record.message))
        except UnknownAgentType:
            log.warning("follow-up %s waits for a host that serves %s", record.id, record.key.type)
        except (InvalidRequest, NoHandler) as error:  # the agent's code takes it no more
            self._live[record.id] = live
            self._end(live, "failed", error)
        else:
            envelope.kept = True
            return envelope
        return None

    def _envelope(self, record: Followup, letter: Letter) -> Envelope:
        key = record.key
        work = self._registry.resolve(key.type).bind_followup(letter.message)
        # Its sender waits for acceptance only, so the sender's deadline and chain end there.
        call = letter.call._replace(deadline=None, chain=())
        kind = ("alarm", LeaseKind.TIMER) if letter.alarm else ("followup", LeaseKind.ENVELOPE)
        expires_at = record.expires_at
        if expires_at is not None:
            expires_at = self._loop.time() + expires_at - self._clock()
        return Envelope(record.id, key, work, call, *kind, expires_at=expires_at)

    def _run(self, live: Live, envelope: Envelope) -> None:
        self.newest = max(self.newest, live.record.seq)
        self._live[live.record.id] = live
        live.envelope = envelope
        live.has_begun = False
        envelope.durable = live
        if not live.record.passive:
            self._turns.submit(envelope, accepted=True)
        elif not self._turns.enter(envelope):  # it wakes nobody
            del self._live[live.record.id]

    # -- passive ones: they wait in the store for their agent's next turn --------------------------

    def _wake_passive(self, runtime: Runtime) -> None:
        """Their agent has work, so they come behind it."""
        self._driver.own(self._take_passive(runtime), f"passive follow-ups of {runtime.id}")

    async def _take_passive(self, runtime: Runtime) -> None:
        try:
            page = await self._store.passive(runtime.key, limit=PASSIVE_AT_ONCE)
        except StoreUnavailable as error:
            log.warning("passive follow-ups of %s cannot be read: %s", runtime.key, error)
            runtime.has_passive = True
            return
        runtime.has_passive |= len(page) == PASSIVE_AT_ONCE
        for record in page:
            if record.id not in self._live and not self._is_shut():
                live = Live(self, record)
                if (envelope := self._read(live)) is not None:
                    self._run(live, envelope)

    # -- attempts -------------------------------------------------------------------------------

    async def begin(self, live: Live) -> None:
        """Count an attempt before it is made, so that one which ends the process counts too."""
        attempt = await self._store.begin(live.record.id)
        if attempt == 0:
            raise WorkCancelled("the follow-up has ended already")
        live.record = replace(live.record, attempt=attempt, started_at=self._clock())
        if attempt > self._limits.max_attempts:
            raise DeadLettered(f"it was begun {attempt - 1} times, and never ended")
        live.has_begun = True

    def ended(self, live: Live, error: InnkeeperError | None) -> None:
        """Its envelope has settled: it has ended for good, or is tried again, or is left in the
        store for whoever comes next."""
        if error is None or isinstance(error, AgentDeleted):  # the store knows already
            self._forget(live)
        elif isinstance(error, WorkCancelled):
            self._end(live, "cancelled", error)
        elif isinstance(error, DeadLettered):
            self._end(live, "dead_lettered", error)
        elif isinstance(error, DeadlineExceeded) and not live.has_begun:
            self._end(live, "expired", error)
        elif isinstance(error, AgentError) and live.has_begun:
            self._end(live, "failed", error)
        elif isinstance(error, HandlerFailed | DeadlineExceeded | TooLarge) and live.has_begun:
            if live.record.attempt >= self._limits.max_attempts:
                self._end(live, "dead_lettered", error)
            else:
                self._try_again(live, error)
        else:  # not its own fault
            self._try_again(live, error, counts=False)

    def _try_again(self, live: Live, error: InnkeeperError, *, counts: bool = True) -> None:
        if live.has_begun and not counts and isinstance(error, Evicted | Draining):
            self._driver.own(self._give_back(live.record.id), f"give back {live.record.id}")
        if self._is_shut():
            del self._live[live.record.id]
            self.read_on(live.record.seq - 1)
            return
        key = live.record.key
        if left := self._driver.quarantine.left(key, self._driver.now()):
            del self._live[live.record.id]
            self._resting.put(key, live.record.seq, left)
            return
        pause = min(FIRST_PAUSE * 2**live.tries, LONGEST_PAUSE)
        live.tries += 1
        log.warning(
            "follow-up %s of %s came to nothing (%s); again in %g s",
            live.record.id,
            key,
            error.reason,
            pause,
        )
        live.timer = self._loop.call_later(pause, self._again, live)

    def _again(self, live: Live) -> None:
        live.timer = None
        before = live.envelope
        assert before is not None
        if self._is_shut():
            del self._live[live.record.id]
            self.read_on(live.record.seq - 1)
            return
        self._run(live, before.anew())

    async def _give_back(self, id: str) -> None:
        try:
            await self._store.give_back(id)
        except StoreUnavailable as error:
            log.warning("an attempt of %s counts though it was cut: %s", id, error)

    # -- the end --------------------------------------------------------------------------------

    def _end(self, live: Live, state: str, error: InnkeeperError) -> None:
        """For good; it is live until the store knows, so that nobody takes it up again."""
        if state != "cancelled":
            level = logging.ERROR if state == "dead_lettered" else logging.WARNING
            log.log(level, "follow-up %s of %s: %s", live.record.id, live.record.key, state)
        settled = Settled(live.record.id, state, write_error(error))  # type: ignore[arg-type]
        self._driver.own(self._settle(live, settled), f"settle {live.record.id}")

    async def _settle(self, live: Live, settled: Settled) -> None:
        pause = FIRST_PAUSE
        while not self._closed:
            try:
                await self._store.settle(settled)
            except StoreUnavailable as error:
                log.warning("the end of %s cannot be kept: %s", settled.id, error)
                await self._closing.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                self._forget(live)
                return

    def _forget(self, live: Live) -> None:
        self._live.pop(live.record.id, None)
        self.receipts.ended(live.record.id)
        self._catch_up()

    def _runs(self, id: str) -> bool:
        live = self._live.get(id)
        envelope = live.envelope if live is not None else None
        return envelope is not None and envelope.stage is Stage.ACTIVE
