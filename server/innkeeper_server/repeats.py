"""Calls that may be repeated: one execution for each idempotency key.

Owns the keys of the calls under way. The first call with a key looks into the store: what it came
to before is told again (`replayed`). If it came to nothing yet, it runs; further calls with the
same key wait for it and are told the same. The outcome of a turn is kept in the commit of its
effect; one that failed in the agent's own code is kept too, so that a repetition does not act a
second time. What ended without having been run (refused, cut) is not kept: a repetition runs it.

Keys are an agent's own. One that comes with another request is refused.
"""

from __future__ import annotations

import hashlib
import json
import logging

from innkeeper_server.content import Content
from innkeeper_server.driver import Driver
from innkeeper_server.errors import (
    AgentError,
    DeadlineExceeded,
    HandlerFailed,
    IdempotencyMismatch,
    InnkeeperError,
    StoreUnavailable,
    WorkCancelled,
)
from innkeeper_server.identity import AgentKey
from innkeeper_server.letters import (
    read_error,
    read_output,
    restored_error,
    write_error,
    write_output,
    written,
)
from innkeeper_server.mailbox import Envelope, Stage
from innkeeper_server.store import Outcome, Store
from innkeeper_server.turns import Turns

__all__ = ["Repeats", "fingerprint", "mismatch"]

log = logging.getLogger("innkeeper.host")


def fingerprint(kind: str, name: str, content: Content) -> bytes:
    """What tells one request from another under the same key."""
    told = json.dumps([kind, name, written(content)], sort_keys=True)
    return hashlib.sha256(told.encode()).digest()


def mismatch(key: AgentKey) -> IdempotencyMismatch:
    """The refusal of a key that came with another request."""
    return IdempotencyMismatch(
        f"{key} had another request with this idempotency key", metadata={"agent": str(key)}
    )


class _Once:
    """One key under way: the envelope that stands for it, and those that wait with it."""

    __slots__ = ("_owner", "fingerprint", "first", "name", "waiting")

    def __init__(
        self, owner: Repeats, name: tuple[AgentKey, str], fingerprint: bytes, first: Envelope
    ) -> None:
        self._owner = owner
        self.name = name
        self.fingerprint = fingerprint
        self.first = first
        self.waiting: list[Envelope] = []

    async def begin(self) -> None:
        """Nothing is to be counted."""

    def completed(self, output: Content) -> Outcome:
        return self.outcome(write_output(output))

    def outcome(self, data: bytes) -> Outcome:
        return Outcome(*self.name, self.fingerprint, self.first.id, data)

    def ended(self, output: Content, error: InnkeeperError | None) -> None:
        self._owner.ended(self, output, error)

    def is_wanted(self) -> bool:
        return any(envelope.stage is not Stage.SETTLED for envelope in self.waiting)


class Repeats:
    """See the module."""

    def __init__(self, driver: Driver, turns: Turns, store: Store) -> None:
        self._driver = driver
        self._turns = turns
        self._store = store
        self._under_way: dict[tuple[AgentKey, str], _Once] = {}

    def submit(self, envelope: Envelope, key: str, fingerprint: bytes) -> Envelope:
        """Have it run, or wait for the one that does, or be told what that came to. Raises
        IdempotencyMismatch."""
        name = (envelope.agent, key)
        once = self._under_way.get(name)
        if once is None:
            once = self._under_way[name] = _Once(self, name, fingerprint, envelope)
            envelope.durable = once
            self._driver.own(self._look(once), f"look for {envelope.id}")
        elif once.fingerprint == fingerprint:
            envelope.leader = once.first
            once.waiting.append(envelope)
        else:
            raise mismatch(envelope.agent)
        return envelope

    async def _look(self, once: _Once) -> None:
        """Whether it has come to something before."""
        first = once.first
        try:
            kept = await self._store.outcome(*once.name)
        except StoreUnavailable as error:
            if first.stage is not Stage.SETTLED:
                self._turns.settle(first, None, error)
            return
        if first.stage is Stage.SETTLED:
            return  # its caller left, and another stands for the key
        if kept is None:
            self._turns.submit(first)
        elif kept.fingerprint != once.fingerprint:
            self._tell(once, [first, *once.waiting], None, mismatch(first.agent))
        else:
            told = read_error(kept.outcome)
            output = read_output(kept.outcome) if told is None else None
            failed = None if told is None else restored_error(**told)
            self._tell(once, [first, *once.waiting], output, failed, kept.turn_id)

    def ended(self, once: _Once, output: Content, error: InnkeeperError | None) -> None:
        """The envelope that stood for it has settled, in this block."""
        if self._under_way.get(once.name) is not once:
            return  # it was told an outcome of before
        first = once.first
        if error is None:
            self._tell(once, once.waiting, output, None, first.id)
        elif _was_run(first, error):
            self._driver.own(self._keep(once, error), f"keep the outcome of {first.id}")
        elif isinstance(error, WorkCancelled) and first.turn is not None:
            self._tell(once, once.waiting, None, error, first.id)
        else:
            self._next(once)

    async def _keep(self, once: _Once, error: InnkeeperError) -> None:
        """The store has it before anybody else is told; until then, the key is under way."""
        try:
            await self._store.keep(once.outcome(write_error(error)))
        except StoreUnavailable as fault:
            log.warning("the outcome of %s could not be kept: %s", once.first.id, fault)
        self._tell(once, once.waiting, None, error, once.first.id)

    def _next(self, once: _Once) -> None:
        """It was not run: the next that waits stands for the key."""
        while once.waiting:
            first = once.waiting.pop(0)
            if first.stage is not Stage.SETTLED:
                once.first = first
                first.durable = once
                for envelope in (first, *once.waiting):
                    envelope.leader = None if envelope is first else first
                self._turns.submit(first)
                return
        del self._under_way[once.name]

    def _tell(
        self,
        once: _Once,
        envelopes: list[Envelope],
        output: Content,
        error: InnkeeperError | None,
        turn_id: str = "",
    ) -> None:
        del self._under_way[once.name]
        for envelope in envelopes:
            if envelope.stage is not Stage.SETTLED:
                envelope.replayed = True
                envelope.id = turn_id or envelope.id
                self._turns.settle(envelope, output, error)


def _was_run(envelope: Envelope, error: InnkeeperError) -> bool:
    """Whether the agent's own code ended so; then a repetition must not act again."""
    if envelope.turn is None:
        return False
    return isinstance(error, AgentError | HandlerFailed | DeadlineExceeded)
