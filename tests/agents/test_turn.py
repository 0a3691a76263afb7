"""The turn as a handler sees it."""

import asyncio
from typing import Any

import pytest
from agents_kit import KEY, NoHost, carried_out, made, turn_of

from innkeeper_server import Agent, Custom, Turn, action
from innkeeper_server.agent import current_turn
from innkeeper_server.events import Event, Outbox, Text


async def test_events_are_numbered_from_one_and_carry_their_place() -> None:
    outbox = Outbox(reader_timeout=1.0)
    turn = turn_of(outbox=outbox)
    turn.emit("hello")
    turn.emit({"n": 1})
    turn.emit(2, name="two")
    turn.emit(Custom("tool", {"set": {3}}))  # type: ignore[dict-item]
    assert await outbox.read() == [
        Event(3, "t1", 1, Text("hello")),
        Event(3, "t1", 2, Custom("event", {"n": 1})),
        Event(3, "t1", 3, Custom("two", 2)),
        Event(3, "t1", 4, Custom("tool", {"set": [3]})),
    ]
    assert turn.last_seq == 4


def test_an_event_that_cannot_travel_is_refused_also_where_nobody_listens() -> None:
    turn = turn_of()
    for item in (object(), "\ud83d", Custom("x", object())):  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            turn.emit(item)
    assert turn.last_seq == 0


def test_an_event_is_a_copy_of_what_was_emitted() -> None:
    outbox = Outbox(reader_timeout=1.0)
    turn = turn_of(outbox=outbox)
    notes = ["towels"]
    turn.emit(notes)
    notes.append("soap")
    asyncio.run(_reads(outbox, Custom("event", ["towels"])))


async def _reads(outbox: Outbox, body: Any) -> None:
    assert [event.body for event in await outbox.read()] == [body]


def test_a_turn_is_cancelled_once_a_reason_is_given() -> None:
    turn = turn_of()
    assert not turn.cancelled
    turn.cancel_requested = "the caller asked"
    assert turn.cancelled


class Loose(Agent[dict[str, Any]]):
    seen: list[Turn]

    @action
    async def leave_a_task(self) -> None:
        self.go = asyncio.Event()
        self.task = self.spawn(self._later())

    async def _later(self) -> None:
        await self.go.wait()
        self.seen = [self.turn]
        self.turn.emit("too late")

    @action
    async def now(self) -> str:
        self.go.set()
        await asyncio.wait([self.task])
        return self.turn.id


async def test_a_task_that_outlives_its_turn_never_sees_or_speaks_in_a_later_one() -> None:
    type, agent = made(Loose)
    await carried_out(type.bind_invoke("leave_a_task", None), agent)
    output, said = await carried_out(type.bind_invoke("now", None), agent)
    assert output == "t1"
    assert said == []
    (old,) = agent.seen
    assert old.ended
    with pytest.raises(RuntimeError, match="is over and can say nothing more"):
        agent.task.result()


def test_outside_of_a_turn_there_is_none() -> None:
    _, agent = made(Loose)
    with pytest.raises(RuntimeError, match="no turn runs here"):
        _ = agent.turn
    assert current_turn.get(None) is None


def test_an_agent_knows_who_it_is() -> None:
    type, agent = made(Loose)
    assert (agent.id, agent.type, agent.key.tenant) == ("a", "loose", "default")
    assert isinstance(agent.host, NoHost)
    assert repr(turn_of()) == f"<turn t1 chat of {KEY}>"
    assert repr(type) == "<agent type loose>"
