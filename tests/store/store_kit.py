"""What the tests of the stores share: a clock to set, a gate for a thread, and a way to wait."""

from __future__ import annotations

import asyncio
import sqlite3
import threading

from innkeeper_server.identity import AgentKey

FUSE = 30.0  # seconds; only a defect burns it


def key(id: str, *, tenant: str = "t", type: str = "counter") -> AgentKey:
    return AgentKey(tenant, type, id)


class Clock:
    """Unix time that moves when it is told to."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Gate:
    """An operation that holds the thread it runs in until the gate is opened."""

    def __init__(self) -> None:
        self._entered = threading.Event()
        self._opened = threading.Event()

    def __call__(self, connection: sqlite3.Connection) -> None:
        self._entered.set()
        assert self._opened.wait(FUSE)

    async def entered(self) -> None:
        assert await asyncio.to_thread(self._entered.wait, FUSE)

    def open(self) -> None:
        self._opened.set()


async def queued() -> None:
    """Let the tasks made so far run to their first wait, which is in the queue of a lane."""
    await asyncio.sleep(0)
