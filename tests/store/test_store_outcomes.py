"""What every store promises of outcomes under idempotency keys, whatever keeps the data."""

from __future__ import annotations

from dataclasses import replace

import pytest
from store_kit import Clock, key

from innkeeper_server.errors import StaleEpoch
from innkeeper_server.store import Followup, Outcome, Store

A, B = key("a"), key("b")
FIRST = Outcome(A, "k", b"print", "turn-1", b"out")


async def test_an_outcome_is_kept_with_the_effect_of_its_turn(store: Store) -> None:
    await store.hydrate(A)
    assert await store.outcome(A, "k") is None
    assert await store.commit(A, epoch=1, version=0, state=b"one", settled=FIRST) == 1
    assert await store.outcome(A, "k") == FIRST
    assert await store.outcome(B, "k") is None
    assert await store.outcome(A, "other") is None


@pytest.mark.parametrize("state", [b"two", None])
async def test_a_key_has_one_outcome_and_one_effect(store: Store, state: bytes | None) -> None:
    await store.hydrate(A)
    await store.commit(A, epoch=1, version=0, state=b"one", settled=FIRST)
    with pytest.raises(StaleEpoch, match="has an outcome already"):
        await store.commit(
            A, epoch=1, version=1, state=state, settled=replace(FIRST, outcome=b"again")
        )
    assert not await store.keep(replace(FIRST, outcome=b"again"))
    record = await store.read(A)
    assert record is not None
    assert (record.state, record.version) == (b"one", 1)
    assert await store.outcome(A, "k") == FIRST


async def test_one_without_an_effect_is_kept_too_and_all_grow_old(
    store: Store, clock: Clock
) -> None:
    assert await store.keep(FIRST)
    clock.now = 2000.0
    assert await store.keep(replace(FIRST, idempotency_key="young"))
    assert await store.prune(1500.0, limit=10) == 1
    assert await store.outcome(A, "k") is None
    assert await store.outcome(A, "young") is not None


async def test_a_stale_writer_keeps_no_outcome(store: Store) -> None:
    await store.hydrate(A)
    await store.hydrate(A)
    with pytest.raises(StaleEpoch):
        await store.commit(A, epoch=1, version=0, state=b"late", settled=FIRST)
    assert await store.outcome(A, "k") is None


async def test_with_an_agent_its_outcomes_go(store: Store) -> None:
    await store.hydrate(A)
    await store.keep(FIRST)
    await store.keep(replace(FIRST, key=B))
    await store.delete(A)
    assert await store.outcome(A, "k") is None
    assert await store.outcome(B, "k") is not None


async def test_a_key_stands_for_one_follow_up(store: Store) -> None:
    said = Followup("1", A, b"hello", 1000.0, idempotency_key="k", fingerprint=b"print")
    kept = await store.accept(said)
    assert await store.accept(replace(said, id="2")) == kept
    assert await store.followup("2") is None
    other = await store.accept(replace(said, id="3", key=B))
    assert (other.id, other.key) == ("3", B)
    unnamed = [replace(said, id=id, idempotency_key="") for id in ("4", "5")]
    assert [(await store.accept(each)).id for each in unnamed] == ["4", "5"]
