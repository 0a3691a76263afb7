"""What every store promises of alarms, whatever keeps the data."""

from __future__ import annotations

import asyncio

import pytest
from store_kit import Clock, key

from innkeeper_server.errors import AgentDeleted, StaleEpoch, TooLarge
from innkeeper_server.identity import AgentKey
from innkeeper_server.store import Alarm, Settled, Store
from innkeeper_server.store.protocol import ALARMS_KEPT

A, B = key("a"), key("b", type="other")


def alarm(
    name: str, due: float = 2000.5, every: float | None = None, *, agent: AgentKey = A
) -> Alarm:
    return Alarm(agent, name, due, every, f"it is {name}".encode())


async def sets(store: Store, *alarms: Alarm, agent: AgentKey = A) -> None:
    """A turn of the agent that sets these."""
    found = await store.hydrate(agent)
    await store.commit(
        agent,
        epoch=found.epoch,
        version=found.version,
        state=None,
        alarms={each.name: each for each in alarms},
    )


async def test_a_commit_sets_and_cancels_alarms(store: Store) -> None:
    await store.hydrate(A)
    one, two = alarm("one", 2000.1), alarm("two", 1999.9, 60.0)
    changes = {"one": one, "two": two, "three": None}
    assert await store.commit(A, epoch=1, version=0, state=None, alarms=changes) == 0
    assert await store.alarms(A) == [two, one]
    again = alarm("one", 1000.0, 0.25)
    changes = {"one": again, "two": None}
    assert await store.commit(A, epoch=1, version=0, state=b"s", alarms=changes) == 1
    assert await store.alarms(A) == [again]
    assert await store.alarms(B) == []


async def test_names_and_messages_are_kept_as_they_are(store: Store) -> None:
    odd = Alarm(A, "näme \U0001f514 'x' \"y\"", 0.1 + 0.2, 1e-3, bytes(range(256)))
    await sets(store, odd)
    assert await store.alarms(A) == [odd]


async def test_a_commit_that_is_refused_changes_no_alarm(store: Store) -> None:
    await sets(store, alarm("one"))
    with pytest.raises(StaleEpoch):
        await store.commit(A, epoch=9, version=0, state=b"s", alarms={"one": None})
    with pytest.raises(StaleEpoch):  # its follow-up has ended
        await store.commit(
            A,
            epoch=1,
            version=0,
            state=b"s",
            settled=Settled("gone", "completed"),
            alarms={"one": None, "two": alarm("two")},
        )
    assert await store.alarms(A) == [alarm("one")]


async def test_an_agent_has_so_many_alarms_and_no_more(store: Store) -> None:
    """A commit beyond it leaves nothing at all; one that makes room for itself is made."""
    await sets(store, *(alarm(str(number)) for number in range(ALARMS_KEPT)))
    with pytest.raises(TooLarge, match="1001 alarms; at most 1000"):
        await store.commit(A, epoch=1, version=0, state=b"s", alarms={"x": alarm("x")})
    assert len(await store.alarms(A)) == ALARMS_KEPT
    changes = {"x": alarm("x"), "0": None, "1": alarm("1", 3.0)}
    assert await store.commit(A, epoch=1, version=0, state=b"s", alarms=changes) == 1
    assert len(await store.alarms(A)) == ALARMS_KEPT


async def test_what_is_due_comes_first_of_the_types_that_are_asked_for(store: Store) -> None:
    first, second, third = alarm("x", 30.0), alarm("y", 20.0), alarm("z", 10.0, agent=B)
    await sets(store, first, second)
    await sets(store, third, agent=B)
    assert await store.due(["counter", "other"]) == [third, second, first]
    assert await store.due(["counter"], limit=1) == [second]
    assert await store.due(["other", "none"], before=10.0) == [third]
    assert await store.due(["other"], before=9.99) == []
    assert await store.due([]) == []


async def test_an_alarm_fires_once_and_becomes_a_follow_up(store: Store, clock: Clock) -> None:
    one = alarm("one")
    await sets(store, one)
    clock.now = 2000.5
    fired = await store.fire(one, "r1", following=None)
    assert fired is not None
    assert (fired.id, fired.key, fired.message, fired.accepted_at, fired.passive) == (
        ("r1", A, b"it is one", 2000.5, False)
    )
    assert await store.pending() == [fired]
    assert await store.alarms(A) == []
    assert await store.fire(one, "r2", following=None) is None
    assert await store.followup("r2") is None


async def test_two_hosts_fire_an_alarm_once(store: Store) -> None:
    tick = alarm("tick", 1000.0, 10.0)
    await sets(store, tick)
    fired = await asyncio.gather(*(store.fire(tick, f"r{n}", following=1010.0) for n in range(20)))
    assert len([each for each in fired if each is not None]) == 1
    assert len(await store.pending()) == 1
    assert await store.alarms(A) == [alarm("tick", 1010.0, 10.0)]


async def test_what_was_set_anew_meanwhile_does_not_fire(store: Store) -> None:
    """Unless it is for the same time: then its new message is what comes."""
    one = alarm("one", 1000.0)
    await sets(store, alarm("one", 1001.0))
    assert await store.fire(one, "r1", following=None) is None
    await sets(store, Alarm(A, "one", 1000.0, None, b"new"))
    fired = await store.fire(one, "r2", following=None)
    assert fired is not None
    assert fired.message == b"new"


async def test_a_time_waits_for_nobody_but_stands_for_the_one_behind_it(store: Store) -> None:
    """As long as the follow-up of one time has not ended, further times become none."""
    await sets(store, alarm("tick", 1000.0, 10.0))
    assert await store.fire(alarm("tick", 1000.0), "r1", following=1010.0) is not None
    for due in (1010.0, 1020.0):
        assert await store.fire(alarm("tick", due), "no", following=due + 10.0) is None
    await store.settle(Settled("r1", "completed"))
    assert await store.fire(alarm("tick", 1030.0), "r2", following=1040.0) is not None
    assert await store.fire(alarm("tick", 1040.0), "no", following=None) is None
    assert [each.id for each in await store.pending()] == ["r2"]
    assert await store.alarms(A) == []


async def test_a_deleted_agent_has_no_alarms_and_none_revives_it(store: Store) -> None:
    one = alarm("one", 1000.0)
    await sets(store, one)
    assert await store.delete(A)
    assert await store.due(["counter"]) == []
    assert await store.alarms(A) == []
    assert await store.fire(one, "r1", following=1010.0) is None
    with pytest.raises(AgentDeleted):
        await store.commit(A, epoch=2, version=0, state=None, alarms={"one": one})
    assert await store.alarms(A) == []
    assert await store.pending() == []


async def test_alarms_outlive_their_host(store: Store) -> None:
    await sets(store, alarm("one"))
    await store.close()
    await store.open()
    assert await store.due(["counter"]) == [alarm("one")]
