"""What every store promises of follow-ups, whatever keeps the data."""

from __future__ import annotations

import asyncio

import pytest
from store_kit import Clock, key

from innkeeper_server.errors import AgentDeleted, StaleEpoch
from innkeeper_server.store import Followup, Settled, Store

A, B = key("a"), key("b")


def letter(id: str, agent: object = A, **more: object) -> Followup:
    return Followup(id, agent, f"to {id}".encode(), 1000.0, **more)  # type: ignore[arg-type]


async def ids(store: Store, **page: int) -> list[str]:
    return [each.id for each in await store.pending(**page)]


async def test_what_was_accepted_is_there_as_it_was_said(store: Store) -> None:
    """The agent need not live yet, and does not begin to by it."""
    said = letter("1", expires_at=2000.5, passive=True)
    kept = await store.accept(said)
    assert kept == Followup("1", A, b"to 1", 1000.0, expires_at=2000.5, passive=True, seq=kept.seq)
    assert await store.followup("1") == kept
    assert await store.followup("2") is None
    assert await store.read(A) is None


async def test_what_is_pending_comes_oldest_first_and_in_pages(store: Store) -> None:
    for number in range(5):
        await store.accept(letter(str(number), A if number % 2 else B))
    await store.accept(letter("quiet", passive=True))
    assert await ids(store) == ["0", "1", "2", "3", "4"]
    first = await store.pending(limit=2)
    assert [each.id for each in first] == ["0", "1"]
    assert await ids(store, after=first[-1].seq, limit=2) == ["2", "3"]
    assert [each.id for each in await store.passive(A)] == ["quiet"]
    assert await store.passive(B) == []


async def test_those_accepted_at_once_have_seqs_of_their_own(store: Store) -> None:
    kept = await asyncio.gather(*(store.accept(letter(str(n))) for n in range(50)))
    assert len({each.seq for each in kept}) == 50
    assert await ids(store) == [str(n) for n in range(50)]


async def test_an_attempt_counts_when_it_begins_and_can_be_given_back(
    store: Store, clock: Clock
) -> None:
    await store.accept(letter("1"))
    clock.now = 1001.0
    assert [await store.begin("1"), await store.begin("1")] == [1, 2]
    await store.give_back("1")
    found = await store.followup("1")
    assert found is not None
    assert (found.attempt, found.started_at, found.state) == (1, 1001.0, "accepted")
    await store.give_back("1")
    await store.give_back("1")
    assert await store.begin("1") == 1
    assert await store.begin("nobody") == 0


async def test_a_follow_up_ends_once(store: Store, clock: Clock) -> None:
    await store.accept(letter("1"))
    clock.now = 1002.0
    assert await store.settle(Settled("1", "failed", b"why"))
    assert not await store.settle(Settled("1", "cancelled"))
    assert not await store.settle(Settled("2", "failed"))
    assert await store.begin("1") == 0
    found = await store.followup("1")
    assert found is not None
    assert (found.state, found.outcome, found.settled_at) == ("failed", b"why", 1002.0)
    assert await ids(store) == []


@pytest.mark.parametrize("state", [b"new", None])
async def test_its_end_and_its_effect_are_one_commit(store: Store, state: bytes | None) -> None:
    await store.hydrate(A)
    await store.accept(letter("1"))
    done = Settled("1", "completed", b"out")
    version = await store.commit(A, epoch=1, version=0, state=state, settled=done)
    assert version == (0 if state is None else 1)
    record, found = await store.read(A), await store.followup("1")
    assert record is not None
    assert found is not None
    assert (record.state, record.version) == (state, version)
    assert (found.state, found.outcome) == ("completed", b"out")


@pytest.mark.parametrize("state", [b"twice", None])
async def test_an_effect_is_never_committed_a_second_time(
    store: Store, state: bytes | None
) -> None:
    await store.hydrate(A)
    await store.accept(letter("1"))
    done = Settled("1", "completed")
    await store.commit(A, epoch=1, version=0, state=b"once", settled=done)
    with pytest.raises(StaleEpoch, match="ended already"):
        await store.commit(A, epoch=1, version=1, state=state, settled=done)
    record = await store.read(A)
    assert record is not None
    assert (record.state, record.version) == (b"once", 1)


async def test_a_writer_that_was_replaced_ends_nothing(store: Store) -> None:
    await store.hydrate(A)
    await store.accept(letter("1"))
    await store.hydrate(A)
    for state in (b"late", None):
        done = Settled("1", "completed")
        with pytest.raises(StaleEpoch):
            await store.commit(A, epoch=1, version=0, state=state, settled=done)
    assert await ids(store) == ["1"]
    record = await store.read(A)
    assert record is not None
    assert record.state is None


async def test_with_an_agent_its_follow_ups_end_and_nothing_revives_it(store: Store) -> None:
    await store.hydrate(A)
    for id, agent in (("1", A), ("2", B)):
        await store.accept(letter(id, agent))
    await store.accept(letter("3", passive=True))
    await store.delete(A)
    assert await ids(store) == ["2"]
    assert await store.passive(A) == []
    found = await store.followup("1")
    assert found is not None
    assert found.state == "cancelled"
    with pytest.raises(AgentDeleted):
        await store.accept(letter("4"))
    assert await store.followup("4") is None


async def test_a_new_life_is_told_whether_passive_ones_wait(store: Store, clock: Clock) -> None:
    await store.accept(letter("loud"))
    assert not (await store.hydrate(A)).passive
    await store.accept(letter("quiet", passive=True, expires_at=1500.0))
    assert (await store.hydrate(A)).passive
    assert not (await store.hydrate(B)).passive
    clock.now = 1500.0
    await store.prune(0.0)
    found = await store.followup("quiet")
    assert found is not None
    assert (found.state, found.settled_at) == ("expired", 1500.0)
    assert not (await store.hydrate(A)).passive
    assert await ids(store) == ["loud"]


async def test_old_receipts_are_forgotten_and_nothing_else(store: Store, clock: Clock) -> None:
    for id in ("old", "young", "open"):
        await store.accept(letter(id))
    await store.settle(Settled("old", "completed"))
    clock.now = 2000.0
    await store.settle(Settled("young", "completed"))
    assert await store.prune(2000.0, limit=10) == 1
    assert await store.followup("old") is None
    assert [id for id in ("young", "open") if await store.followup(id)] == ["young", "open"]
    assert await store.prune(3000.0, limit=10) == 1
    assert await ids(store) == ["open"]
