"""The store that forgets: for tests, and for hosts whose agents may be lost.

Owns the rows in a dict. They outlive `close`, so that a test can restart a host over them.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Collection
from dataclasses import replace

from innkeeper_server.errors import StoreUnavailable
from innkeeper_server.identity import AgentKey
from innkeeper_server.store.alarm_list import AlarmList
from innkeeper_server.store.chunks import EventLog
from innkeeper_server.store.fencing import (
    check_alarms,
    check_epoch,
    check_living,
    check_writer,
    stale_followup,
    stale_outcome,
)
from innkeeper_server.store.protocol import (
    EVENTS_KEPT,
    Alarm,
    AlarmChanges,
    Alarms,
    Chunk,
    Chunks,
    Followup,
    Followups,
    Hydrated,
    Outcome,
    Page,
    Record,
    Settled,
)

__all__ = ["MemoryStore"]


class MemoryStore:
    """A `Store` in this process. No call ever waits."""

    def __init__(
        self, *, events_kept: int = EVENTS_KEPT, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._log = EventLog(events_kept, clock)
        self._rows: dict[AgentKey, Record] = {}
        self._pending: dict[str, Followup] = {}  # in the order of their seq
        self._ended: dict[str, Followup] = {}
        self._seq = 0
        self._outcomes: dict[tuple[AgentKey, str], tuple[float, Outcome]] = {}
        self._alarms = AlarmList()
        self._open = False

    async def open(self) -> None:
        self._open = True

    async def close(self) -> None:
        self._open = False

    async def hydrate(self, key: AgentKey, *, interrupted: bytes = b"") -> Hydrated:
        row = self._row(key)
        if row is None:
            now = self._clock()
            row = Record(key, 1, 0, None, created_at=now, updated_at=now)
        else:
            check_living(key, deleted=row.deleted)
            row = replace(row, epoch=row.epoch + 1)
            if interrupted:
                self._log.end_broken_off(key, interrupted)
        self._rows[key] = row
        passive = any(each.passive and each.key == key for each in self._pending.values())
        return Hydrated(row.epoch, row.version, row.state, row.created_at, passive)

    async def commit(
        self,
        key: AgentKey,
        *,
        epoch: int,
        version: int,
        state: bytes | None,
        settled: Settled | Outcome | None = None,
        events: Chunk | None = None,
        alarms: AlarmChanges | None = None,
    ) -> int:
        row = self._row(key)
        check_writer(key, _numbers(row), epoch=epoch, version=version)
        assert row is not None
        check_alarms(key, self._alarms.count(key, alarms or {}))
        if isinstance(settled, Settled) and not self._settle(settled):
            raise stale_followup(key)
        if isinstance(settled, Outcome) and not self._keep(settled):
            raise stale_outcome(key)
        if events is not None:
            self._log.append(key, events)
        self._alarms.change(key, alarms or {})
        if state is None:
            return version
        self._rows[key] = replace(row, version=version + 1, state=state, updated_at=self._clock())
        return version + 1

    async def read(self, key: AgentKey) -> Record | None:
        row = self._row(key)
        return None if row is None or row.deleted else row

    async def list(
        self,
        tenant: str,
        *,
        type: str = "",
        prefix: str = "",
        after: tuple[str, str] | None = None,
        limit: int = 100,
    ) -> Page:
        self._check_open()
        found = (
            row
            for key, row in self._rows.items()
            if key.tenant == tenant
            and not row.deleted
            and (not type or key.type == type)
            and key.id.startswith(prefix)
            and (after is None or (key.type, key.id) > after)
        )
        page = heapq.nsmallest(limit, found, key=lambda row: row.key)
        return [replace(row, state=None) for row in page]

    async def delete(self, key: AgentKey) -> bool:
        row = self._row(key)
        if row is None or row.deleted:
            return False
        self._rows[key] = replace(
            row, epoch=row.epoch + 1, state=None, updated_at=self._clock(), deleted=True
        )
        for followup in [each for each in self._pending.values() if each.key == key]:
            self._settle(Settled(followup.id, "cancelled"))
        for name in [name for name in self._outcomes if name[0] == key]:
            del self._outcomes[name]
        self._log.forget(key)
        self._alarms.forget(key)
        return True

    # -- events ---------------------------------------------------------------------------------

    async def append(self, key: AgentKey, *, epoch: int, events: Chunk) -> None:
        check_epoch(key, _numbers(self._row(key)), epoch=epoch)
        self._log.append(key, events)

    async def events(
        self, key: AgentKey, *, turn_id: str = "", after: int = 0, limit: int = 16
    ) -> Chunks:
        self._check_open()
        return self._log.events(key, turn_id, after, limit)

    async def place(self, key: AgentKey, turn_id: str, seq: int) -> int | None:
        self._check_open()
        return self._log.place(key, turn_id, seq)

    async def newest(self, key: AgentKey) -> int:
        self._check_open()
        return self._log.newest(key)

    async def prune_events(self, before: float, *, limit: int = 1000) -> int:
        self._check_open()
        return self._log.prune(before, limit)

    # -- follow-ups -----------------------------------------------------------------------------

    async def accept(self, followup: Followup) -> Followup:
        return self._accept(followup)

    def _accept(self, followup: Followup) -> Followup:
        row = self._row(followup.key)
        check_living(followup.key, deleted=row is not None and row.deleted)
        if (known := self._keyed(followup)) is not None:
            return known
        self._seq += 1
        self._pending[followup.id] = kept = replace(followup, seq=self._seq)
        return kept

    def _keyed(self, followup: Followup) -> Followup | None:
        if not followup.idempotency_key:
            return None
        all = itertools.chain(self._pending.values(), self._ended.values())
        named = (followup.key, followup.idempotency_key)
        return next((each for each in all if (each.key, each.idempotency_key) == named), None)

    async def begin(self, id: str) -> int:
        self._check_open()
        if (followup := self._pending.get(id)) is None:
            return 0
        attempt = followup.attempt + 1
        self._pending[id] = replace(followup, attempt=attempt, started_at=self._clock())
        return attempt

    async def give_back(self, id: str) -> None:
        self._check_open()
        if (followup := self._pending.get(id)) is not None and followup.attempt:
            self._pending[id] = replace(followup, attempt=followup.attempt - 1)

    async def settle(self, settled: Settled) -> bool:
        self._check_open()
        return self._settle(settled)

    async def followup(self, id: str) -> Followup | None:
        self._check_open()
        return self._pending.get(id) or self._ended.get(id)

    async def pending(self, *, after: int = 0, limit: int = 100) -> Followups:
        self._check_open()
        found = (each for each in self._pending.values() if each.seq > after and not each.passive)
        return list(itertools.islice(found, limit))

    async def passive(self, key: AgentKey, *, limit: int = 100) -> Followups:
        self._check_open()
        found = (each for each in self._pending.values() if each.key == key and each.passive)
        return list(itertools.islice(found, limit))

    # -- alarms ---------------------------------------------------------------------------------

    async def alarms(self, key: AgentKey) -> Alarms:
        self._check_open()
        return self._alarms.of(key)

    async def due(
        self, types: Collection[str], *, before: float = float("inf"), limit: int = 100
    ) -> Alarms:
        self._check_open()
        return self._alarms.due(types, before, limit)

    async def fire(self, alarm: Alarm, id: str, *, following: float | None) -> Followup | None:
        self._check_open()
        found = self._alarms.fired(alarm)
        if found is None:
            return None
        stored, last = found
        stands = last in self._pending
        self._alarms.move(stored, last if stands else id, following)
        if stands:
            return None
        return self._accept(Followup(id, stored.key, stored.message, self._clock()))

    # -- outcomes -------------------------------------------------------------------------------

    async def outcome(self, key: AgentKey, idempotency_key: str) -> Outcome | None:
        self._check_open()
        kept = self._outcomes.get((key, idempotency_key))
        return None if kept is None else kept[1]

    async def keep(self, outcome: Outcome) -> bool:
        self._check_open()
        return self._keep(outcome)

    def _keep(self, outcome: Outcome) -> bool:
        name = (outcome.key, outcome.idempotency_key)
        if name in self._outcomes:
            return False
        self._outcomes[name] = (self._clock(), outcome)
        return True

    async def prune(self, before: float, *, limit: int = 1000) -> int:
        self._check_open()
        now = self._clock()
        for each in [each for each in self._pending.values() if each.passive and not each.attempt]:
            if each.expires_at is not None and each.expires_at <= now:
                self._settle(Settled(each.id, "expired"))
        old = [id for id, each in self._ended.items() if (each.settled_at or 0.0) < before][:limit]
        for id in old:
            del self._ended[id]
        kept = [name for name, (at, _) in self._outcomes.items() if at < before][:limit]
        for name in kept:
            del self._outcomes[name]
        return max(len(old), len(kept))

    def _settle(self, settled: Settled) -> bool:
        followup = self._pending.pop(settled.id, None)
        if followup is None:
            return False
        self._ended[settled.id] = replace(
            followup, state=settled.state, outcome=settled.outcome, settled_at=self._clock()
        )
        return True

    async def ping(self) -> None:
        self._check_open()

    def _row(self, key: AgentKey) -> Record | None:
        self._check_open()
        return self._rows.get(key)

    def _check_open(self) -> None:
        if not self._open:
            raise StoreUnavailable("the store is not open")


def _numbers(row: Record | None) -> tuple[int, int, bool] | None:
    return None if row is None else (row.epoch, row.version, row.deleted)
