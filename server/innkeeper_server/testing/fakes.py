"""A store that stops and fails where a test wants it to. Owns fakes."""

from __future__ import annotations

from innkeeper_server.errors import InnkeeperError
from innkeeper_server.identity import AgentKey
from innkeeper_server.store import Hydrated, MemoryStore
from innkeeper_server.testing.gates import Gates


class GatedStore(MemoryStore):
    """A store in memory whose writes pass the gates `hydrate`, `commit` and `delete`, and which
    raises what `fail[operation]` lists: one entry a call, where `None` lets it pass."""

    def __init__(self, gates: Gates) -> None:
        super().__init__()
        self.gates = gates
        self.fail: dict[str, list[InnkeeperError | None]] = {}

    async def hydrate(self, key: AgentKey) -> Hydrated:
        await self._pass("hydrate")
        return await super().hydrate(key)

    async def commit(self, key: AgentKey, *, epoch: int, version: int, state: bytes) -> int:
        await self._pass("commit")
        return await super().commit(key, epoch=epoch, version=version, state=state)

    async def delete(self, key: AgentKey) -> bool:
        await self._pass("delete")
        return await super().delete(key)

    async def _pass(self, operation: str) -> None:
        await self.gates[operation].pass_through()
        if (faults := self.fail.get(operation)) and (fault := faults.pop(0)) is not None:
            raise fault
