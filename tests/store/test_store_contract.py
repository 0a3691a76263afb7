"""What every store promises, whatever keeps the data."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest
from store_kit import Clock, key

from innkeeper_server.errors import AgentDeleted, StaleEpoch, StoreUnavailable
from innkeeper_server.identity import AgentKey
from innkeeper_server.store import Hydrated, Record, Store

A = key("a")

# What SQL and shells take for wildcards or quotes, the ends of Unicode, and what sorts oddly.
TRICKY = "aZé%_\\*?['\"~\ud7ff\ue000\uffff\U0001f600\U0010ffff"


async def names(store: Store, tenant: str = "t", **narrowed: object) -> list[tuple[str, str]]:
    page = await store.list(tenant, **narrowed)  # type: ignore[arg-type]
    return [(record.key.type, record.key.id) for record in page]


async def create(store: Store, *ids: str, tenant: str = "t", type: str = "counter") -> None:
    await asyncio.gather(*(store.hydrate(AgentKey(tenant, type, id)) for id in ids))


async def test_a_new_agent_starts_from_nothing_with_epoch_one(store: Store, clock: Clock) -> None:
    assert await store.hydrate(A) == Hydrated(epoch=1, version=0, state=None, created_at=1000.0)


async def test_each_hydration_takes_the_next_epoch_and_finds_the_last_commit(
    store: Store, clock: Clock
) -> None:
    first = await store.hydrate(A)
    await store.commit(A, epoch=first.epoch, version=0, state=b"one")
    clock.now = 2000.0
    assert await store.hydrate(A) == Hydrated(2, 1, b"one", 1000.0)
    assert await store.hydrate(A) == Hydrated(3, 1, b"one", 1000.0)


async def test_hydrations_at_once_take_different_epochs(store: Store) -> None:
    lives = await asyncio.gather(*(store.hydrate(A) for _ in range(20)))
    assert sorted(life.epoch for life in lives) == list(range(1, 21))


async def test_a_commit_raises_the_version_and_is_read_back(store: Store, clock: Clock) -> None:
    await store.hydrate(A)
    clock.now = 1001.0
    assert await store.commit(A, epoch=1, version=0, state=b"one") == 1
    clock.now = 1002.0
    assert await store.commit(A, epoch=1, version=1, state=b"two") == 2
    assert await store.read(A) == Record(A, 1, 2, b"two", created_at=1000.0, updated_at=1002.0)


@pytest.mark.parametrize("state", [b"", b"\x00", b"\xff\x00'; --", bytes(4 << 20)], ids=len)
async def test_any_bytes_are_a_state(store: Store, state: bytes) -> None:
    await store.hydrate(A)
    await store.commit(A, epoch=1, version=0, state=state)
    assert (await store.hydrate(A)).state == state


async def test_a_writer_that_was_paused_before_its_write_is_refused_after_it_was_replaced(
    store: Store,
) -> None:
    """1. A hydrates and is paused before its write. 2. B hydrates the same agent and commits.
    3. A goes on: its write is refused. 4. B goes on as if A had not been there.
    """
    resume = asyncio.Event()

    async def life_a() -> int:
        life = await store.hydrate(A)
        hydrated.set()
        await resume.wait()
        return await store.commit(A, epoch=life.epoch, version=life.version, state=b"from A")

    hydrated = asyncio.Event()
    paused = asyncio.create_task(life_a())
    await hydrated.wait()
    b = await store.hydrate(A)
    # The version is the same still: it is the epoch that stops A.
    resume.set()
    with pytest.raises(StaleEpoch) as refused:
        await paused
    assert refused.value.metadata == {"agent": "counter/a"}
    assert await store.commit(A, epoch=b.epoch, version=b.version, state=b"from B") == 1
    record = await store.read(A)
    assert record is not None
    assert record.state == b"from B"


async def test_a_commit_with_another_version_is_refused_and_keeps_nothing(store: Store) -> None:
    await store.hydrate(A)
    await store.commit(A, epoch=1, version=0, state=b"one")
    for version in (0, 2, -1):
        with pytest.raises(StaleEpoch):
            await store.commit(A, epoch=1, version=version, state=b"wrong")
    record = await store.read(A)
    assert record is not None
    assert (record.version, record.state) == (1, b"one")


async def test_a_commit_with_an_epoch_of_the_future_is_refused(store: Store) -> None:
    await store.hydrate(A)
    with pytest.raises(StaleEpoch):
        await store.commit(A, epoch=2, version=0, state=b"wrong")


async def test_of_commits_at_once_from_one_version_exactly_one_is_kept(store: Store) -> None:
    await store.hydrate(A)
    outcomes = await asyncio.gather(
        *(store.commit(A, epoch=1, version=0, state=b"%d" % n) for n in range(10)),
        return_exceptions=True,
    )
    assert outcomes.count(1) == 1
    assert sum(isinstance(outcome, StaleEpoch) for outcome in outcomes) == 9
    record = await store.read(A)
    assert record is not None
    assert record.state == b"%d" % outcomes.index(1)


async def test_a_commit_to_an_agent_that_never_lived_is_refused_and_creates_nothing(
    store: Store,
) -> None:
    with pytest.raises(StaleEpoch):
        await store.commit(A, epoch=1, version=0, state=b"ghost")
    assert await store.read(A) is None


async def test_reads_and_lists_create_nothing(store: Store) -> None:
    assert await store.read(A) is None
    assert await store.list("t") == []
    assert await store.read(A) is None
    assert (await store.hydrate(A)).epoch == 1


async def test_the_tenant_and_the_type_are_part_of_the_identity(store: Store) -> None:
    keys = [A, A._replace(tenant="u"), A._replace(type="chatter"), A._replace(id="b")]
    for n, each in enumerate(keys):
        assert (await store.hydrate(each)).epoch == 1
        await store.commit(each, epoch=1, version=0, state=b"%d" % n)
    assert await store.delete(A)
    records = [await store.read(each) for each in keys]
    assert [record and record.state for record in records] == [None, b"1", b"2", b"3"]
    assert await names(store, "u") == [("counter", "a")]


async def test_delete_leaves_a_tombstone_that_nothing_revives(store: Store) -> None:
    await store.hydrate(A)
    await store.commit(A, epoch=1, version=0, state=b"one")
    assert await store.delete(A) is True
    assert await store.read(A) is None
    assert await store.list("t") == []
    with pytest.raises(AgentDeleted):
        await store.hydrate(A)
    for epoch, version in [(1, 1), (2, 1)]:  # the living writer, and one that guessed the epoch
        with pytest.raises(AgentDeleted):
            await store.commit(A, epoch=epoch, version=version, state=b"late")
    assert await store.delete(A) is False
    assert await store.read(A) is None


async def test_delete_of_an_id_that_never_lived_leaves_it_free(store: Store) -> None:
    assert await store.delete(A) is False
    assert (await store.hydrate(A)).epoch == 1


async def test_a_list_is_in_order_of_type_and_id_by_code_points(store: Store) -> None:
    await create(store, *TRICKY, type="b")
    await create(store, *TRICKY, type="B")
    await create(store, "elsewhere", tenant="u")
    expected = [(type, id) for type in ("B", "b") for id in sorted(TRICKY)]
    assert await names(store) == expected
    assert await names(store, type="b") == expected[len(TRICKY) :]
    assert await names(store, type="c") == []


async def test_a_list_has_no_states(store: Store, clock: Clock) -> None:
    await store.hydrate(A)
    clock.now = 1001.0
    await store.commit(A, epoch=1, version=0, state=b"private")
    assert await store.list("t") == [Record(A, 1, 1, None, 1000.0, 1001.0)]


async def test_a_prefix_is_literal_whatever_its_characters(store: Store) -> None:
    ids = [*TRICKY, *map("".join, itertools.product(TRICKY, repeat=2)), "\U0010ffff" * 3]
    await create(store, *ids)
    for prefix in [*ids, "no such"]:
        expected = [("counter", id) for id in sorted(ids) if id.startswith(prefix)]
        assert await names(store, prefix=prefix, limit=1000) == expected


@pytest.mark.parametrize("narrowed", [{}, {"type": "b"}, {"prefix": "é"}], ids=str)
async def test_pages_put_together_are_the_whole_list(
    store: Store, narrowed: dict[str, str]
) -> None:
    ids = [*TRICKY, *(f"é{c}" for c in TRICKY)]
    for type in ("a", "b", "c"):
        await create(store, *ids, type=type)
    whole = await names(store, limit=1000, **narrowed)
    joined: list[tuple[str, str]] = []
    while page := await names(store, after=joined[-1] if joined else None, limit=7, **narrowed):
        joined += page
    assert joined == whole
    assert len(whole) > 14


async def test_a_page_goes_on_from_a_place_where_no_agent_is(store: Store) -> None:
    await create(store, "a", "c", "e")
    await store.delete(key("c"))
    assert await names(store, after=("counter", "c")) == [("counter", "e")]
    assert await names(store, after=("counter", "b")) == [("counter", "e")]
    assert await names(store, after=("b", "z"), type="counter", prefix="a") == [("counter", "a")]
    assert await names(store, after=("d", ""), type="counter") == []


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_limit_below_one_gives_nothing(store: Store, limit: int) -> None:
    await create(store, "a")
    assert await store.list("t", limit=limit) == []


async def test_the_limit_of_a_list_is_a_hundred_unless_told(store: Store) -> None:
    await create(store, *map(str, range(101)))
    assert len(await store.list("t")) == 100


async def test_all_is_there_after_a_restart(make_store: Callable[[], Store]) -> None:
    store = make_store()
    await store.open()
    await store.hydrate(A)
    await store.commit(A, epoch=1, version=0, state=b"one")
    await create(store, "b", "gone")
    await store.delete(key("gone"))
    await store.close()

    store = make_store()
    await store.open()
    assert await store.hydrate(A) == Hydrated(2, 1, b"one", 1000.0)
    assert await names(store) == [("counter", "a"), ("counter", "b")]
    with pytest.raises(AgentDeleted):
        await store.hydrate(key("gone"))
    await store.close()


async def every_call_is_refused(store: Store) -> None:
    for call in (
        store.hydrate(A),
        store.commit(A, epoch=1, version=0, state=b""),
        store.read(A),
        store.list("t"),
        store.delete(A),
        store.ping(),
    ):
        with pytest.raises(StoreUnavailable):
            await call


async def test_a_store_that_is_not_open_refuses_every_call(make_store: Callable[[], Store]) -> None:
    store = make_store()
    await every_call_is_refused(store)
    await store.close()
    await store.open()
    await store.ping()
    await store.close()
    await every_call_is_refused(store)


async def test_close_may_be_called_twice_and_at_once(store: Store) -> None:
    await asyncio.gather(store.close(), store.close())
    await store.close()


async def test_a_closed_store_opens_again(store: Store) -> None:
    await store.hydrate(A)
    await store.close()
    await store.open()
    assert (await store.hydrate(A)).epoch == 2
