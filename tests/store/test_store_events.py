"""What every store promises of the log of events, whatever keeps the data."""

from __future__ import annotations

from dataclasses import replace

import pytest
from store_kit import Clock, key

from innkeeper_server.errors import AgentDeleted, StaleEpoch
from innkeeper_server.store import Chunk, Followup, Settled, Store

A, B = key("a"), key("b")


def chunk(turn: str, first: int, last: int, *, ended: bool = False, epoch: int = 1) -> Chunk:
    return Chunk(turn, epoch, first, last, f"{turn}:{first}-{last}".encode(), ended)


async def log(store: Store, chunks: list[Chunk], agent: str = "a") -> None:
    for each in chunks:
        await store.append(key(agent), epoch=1, events=each)


async def test_chunks_come_back_as_they_were_said_and_are_counted(store: Store) -> None:
    await store.hydrate(A)
    await store.hydrate(B)
    said = [chunk("t1", 1, 3), chunk("t1", 4, 4, ended=True), chunk("t2", 1, 2)]
    await log(store, said)
    await log(store, [chunk("other", 1, 9)], "b")
    kept = [replace(said[0], position=3), replace(said[1], position=4)]
    last = replace(said[2], position=6)
    assert await store.events(A) == [*kept, last]
    assert await store.events(A, after=3) == [kept[1], last]
    assert await store.events(A, limit=1) == kept[:1]
    assert await store.events(A, turn_id="t1") == kept
    assert await store.events(A, turn_id="t1", after=3) == kept[1:]
    assert await store.events(A, turn_id="other") == []
    assert (await store.newest(A), await store.newest(B), await store.newest(key("c"))) == (6, 9, 0)


async def test_an_event_is_found_by_turn_and_number(store: Store) -> None:
    await store.hydrate(A)
    await log(store, [chunk("t1", 1, 3), chunk("t1", 4, 6), chunk("t2", 1, 2)])
    assert [await store.place(A, "t1", seq) for seq in (1, 3, 4, 6)] == [1, 3, 4, 6]
    assert await store.place(A, "t2", 2) == 8
    assert await store.place(A, "t1", 7) is None
    assert await store.place(A, "t3", 1) is None
    assert await store.place(B, "t1", 1) is None


async def test_the_last_events_are_kept_with_the_effect_of_their_turn(store: Store) -> None:
    await store.hydrate(A)
    end = chunk("t1", 1, 2, ended=True)
    assert await store.commit(A, epoch=1, version=0, state=b"one", events=end) == 1
    assert await store.events(A) == [replace(end, position=2)]
    left = await store.accept(Followup("r", A, b"hello", 1000.0))
    end = chunk("r", 1, 1, ended=True)
    done = Settled(left.id, "completed")
    assert await store.commit(A, epoch=1, version=1, state=None, settled=done, events=end) == 1
    assert await store.newest(A) == 3
    with pytest.raises(StaleEpoch):  # the follow-up has ended: nothing of it is kept again
        await store.commit(A, epoch=1, version=1, state=b"two", settled=done, events=end)
    assert await store.newest(A) == 3


async def test_an_old_writer_logs_nothing(store: Store) -> None:
    await store.hydrate(A)
    await store.hydrate(A)
    with pytest.raises(StaleEpoch):
        await store.append(A, epoch=1, events=chunk("t1", 1, 1))
    with pytest.raises(StaleEpoch):
        await store.commit(A, epoch=1, version=0, state=None, events=chunk("t1", 1, 1))
    with pytest.raises(StaleEpoch):
        await store.append(B, epoch=1, events=chunk("t1", 1, 1))
    await store.append(A, epoch=2, events=chunk("t1", 1, 1))
    await store.delete(A)
    with pytest.raises(AgentDeleted):
        await store.append(A, epoch=3, events=chunk("t1", 2, 2))
    assert await store.events(A) == []


async def test_a_turn_that_broke_off_is_ended_by_the_next_writer(store: Store) -> None:
    await store.hydrate(A, interrupted=b"cut")
    assert await store.events(A) == []
    await log(store, [chunk("t1", 1, 1, ended=True), chunk("t2", 1, 3)])
    await store.hydrate(A, interrupted=b"cut")
    cut = Chunk("t2", 1, 4, 4, b"cut", ended=True, position=5)
    assert (await store.events(A))[-1] == cut
    await store.hydrate(A, interrupted=b"cut")
    assert (await store.events(A))[-1] == cut
    await store.append(A, epoch=3, events=chunk("t3", 1, 1, epoch=3))
    await store.hydrate(A)
    assert (await store.events(A))[-1].turn_id == "t3"


async def test_an_agent_keeps_its_newest_events(store: Store) -> None:
    await store.hydrate(A)
    await log(store, [chunk("t1", seq, seq) for seq in range(1, 301)])
    kept = await store.events(A, limit=1000)
    assert (kept[-1].position, kept[-1].last) == (300, 300)
    assert 100 <= len(kept) <= 107  # the newest 100 (see conftest.py), and a sixteenth of them more
    assert [each.position for each in kept] == list(range(301 - len(kept), 301))
    assert await store.place(A, "t1", 1) is None


async def test_events_grow_old_but_are_counted_on(store: Store, clock: Clock) -> None:
    await store.hydrate(A)
    await log(store, [chunk("t1", seq, seq) for seq in range(1, 6)])
    clock.now = 2000.0
    assert await store.prune_events(1000.0, limit=10) == 0
    assert await store.prune_events(1500.0, limit=3) == 3
    assert await store.prune_events(1500.0, limit=3) == 1
    assert await store.prune_events(1500.0, limit=3) == 0
    assert [each.last for each in await store.events(A)] == [5]
    await log(store, [chunk("t2", 1, 1)])
    assert await store.newest(A) == 6
    assert await store.prune_events(1500.0, limit=3) == 1
