"""Stores to test: each kind behind one backend, so that one suite holds for all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from store_kit import Clock, Gate

from innkeeper_server.store import MemoryStore, SQLiteStore, Store
from innkeeper_server.store.postgres.store import PostgresStore
from postgres_kit import Postgres

MakeStore = Callable[[], Store]
EVENTS_KEPT = 100
OpenSQLite = Callable[..., SQLiteStore]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agents.db"


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
async def make_store(request: pytest.FixtureRequest, path: Path, clock: Clock) -> MakeStore:
    """Makes a store, yet to be opened, over the same data each time."""
    if request.param == "memory":
        store = MemoryStore(events_kept=EVENTS_KEPT, clock=clock)
        return lambda: store
    if request.param == "postgresql":
        server: Postgres = request.getfixturevalue("postgres")
        url = server.url(await server.schema())
        return lambda: PostgresStore(url, events_kept=EVENTS_KEPT, clock=clock)
    return lambda: SQLiteStore(str(path), events_kept=EVENTS_KEPT, clock=clock)


@pytest.fixture
async def store(make_store: MakeStore) -> AsyncIterator[Store]:
    store = make_store()
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def sqlite(path: Path, clock: Clock) -> AsyncIterator[SQLiteStore]:
    """An open store in a file that gives up on a lock soon."""
    store = SQLiteStore(str(path), busy_timeout=0.05, clock=clock)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()
