"""A store that stops and fails where a test wants it to. Owns fakes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from innkeeper_server.errors import InnkeeperError
from innkeeper_server.identity import AgentKey
from innkeeper_server.store import (
    Alarm,
    Chunk,
    Followup,
    Hydrated,
    MemoryStore,
    Outcome,
    Settled,
)
from innkeeper_server.store.protocol import Alarms, Followups
from innkeeper_server.testing.gates import Gates


class GatedStore(MemoryStore):
    """A store in memory whose writes pass gates of their names (`hydrate`, `commit` …), and which
    raises what `fail[operation]` lists: one entry a call, where `None` lets it pass. What
    `lost[operation]` lists is raised after the call was made: its answer is lost."""

    def __init__(self, gates: Gates) -> None:
        super().__init__(clock=asyncio.get_running_loop().time)
        self.gates = gates
        self.fail: dict[str, list[InnkeeperError | None]] = {}
        self.lost: dict[str, list[InnkeeperError | None]] = {}

    async def hydrate(self, key: AgentKey, *, interrupted: bytes = b"") -> Hydrated:
        await self._pass("hydrate")
        return await super().hydrate(key, interrupted=interrupted)

    async def commit(self, key: AgentKey, **change: Any) -> int:
        await self._pass("commit")
        return await super().commit(key, **change)

    async def append(self, key: AgentKey, *, epoch: int, events: Chunk) -> None:
        await self._pass("append")
        await super().append(key, epoch=epoch, events=events)

    async def accept(self, followup: Followup) -> Followup:
        await self._pass("accept")
        kept = await super().accept(followup)
        self._lose("accept")
        return kept

    async def begin(self, id: str) -> int:
        await self._pass("begin")
        return await super().begin(id)

    async def pending(self, *, after: int = 0, limit: int = 100) -> Followups:
        await self._pass("pending")
        return await super().pending(after=after, limit=limit)

    async def settle(self, settled: Settled) -> bool:
        await self._pass("settle")
        return await super().settle(settled)

    async def delete(self, key: AgentKey) -> bool:
        await self._pass("delete")
        return await super().delete(key)

    async def outcome(self, key: AgentKey, idempotency_key: str) -> Outcome | None:
        await self._pass("outcome")
        return await super().outcome(key, idempotency_key)

    async def keep(self, outcome: Outcome) -> bool:
        await self._pass("keep")
        return await super().keep(outcome)

    async def due(
        self, types: Collection[str], *, before: float = float("inf"), limit: int = 100
    ) -> Alarms:
        await self._pass("due")
        return await super().due(types, before=before, limit=limit)

    async def fire(self, alarm: Alarm, id: str, *, following: float | None) -> Followup | None:
        await self._pass("fire")
        fired = await super().fire(alarm, id, following=following)
        self._lose("fire")
        return fired

    async def _pass(self, operation: str) -> None:
        await self.gates[operation].pass_through()
        if (faults := self.fail.get(operation)) and (fault := faults.pop(0)) is not None:
            raise fault

    def _lose(self, operation: str) -> None:
        if (faults := self.lost.get(operation)) and (fault := faults.pop(0)) is not None:
            raise fault
