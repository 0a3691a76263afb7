"""The writing thread: what it groups, what it keeps apart, and what it survives."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest
from store_kit import FUSE, Gate, key, queued

from innkeeper_server.errors import AgentDeleted, StaleEpoch, StoreUnavailable
from innkeeper_server.store import SQLiteStore


async def held(store: SQLiteStore, gate: Gate) -> asyncio.Task[None]:
    """Hold the writer in a transaction of its own until the gate is opened."""
    task = asyncio.create_task(store.write(gate))
    await gate.entered()
    return task


async def create(store: SQLiteStore, *ids: str) -> None:
    await asyncio.gather(*(store.hydrate(key(id)) for id in ids))


def commit(
    store: SQLiteStore, id: str, state: bytes = b"x", *, epoch: int = 1
) -> asyncio.Task[int]:
    return asyncio.create_task(store.commit(key(id), epoch=epoch, version=0, state=state))


async def state_of(store: SQLiteStore, id: str) -> bytes | None:
    record = await store.read(key(id))
    assert record is not None
    return record.state


async def test_calls_that_wait_together_are_one_transaction(
    sqlite: SQLiteStore, gate: Gate
) -> None:
    ids = [f"a{n}" for n in range(64)]
    await create(sqlite, *ids)
    holding = await held(sqlite, gate)
    statements: list[str] = []
    tracing = asyncio.create_task(
        sqlite.write(lambda connection: connection.set_trace_callback(statements.append))
    )
    commits = [commit(sqlite, id) for id in ids]
    await queued()
    gate.open()
    assert await asyncio.gather(*commits) == [1] * 64
    await tracing
    await holding
    assert sum(statement.startswith("UPDATE agents SET state") for statement in statements) == 64
    assert statements.count("COMMIT") == 1


async def test_no_call_is_answered_before_its_group_is_committed(
    sqlite: SQLiteStore, gate: Gate
) -> None:
    await create(sqlite, "a")
    first = Gate()
    blocking = await held(sqlite, first)
    answer = commit(sqlite, "a")
    holding = asyncio.create_task(sqlite.write(gate))
    await queued()
    first.open()
    await blocking
    await gate.entered()  # the change is made, and the group is not yet committed
    assert await state_of(sqlite, "a") is None
    assert not answer.done()
    gate.open()
    assert await answer == 1
    assert await state_of(sqlite, "a") == b"x"
    await holding


async def test_a_refusal_in_a_group_is_its_own(sqlite: SQLiteStore, gate: Gate) -> None:
    await create(sqlite, "a", "b", "gone", "c")
    await sqlite.delete(key("gone"))
    holding = await held(sqlite, gate)
    group = [
        commit(sqlite, "a"),
        commit(sqlite, "b", epoch=7),
        commit(sqlite, "gone"),
        commit(sqlite, "c"),
    ]
    await queued()
    gate.open()
    a, b, gone, c = await asyncio.gather(*group, return_exceptions=True)
    assert (a, c) == (1, 1)
    assert isinstance(b, StaleEpoch)
    assert isinstance(gone, AgentDeleted)
    await holding


async def test_an_operation_that_raises_undoes_its_own_writes_only(
    sqlite: SQLiteStore, gate: Gate
) -> None:
    await create(sqlite, "a", "b", "c")

    def faulty(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE agents SET state = 'damage'")
        raise LookupError("not what it seemed")

    holding = await held(sqlite, gate)
    group = [commit(sqlite, "a"), asyncio.create_task(sqlite.write(faulty)), commit(sqlite, "c")]
    await queued()
    gate.open()
    a, fault, c = await asyncio.gather(*group, return_exceptions=True)
    assert (a, c) == (1, 1)
    assert isinstance(fault, LookupError)
    assert [await state_of(sqlite, id) for id in "abc"] == [b"x", None, b"x"]
    await holding


async def test_a_wrong_statement_undoes_its_own_writes_only(
    sqlite: SQLiteStore, gate: Gate
) -> None:
    await create(sqlite, "a", "b")
    holding = await held(sqlite, gate)
    group = [
        commit(sqlite, "a"),
        asyncio.create_task(sqlite.write(lambda c: c.execute("UPDATE agents SET deleted = 2"))),
    ]
    await queued()
    gate.open()
    a, fault = await asyncio.gather(*group, return_exceptions=True)
    assert a == 1
    assert isinstance(fault, sqlite3.IntegrityError)
    await holding


async def test_calls_of_one_group_see_each_other_in_order(sqlite: SQLiteStore, gate: Gate) -> None:
    """A's commit stands before B's hydration in the queue, C's commit with A's epoch after it."""
    await create(sqlite, "a")
    holding = await held(sqlite, gate)
    mine = commit(sqlite, "a", b"mine")
    next_life = asyncio.create_task(sqlite.hydrate(key("a")))
    late = asyncio.create_task(sqlite.commit(key("a"), epoch=1, version=1, state=b"late"))
    await queued()
    gate.open()
    assert await mine == 1
    life = await next_life
    assert (life.epoch, life.version, life.state) == (2, 1, b"mine")
    with pytest.raises(StaleEpoch):
        await late
    await holding


async def test_a_full_queue_refuses_at_once(path: Path, gate: Gate) -> None:
    store = SQLiteStore(str(path), max_queued=3)
    await store.open()
    await create(store, "a", "b", "c")
    holding = await held(store, gate)
    waiting = [commit(store, id) for id in "abc"]
    await queued()
    with pytest.raises(StoreUnavailable, match="3 calls wait") as refused:
        await store.hydrate(key("d"))
    assert refused.value.retry_after is not None
    gate.open()
    assert await asyncio.gather(*waiting) == [1, 1, 1]
    assert (await store.hydrate(key("d"))).epoch == 1
    await holding
    await store.close()


async def test_a_caller_cancelled_before_its_group_began_leaves_nothing(
    sqlite: SQLiteStore, gate: Gate
) -> None:
    await create(sqlite, "a", "b")
    holding = await held(sqlite, gate)
    left, stays = commit(sqlite, "a"), commit(sqlite, "b")
    await queued()
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    gate.open()
    assert await stays == 1
    assert await state_of(sqlite, "a") is None
    assert await commit(sqlite, "a", b"again") == 1
    await holding


async def test_a_caller_cancelled_in_mid_commit_harms_nobody(
    sqlite: SQLiteStore, gate: Gate
) -> None:
    """1. The writer has made A's change and stands before the commit. 2. A's caller is cancelled.
    3. The group commits: B, in the same group, is answered, and A's change is whole.
    """
    await create(sqlite, "a", "b", "other")
    first = Gate()
    blocking = await held(sqlite, first)
    left = commit(sqlite, "a", b"whole")
    holding = asyncio.create_task(sqlite.write(gate))
    stays = commit(sqlite, "b")
    await queued()
    first.open()
    await gate.entered()
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    gate.open()
    assert await stays == 1
    assert await state_of(sqlite, "a") == b"whole"
    assert await commit(sqlite, "other") == 1
    await asyncio.gather(blocking, holding)


async def test_reads_go_on_while_the_writer_is_held(sqlite: SQLiteStore, gate: Gate) -> None:
    await create(sqlite, "a")
    holding = await held(sqlite, gate)
    assert await state_of(sqlite, "a") is None
    assert len(await sqlite.list("t")) == 1
    gate.open()
    await holding


async def test_the_reading_connection_cannot_write(sqlite: SQLiteStore) -> None:
    with pytest.raises(StoreUnavailable, match="read-only"):
        await sqlite.query(lambda connection: connection.execute("DELETE FROM agents"))


async def test_close_finishes_what_was_accepted_and_refuses_the_rest(
    path: Path, gate: Gate
) -> None:
    store = SQLiteStore(str(path))
    await store.open()
    await create(store, "a", "b")
    holding = await held(store, gate)
    accepted = [commit(store, "a"), commit(store, "b")]
    await queued()
    closing = asyncio.create_task(store.close())
    await queued()
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.hydrate(key("c"))
    assert not closing.done()
    gate.open()
    assert await asyncio.gather(*accepted) == [1, 1]
    await holding
    await closing
    assert not path.with_name("agents.db-wal").exists()

    again = SQLiteStore(str(path))
    await again.open()
    assert await state_of(again, "b") == b"x"
    assert await again.read(key("c")) is None
    await again.close()


async def test_a_cancelled_close_can_be_finished_by_another(path: Path, gate: Gate) -> None:
    store = SQLiteStore(str(path))
    await store.open()
    holding = await held(store, gate)
    closing = asyncio.create_task(store.close())
    await queued()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    gate.open()
    await holding
    await store.close()
    again = SQLiteStore(str(path))
    await again.open()
    await again.close()


async def test_a_store_that_hangs_lets_its_callers_and_its_closer_go(
    path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SQLiteStore(str(path))
    await store.open()
    with monkeypatch.context() as impatient:
        for lane in store._started:
            impatient.setattr(lane, "_patience", 0.01)
        with pytest.raises(StoreUnavailable, match="outcome is unknown"):
            await store.write(gate)
        with pytest.raises(StoreUnavailable, match="in time"):
            await store.close()
    with pytest.raises(StoreUnavailable, match="another host"):  # the thread may yet write
        await SQLiteStore(str(path)).open()
    gate.open()
    await store.close()


def test_a_loop_that_closed_meanwhile_does_not_harm_the_thread(path: Path, gate: Gate) -> None:
    store = SQLiteStore(str(path))

    async def leave_in_mid_write() -> None:
        await store.open()
        await held(store, gate)

    before = set(threading.enumerate())
    asyncio.run(leave_in_mid_write())
    threads = {t for t in threading.enumerate() if t.name.startswith("innkeeper-store")} - before
    assert len(threads) == 2
    store._stop()
    gate.open()
    for thread in threads:
        thread.join(FUSE)
        assert not thread.is_alive()
