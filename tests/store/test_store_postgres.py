"""A database that goes away, comes back, forbids, or is shared: nothing acknowledged is lost,
nothing is done twice, and what went wrong is said.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from store_kit import FUSE, key

from innkeeper_server.errors import StaleEpoch, StoreUnavailable
from innkeeper_server.store import Followup
from innkeeper_server.store.postgres.faults import unavailable
from innkeeper_server.store.postgres.migrate import schema_version
from innkeeper_server.store.postgres.store import PostgresStore
from postgres_kit import Cutter, Postgres

A = key("a")
LONG = 120.0  # seconds; a call waits that long for the database, and only a defect burns it
SOON = 0.2  # seconds; for what never comes back


@contextlib.asynccontextmanager
async def opened(url: str, **settings: Any) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url, **settings)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
def own_server() -> Iterator[Postgres]:
    """A server that the test may kill."""
    server = Postgres()
    yield server
    server.stop()


# -- several hosts ------------------------------------------------------------------------------


async def test_hosts_that_open_an_empty_database_at_once_make_its_schema_once(
    schema_url: str,
) -> None:
    stores = [PostgresStore(schema_url) for _ in range(5)]
    await asyncio.gather(*(store.open() for store in stores))
    connection = await asyncpg.connect(schema_url)
    assert await schema_version(connection) == 3
    await connection.close()
    for number, store in enumerate(stores, 1):
        assert (await store.hydrate(A)).epoch == number
    await asyncio.gather(*(store.close() for store in stores))


async def test_hydrations_from_two_hosts_at_once_take_different_epochs(schema_url: str) -> None:
    async with opened(schema_url) as one, opened(schema_url) as other:
        lives = await asyncio.gather(*(s.hydrate(A) for s in (one, other) * 20))
        assert sorted(life.epoch for life in lives) == list(range(1, 41))


async def test_the_older_host_is_refused_and_the_newer_one_goes_on(schema_url: str) -> None:
    async with opened(schema_url) as old, opened(schema_url) as new:
        before = await old.hydrate(A)
        await old.commit(A, epoch=before.epoch, version=0, state=b"old")
        after = await new.hydrate(A)
        assert (after.epoch, after.state) == (2, b"old")
        with pytest.raises(StaleEpoch):
            await old.commit(A, epoch=before.epoch, version=1, state=b"late")
        assert await new.commit(A, epoch=2, version=1, state=b"new") == 2
        record = await old.read(A)
        assert record is not None
        assert record.state == b"new"


async def test_a_commit_that_waits_for_the_row_of_a_newer_host_is_refused_after_it(
    schema_url: str,
) -> None:
    """The newer host's transaction has the row and has not ended: the older one's commit waits,
    and then sees the new epoch, not the one from before.
    """
    async with opened(schema_url) as old, opened(schema_url) as looker:
        await old.hydrate(A)
        newer = await asyncpg.connect(schema_url)
        transaction = newer.transaction()
        await transaction.start()
        await newer.execute("UPDATE agents SET epoch = epoch + 1")
        late = asyncio.ensure_future(old.commit(A, epoch=1, version=0, state=b"late"))
        async with asyncio.timeout(FUSE):
            while not await newer.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                await looker.ping()
        await transaction.commit()
        with pytest.raises(StaleEpoch):
            await late
        await newer.close()
        record = await looker.read(A)
        assert record is not None
        assert (record.epoch, record.version, record.state) == (2, 0, None)


async def test_two_hosts_that_lock_rows_against_each_other_both_succeed(schema_url: str) -> None:
    """Their groups hold the same rows in opposite orders, again and again: the database ends one
    of them at times, and it is made again.
    """
    keys = [key(str(n)) for n in range(40)]
    async with opened(schema_url) as one, opened(schema_url) as other:
        for _ in range(10):
            await asyncio.gather(
                *(one.hydrate(each) for each in keys),
                *(other.hydrate(each) for each in reversed(keys)),
            )
        assert {(await one.hydrate(each)).epoch for each in keys} == {21}


# -- groups -------------------------------------------------------------------------------------


async def test_calls_that_come_together_are_one_transaction(schema_url: str) -> None:
    async with opened(schema_url) as store:
        await asyncio.gather(*(store.hydrate(key(str(n))) for n in range(500)))
        assert store.groups == 1


async def test_a_call_that_cannot_be_done_fails_alone(schema_url: str) -> None:
    """The database takes no null character; it refuses the whole statement for it. The writer
    goes on without waiting.
    """
    async with opened(schema_url, patience=LONG) as store:
        results = await asyncio.gather(
            *(store.hydrate(key(id)) for id in ("a", "b\0", "c")), return_exceptions=True
        )
        assert isinstance(results[1], StoreUnavailable)
        assert [getattr(result, "epoch", None) for result in results] == [1, None, 1]
        assert (await store.hydrate(key("a"))).epoch == 2


async def test_a_caller_that_leaves_takes_nobody_with_it(schema_url: str) -> None:
    async with opened(schema_url) as store:
        calls = [asyncio.ensure_future(store.hydrate(key(str(n)))) for n in range(10)]
        await asyncio.sleep(0)
        calls[3].cancel()
        lives = await asyncio.gather(*calls, return_exceptions=True)
        assert [getattr(life, "epoch", None) for life in lives].count(1) == 9
        assert (await store.hydrate(key("4"))).epoch == 2


async def test_a_queue_that_is_full_refuses_at_once(schema_url: str) -> None:
    async with opened(schema_url, max_queued=5) as store:
        results = await asyncio.gather(
            *(store.hydrate(key(str(n))) for n in range(8)), return_exceptions=True
        )
        refused = [result for result in results if isinstance(result, StoreUnavailable)]
        assert [error.metadata["limit"] for error in refused] == ["5"] * 3


# -- a database that goes away ------------------------------------------------------------------


async def test_a_server_that_is_killed_under_load_loses_and_doubles_nothing(
    own_server: Postgres,
) -> None:
    """Three times in the middle of commits. Nobody is told of it: every call waits, and each
    commit is there exactly once.
    """
    url = own_server.url(await own_server.schema())
    told: dict[str, int] = {}
    accepted: list[str] = []
    progress = asyncio.Event()
    ending = False

    async def count(store: PostgresStore, id: str) -> None:
        life = await store.hydrate(key(id))
        version = life.version
        while not ending:
            state = b"%d" % (version + 1)
            version = await store.commit(key(id), epoch=life.epoch, version=version, state=state)
            told[id] = version
            progress.set()

    async def send(store: PostgresStore) -> None:
        for number in itertools.count():
            if ending:
                return
            receipt = f"r{number}"
            await store.accept(Followup(receipt, A, b"m", 0.0, idempotency_key=receipt))
            accepted.append(receipt)

    async def more() -> None:
        goal = sum(told.values()) + 200
        while sum(told.values()) < goal:
            progress.clear()
            await progress.wait()

    async with opened(url, patience=LONG) as store, asyncio.timeout(LONG):
        async with asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(count(store, str(number)))
            group.create_task(send(store))
            for _ in range(3):
                await more()
                await asyncio.to_thread(own_server.kill)
                await asyncio.to_thread(own_server.start)
            await more()
            ending = True
        for id, version in told.items():
            record = await store.read(key(id))
            assert record is not None
            assert (record.version, record.state) == (version, b"%d" % version)
            assert record.epoch == 1
        kept = await store.pending(limit=len(accepted) + 10)
        assert [each.id for each in kept] == accepted


@pytest.mark.parametrize("arrives", [True, False], ids=["committed", "not committed"])
async def test_a_commit_whose_answer_is_lost_is_made_once(
    postgres: Postgres, tmp_path: Path, arrives: bool
) -> None:
    schema = await postgres.schema()
    url = postgres.url(schema, socket=tmp_path)
    async with Cutter(postgres.socket, tmp_path) as cutter, opened(url, patience=LONG) as store:
        await store.hydrate(A)
        cutter.cut_at(b"COMMIT", arrives=arrives)
        assert await store.commit(A, epoch=1, version=0, state=b"one") == 1
        assert cutter.cuts == 1
        assert await store.commit(A, epoch=1, version=1, state=b"two") == 2


@pytest.mark.parametrize("place", [b"BEGIN", b"innkeeper_hydrate"])
async def test_a_connection_that_breaks_before_the_commit_leaves_nothing_and_is_made_again(
    postgres: Postgres, tmp_path: Path, place: bytes
) -> None:
    schema = await postgres.schema()
    url = postgres.url(schema, socket=tmp_path)
    async with Cutter(postgres.socket, tmp_path) as cutter, opened(url, patience=LONG) as store:
        cutter.cut_at(place, arrives=True)
        assert (await store.hydrate(A)).epoch == 1
        assert cutter.cuts == 1


async def test_a_read_is_asked_again_on_a_new_connection(
    postgres: Postgres, tmp_path: Path
) -> None:
    schema = await postgres.schema()
    url = postgres.url(schema, socket=tmp_path)
    async with Cutter(postgres.socket, tmp_path) as cutter, opened(url, patience=LONG) as store:
        await store.hydrate(A)
        cutter.cut_at(b"FROM agents", arrives=True)
        record = await store.read(A)
        assert record is not None
        assert (record.epoch, cutter.cuts) == (1, 1)


async def test_a_database_that_stays_away_is_said_and_nothing_was_kept(
    own_server: Postgres,
) -> None:
    url = own_server.url(await own_server.schema())
    async with opened(url, patience=SOON) as store:
        await store.hydrate(A)
        own_server.kill()
        with pytest.raises(StoreUnavailable, match="nothing was kept"):
            await store.commit(A, epoch=1, version=0, state=b"one")
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await store.read(A)
        with pytest.raises(StoreUnavailable):
            await store.ping()
        own_server.start()
        await store.ping()
        assert await store.commit(A, epoch=1, version=0, state=b"two") == 1


async def test_a_store_that_is_closed_while_its_database_is_away_tells_everybody(
    own_server: Postgres,
) -> None:
    store = PostgresStore(own_server.url(await own_server.schema()), patience=SOON)
    await store.open()
    own_server.kill()
    calls = [asyncio.ensure_future(store.hydrate(key(str(n)))) for n in range(3)]
    await asyncio.sleep(0)
    await store.close()
    told = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in told] == [StoreUnavailable] * 3
    own_server.start()


# -- a database that forbids --------------------------------------------------------------------


async def words_of_open(url: str) -> str:
    with pytest.raises(StoreUnavailable) as refused:
        await PostgresStore(url, patience=SOON).open()
    assert "secret" not in refused.value.message
    return refused.value.message


async def test_a_schema_of_a_newer_version_is_left_alone(schema_url: str) -> None:
    async with opened(schema_url):
        pass
    connection = await asyncpg.connect(schema_url)
    await connection.execute("UPDATE schema_version SET version = 99")
    assert "version 99, made by a newer Innkeeper" in await words_of_open(schema_url)
    await connection.close()


async def test_tables_of_another_program_are_left_alone(schema_url: str) -> None:
    connection = await asyncpg.connect(schema_url)
    await connection.execute("CREATE TABLE agents (name text)")
    assert "another program's" in await words_of_open(schema_url)
    await connection.close()


async def test_a_database_that_is_not_there_is_named_by_its_fault(
    postgres: Postgres, tmp_path: Path
) -> None:
    there = postgres.url("public")
    missing = there.replace("postgres@/postgres", "postgres:secret@/nothing")
    assert "no such database" in await words_of_open(missing)
    away = postgres.url("public", socket=tmp_path).replace("postgres@", "postgres:secret@")
    assert "cannot be reached" in await words_of_open(away)
    wrong = "postgresql://me:secret@localhost:port/agents"
    assert "URL has a wrong part" in await words_of_open(wrong)


async def test_a_read_only_database_says_so_at_the_first_write(schema_url: str) -> None:
    async with opened(schema_url) as store:
        await store.hydrate(A)
    async with opened(schema_url + "&default_transaction_read_only=on") as store:
        assert await store.read(A) is not None
        with pytest.raises(StoreUnavailable, match="read-only"):
            await store.hydrate(A)
        with pytest.raises(StoreUnavailable, match="read-only"):
            await store.ping()


def test_the_words_on_a_fault_never_repeat_what_the_server_said() -> None:
    for fault in (
        asyncpg.InvalidPasswordError('password "secret" is wrong'),
        asyncpg.DataError("secret"),
        asyncpg.PostgresError("secret"),
        OSError("secret"),
    ):
        assert "secret" not in unavailable(fault).message
        assert "secret" not in str(unavailable(fault).metadata)
