"""The host: one `submit` for every ingress, and the doors to everything else.

Owns how the parts are put together, and the validation that comes before admission: nothing is
leased, loaded or evicted for a request that is wrong.

    account ← driver ← turns ← lives        decides / carries out / runs / begins and ends
                 ↑ operators, drain          look and steer
    host = ingress over these
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from innkeeper_server import explain
from innkeeper_server.alarms import Alarms
from innkeeper_server.calls import CallGraph
from innkeeper_server.cancelling import CancelledWork, CancelScope, cancel_work
from innkeeper_server.content import Content, JsonValue
from innkeeper_server.drain import Drain, DrainStep
from innkeeper_server.driver import Driver
from innkeeper_server.errors import AgentDeleted, AgentNotFound, Draining, NoHandler, WorkCancelled
from innkeeper_server.events import Outbox
from innkeeper_server.following import Following
from innkeeper_server.followups import Followups
from innkeeper_server.forgetting import Forgetting
from innkeeper_server.identity import AgentKey, check_id, check_key
from innkeeper_server.journal import Journal
from innkeeper_server.limits import Limits
from innkeeper_server.lives import Lives
from innkeeper_server.mailbox import BusyPolicy, Call, Envelope, OnDisconnect, Stage
from innkeeper_server.nested import NestedAgent
from innkeeper_server.operators import Operators
from innkeeper_server.quarantine import Quarantine
from innkeeper_server.registry import AgentType, Registry
from innkeeper_server.repeats import Repeats, fingerprint
from innkeeper_server.residency import Account
from innkeeper_server.runtime import Runtime
from innkeeper_server.slots import LeaseKind
from innkeeper_server.store import Record, Store
from innkeeper_server.turns import Turns
from innkeeper_server.visits import Connection, spawn_job
from innkeeper_server.work import Work


@dataclass(frozen=True, slots=True)
class AgentView:
    """One agent of the catalog: what the store has, and its runtime here if it has one."""

    record: Record
    runtime: Runtime | None


class Host:
    """Hosts agents. Make it inside a running loop; `start` before use, `close` after.

    A key that is passed in must have been checked (`identity.check_id`); types are checked here.
    """

    def __init__(
        self,
        registry: Registry,
        store: Store,
        limits: Limits | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.registry = registry
        self.store = store
        self.limits = limits or Limits()
        self.id = secrets.token_hex(4)
        self.account = Account(
            capacity=self.limits.capacity,
            idle_timeout=self.limits.idle_timeout,
            admission_timeout=self.limits.admission_timeout,
            max_waiting=self.limits.max_waiting,
            eviction_time=4 * self.limits.stop_timeout,
        )
        self.calls = CallGraph()
        self.driver = Driver(self.account, self.id, Quarantine(self.limits.start_attempts))
        journal = Journal(self.driver, store) if self.limits.event_log else None
        self.turns = Turns(self.driver, store, self.calls, self.limits, journal)
        self.following = Following(self.driver, journal, store) if journal else None
        self.lives = Lives(self.driver, self.turns, registry, store, self.limits, self)
        self.operators = Operators(self.driver, self.limits)
        self.drains = Drain(self.driver, self.operators, self.limits)
        self.followups = Followups(self.driver, self.turns, registry, store, self.limits, clock)
        self.alarm_clock = Alarms(self.driver, self.turns, self.followups, registry, store, clock)
        self.repeats = Repeats(self.driver, self.turns, store)
        self.forgetting = Forgetting(self.driver, store, self.limits, clock)
        self.drains.listeners.append(self._on_draining)
        self._numbers = itertools.count(1)

    async def start(self) -> None:
        """Open the store, and take up the follow-ups and the alarms that were accepted before."""
        await self.store.open()
        self.followups.start()
        self.alarm_clock.start()
        self.forgetting.start()

    def _on_draining(self, begins: bool) -> None:
        if not begins:
            self.followups.go_on()
            self.alarm_clock.start()

    async def close(self) -> bool:
        """Take no more, cut what still runs, close the store; True if nothing had to be cut.

        Bounded by the stop timeout. For a gentle end, `drain` first.
        """
        if self.drains.report is None:  # else the wait for what cannot be cut is over already
            async for _ in self.drains.run(0.0):
                pass
        clean = self.drains.report is not None and self.drains.report.clean
        self.alarm_clock.close()
        self.followups.close()
        self.forgetting.close()
        clean = await self.driver.finish_tasks(self.limits.stop_timeout) and clean
        self.driver.close()
        await self.store.close()
        return clean

    def now(self) -> float:
        """The host's clock: monotonic seconds."""
        return self.driver.now()

    @property
    def draining(self) -> bool:
        """True while nothing new is taken."""
        return self.account.draining

    # -- ingress --------------------------------------------------------------------------------

    def invoke(
        self,
        key: AgentKey,
        action: str,
        input: Content,
        call: Call,
        *,
        busy: BusyPolicy = "enqueue",
        idempotency_key: str = "",
    ) -> Envelope:
        """One turn of an action. Raises at once what is wrong with the request itself; anything
        later is the envelope's outcome. With an `idempotency_key`, see `repeats.py`."""
        key, type = self._address(key)
        work = type.bind_invoke(action, input)
        envelope = Envelope(
            self._next_id(), key, work, call, "invoke", LeaseKind.REQUEST, None, busy
        )
        if not idempotency_key:
            return self.submit(envelope)
        told = fingerprint("invoke", action, input)
        return self.repeats.submit(envelope, check_key(idempotency_key), told)

    def chat(
        self,
        key: AgentKey,
        message: Content,
        call: Call,
        *,
        busy: BusyPolicy = "enqueue",
        on_disconnect: OnDisconnect = "cancel",
        lease_kind: LeaseKind = LeaseKind.CONNECTION,
        idempotency_key: str = "",
    ) -> Envelope:
        """One chat turn; what it says comes out of the envelope's outbox. With an
        `idempotency_key`, see `repeats.py`."""
        key, type = self._address(key)
        envelope = self._envelope(
            key,
            type.bind_chat(message),
            call,
            "chat",
            lease_kind,
            outbox=self._outbox(),
            busy=busy,
            on_disconnect=on_disconnect,
        )
        if not idempotency_key:
            return self.submit(envelope)
        told = fingerprint("chat", "", message)
        return self.repeats.submit(envelope, check_key(idempotency_key), told)

    def message(self, key: AgentKey, message: Content, call: Call) -> Envelope:
        """One message within a conversation; as `chat`, but for the agent's `on_message`."""
        key, type = self._address(key)
        envelope = self._envelope(
            key,
            type.bind_message(message),
            call,
            "message",
            LeaseKind.REQUEST,
            outbox=self._outbox(),
            on_disconnect="cancel",
        )
        return self.submit(envelope)

    def followup(
        self,
        key: AgentKey,
        message: Content,
        call: Call,
        *,
        expires_at: float | None = None,
        idempotency_key: str = "",
        passive: bool = False,
    ) -> Envelope:
        """A message for a later turn. Its acceptance, by the store, is what the caller waits for.
        `expires_at`, in seconds of Unix time: what has not begun by then never will. A `passive`
        one waits for other work of the agent, and runs behind it."""
        key, _ = self._address(key)
        if self.draining and not call.chain:
            raise Draining(explain.DRAINING)
        if idempotency_key:
            check_key(idempotency_key)
        return self.followups.accept(key, message, call, expires_at, idempotency_key, passive)

    def update_state(
        self, key: AgentKey, state: JsonValue, call: Call, *, expected_version: int | None = None
    ) -> Envelope:
        """Replace an agent's state, as a turn of its own."""
        key, type = self._address(key)
        envelope = self._envelope(
            key,
            type.bind_update(state),
            call,
            "update",
            LeaseKind.REQUEST,
            expected_version=expected_version,
        )
        return self.submit(envelope)

    def submit(self, envelope: Envelope) -> Envelope:
        """The one way into a mailbox. Never waits: the envelope is accepted, stands in line, or
        has settled with its refusal. Raises CallCycle, CapacityDeadlock."""
        chain = envelope.call.chain
        if chain:
            self.calls.begin(
                chain[-1],
                envelope.id,
                envelope.agent,
                chain=chain,
                slots=self.account.slots,
                capacity=self.account.capacity,
            )
        self.turns.submit(envelope)
        return envelope

    def connect(
        self, key: AgentKey, call: Call, *, name: str, on_leaving: Callable[[str], None]
    ) -> Connection:
        """Keep an agent resident while a conversation is open."""
        key, _ = self._address(key)
        return Connection(self.driver, key, call, name, on_leaving)

    def caller_left(self, envelope: Envelope) -> None:
        """Nobody waits for this envelope any more. What has not begun is skipped, unless it was
        to go on alone; what runs goes on or is stopped, by its `on_disconnect`. A follow-up needs
        nobody, from the moment it was sent."""
        if envelope.kind == "followup":
            return
        if envelope.outbox is not None:
            envelope.outbox.detach()
        if envelope.stage is Stage.SETTLED:
            return
        if envelope.durable is not None and envelope.durable.is_wanted():
            return  # others wait for it with the same key
        left = WorkCancelled("its caller left")
        goes_on = envelope.on_disconnect == "continue"
        if not (goes_on and envelope.outbox is not None) and self.turns.withdraw(envelope, left):
            return
        if goes_on:
            if envelope.lease is not None:
                envelope.lease.kind = LeaseKind.ENVELOPE
            return
        runtime = self.driver.find(envelope.agent)
        if runtime is not None and runtime.mailbox.active is envelope:
            self.turns.stop(runtime, left)

    def cancel(self, key: AgentKey, scope: CancelScope, id: str = "") -> list[CancelledWork]:
        """Stop work of an agent, at once: it never waits behind the mailbox. `scope` is "turn",
        "queue" or "all"; with `id`, only that piece of work. Returns what was told to stop."""
        key, _ = self._address(key)
        return cancel_work(self.driver, self.turns, key, scope, id)

    # -- catalog --------------------------------------------------------------------------------

    async def get_agent(self, key: AgentKey) -> AgentView:
        """What the store has of an agent, and its runtime. Raises AgentNotFound."""
        key, _ = self._address(key)
        record = await self.store.read(key)
        if record is None:
            raise AgentNotFound(f"there is no agent {key}", metadata={"agent": str(key)})
        return AgentView(record, self.driver.find(key))

    async def list_agents(
        self,
        tenant: str,
        *,
        type: str = "",
        prefix: str = "",
        after: tuple[str, str] | None = None,
        limit: int = 100,
    ) -> list[AgentView]:
        """A page of the catalog, ordered by type and id."""
        records = await self.store.list(tenant, type=type, prefix=prefix, after=after, limit=limit)
        return [AgentView(record, self.driver.find(record.key)) for record in records]

    async def delete_agent(self, key: AgentKey) -> bool:
        """End an identity: the tombstone first, which fences the living writer; then the life.
        Returns when that has ended, or has become a zombie that can write nothing."""
        key, _ = self._address(key)
        deleted = await self.store.delete(key)
        runtime = self.driver.find(key)
        if runtime is not None and deleted:
            runtime.doom = AgentDeleted(f"{key} was deleted", metadata={"agent": str(key)})
            if runtime.loaded:
                self.driver.end(runtime)
            deadline = self.now() + 4 * self.limits.stop_timeout
            while runtime.number in self.driver.runtimes and self.now() < deadline:
                await runtime.signal.wait(deadline - self.now())
        return deleted

    # -- operators ------------------------------------------------------------------------------

    async def drain(
        self, patience: float | None = None, *, dry_run: bool = False
    ) -> AsyncIterator[DrainStep]:
        """Empty the host within `patience` seconds; tells plan, progress and report."""
        if dry_run:
            yield self.drains.plan()
            return
        async for step in self.drains.run(patience):
            yield step

    def undrain(self) -> bool:
        """Take work again."""
        return self.drains.end()

    # -- for agents -----------------------------------------------------------------------------

    def nested(self, runtime: Runtime, type: str, id: str) -> NestedAgent:
        """A handle on another agent of the same tenant, for the code of `runtime`."""
        key, _ = self._address(AgentKey(runtime.key.tenant, type, check_id(id)))
        return NestedAgent(self, runtime, key)

    def nested_invoke(self, key: AgentKey, action: str, input: Content, call: Call) -> Envelope:
        """As `invoke`, from another agent's code."""
        work = self.registry.resolve(key.type).bind_invoke(action, input)
        return self.submit(
            self._envelope(key, work, call, "invoke", LeaseKind.CALL, on_disconnect="cancel")
        )

    def nested_chat(self, key: AgentKey, message: Content, call: Call) -> Envelope:
        """As `chat`, from another agent's code."""
        return self.chat(key, message, call, lease_kind=LeaseKind.CALL)

    def spawn(
        self, runtime: Runtime, job: Coroutine[Any, Any, Any], name: str | None
    ) -> asyncio.Task[Any]:
        """A job of `runtime`'s agent."""
        return spawn_job(self.driver, runtime, job, name)

    # -- parts ----------------------------------------------------------------------------------

    def _address(self, key: AgentKey) -> tuple[AgentKey, AgentType]:
        """Fill in the type where the host serves only one; raises UnknownAgentType."""
        type = self.registry.resolve(key.type)
        return (key if key.type else key._replace(type=type.name)), type

    def served(self, key: AgentKey) -> AgentKey:
        """The key, with its type; raises UnknownAgentType."""
        return self._address(key)[0]

    def followed(self) -> Following:
        """The readers' side of the log; raises NoHandler where the host keeps none."""
        if self.following is None:
            raise NoHandler("this host keeps no log of events: see its setting event_log")
        return self.following

    def _envelope(
        self, key: AgentKey, work: Work, call: Call, kind: str, lease_kind: LeaseKind, **more: Any
    ) -> Envelope:
        return Envelope(self._next_id(), key, work, call, kind, lease_kind, **more)

    def _next_id(self) -> str:
        return f"{self.id}-t{next(self._numbers)}"

    def _outbox(self) -> Outbox:
        return Outbox(self.limits.reader_timeout)
