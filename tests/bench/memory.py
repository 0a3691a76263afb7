"""What an idle agent costs in memory, beyond its own object and state.

The store keeps nothing, so that only the host is weighed. Bytes are tracemalloc's; the agent's own
objects are weighed apart and taken off.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from typing import Any

from bench.agents import Echo
from innkeeper_server.host import Host
from innkeeper_server.identity import AgentKey
from innkeeper_server.limits import Limits
from innkeeper_server.mailbox import Call
from innkeeper_server.registry import Registry
from innkeeper_server.store import Hydrated, MemoryStore

BUDGET = 2048  # bytes


class ForgetfulStore(MemoryStore):
    """Keeps nothing."""

    async def hydrate(self, key: AgentKey) -> Hydrated:
        return Hydrated(epoch=1, version=0, state=None, created_at=0.0)


def weigh(count: int) -> dict[str, Any]:
    """Bytes for each of `count` idle agents, and how many tasks the host has then."""
    registry = Registry()
    registry.register(Echo)
    total, tasks = asyncio.run(_hosted(registry, count))
    own = _own(registry, count)
    return {
        "agents": count,
        "bytes_each": round((total - own) / count),
        "own_bytes_each": round(own / count),
        "tasks": tasks,
        "budget": BUDGET,
    }


async def _hosted(registry: Registry, count: int) -> tuple[int, int]:
    host = Host(registry, ForgetfulStore(), Limits(capacity=count, idle_timeout=3600.0))
    await host.start()
    await host.invoke(_key(-1), "say", {"text": "x"}, Call()).outcome()
    await host.operators.evict(_key(-1))
    tasks = len(asyncio.all_tasks())
    gc.collect()
    tracemalloc.start()
    for number in range(count):
        await host.invoke(_key(number), "say", {"text": "x"}, Call()).outcome()
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert host.operators.totals().idle == count
    more = len(asyncio.all_tasks()) - tasks
    await host.close()
    return used, more


def _own(registry: Registry, count: int) -> int:
    made = registry.resolve("echo")
    keys = [_key(number) for number in range(count)]
    gc.collect()
    tracemalloc.start()
    kept = [made.create(key, None, None) for key in keys]  # type: ignore[arg-type]
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(kept) == count
    return used


def _key(number: int) -> AgentKey:
    return AgentKey("default", "echo", f"agent-{number}")
