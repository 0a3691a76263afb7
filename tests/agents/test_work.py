"""Driving handlers: every form they can have, what each says, and how each ends."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from agents_kit import FUSE, carried_out, customs_of, made, text_of, turn_of

from innkeeper_server import Agent, AgentError, Blob, Custom, Turn, action, work
from innkeeper_server.errors import TooLarge
from innkeeper_server.events import Outbox, Text


class Talker(Agent[dict[str, Any]]):
    async def chat(self, message: str) -> AsyncIterator[Any]:
        try:
            for word in message.split():
                yield Custom("tool", {"name": word}) if word.isupper() else word
        finally:
            self.state["closed"] = True


async def test_a_generator_says_each_item_and_gives_the_whole_text() -> None:
    type, agent = made(Talker)
    output, said = await carried_out(type.bind_chat("one two three"), agent)
    assert said == [Text("one"), Text("two"), Text("three")]
    assert output == "onetwothree"


async def test_a_generator_that_says_more_than_text_has_no_output() -> None:
    type, agent = made(Talker)
    output, said = await carried_out(type.bind_chat("one TWO three"), agent)
    assert said == [Text("one"), Custom("tool", {"name": "TWO"}), Text("three")]
    assert output is None


async def test_a_generator_that_says_nothing_gives_an_empty_text() -> None:
    type, agent = made(Talker)
    assert await carried_out(type.bind_chat(""), agent) == ("", [])


async def coroutine(message: str) -> str:
    return f"you said {message}"


def plain(message: str) -> str:
    return f"you said {message}"


async def returns_a_stream(message: str) -> AsyncIterator[str]:
    async def stream() -> AsyncIterator[str]:
        yield "you said "
        yield message

    return stream()


@pytest.mark.parametrize("source", [coroutine, plain, returns_a_stream])
async def test_a_reply_given_at_once_is_said_and_is_the_output(source: Any) -> None:
    type, agent = made(source)
    output, said = await carried_out(type.bind_chat("hi"), agent)
    assert output == text_of(said) == "you said hi"


async def test_a_plain_function_that_is_invoked_gives_its_whole_text() -> None:
    type, agent = made(returns_a_stream)
    inputs: list[Any] = ["hi", {"message": "hi"}]
    for input in inputs:
        assert (await carried_out(type.bind_invoke("", input), agent))[0] == "you said hi"


async def with_turn(message: str, turn: Turn) -> str:
    return f"{turn.id} {message}"


async def with_named_turn(message: str, turn: Turn | None = None) -> str:
    assert turn is not None
    return f"{turn.id} {message}"


async def with_option(message: str, loud: bool = False) -> str:
    return f"{loud} {message}"


@pytest.mark.parametrize(
    ("source", "reply"),
    [(with_turn, "t1 hi"), (with_named_turn, "t1 hi"), (with_option, "False hi")],
)
async def test_a_second_parameter_can_ask_for_the_turn(source: Any, reply: str) -> None:
    type, agent = made(source)
    assert (await carried_out(type.bind_chat("hi"), agent))[0] == reply
    assert (await carried_out(type.bind_invoke("", "hi"), agent))[0] == reply


class Desk(Agent[dict[str, Any]]):
    @action
    async def say(self, text: str) -> str:
        self.turn.emit({"about": text}, name="heard")
        return text

    @action
    async def keep(self, item: str) -> list[str]:
        kept: list[str] = self.state.setdefault("kept", [])
        kept.append(item)
        return kept

    @action
    async def picture(self) -> bytes:
        return b"\x89PNG"

    @action
    async def broken(self) -> object:
        return object()

    @action
    async def fail(self) -> None:
        raise AgentError("NOT_FOUND", "no such room")

    async def followup(self, message: str) -> None:
        self.state["later"] = message

    async def on_message(self, message: Any) -> Any:
        return {"heard": message}


async def test_an_actions_text_is_its_output_and_not_an_event() -> None:
    type, agent = made(Desk)
    output, said = await carried_out(type.bind_invoke("say", "hi"), agent)
    assert output == "hi"
    assert said == [Custom("heard", {"about": "hi"})]


async def test_an_output_is_a_copy_of_what_the_action_returned() -> None:
    type, agent = made(Desk)
    first, _ = await carried_out(type.bind_invoke("keep", "a"), agent)
    await carried_out(type.bind_invoke("keep", "b"), agent)
    assert first == ["a"]


async def test_bytes_come_out_as_a_blob_and_what_cannot_travel_as_a_type_error() -> None:
    type, agent = made(Desk)
    assert (await carried_out(type.bind_invoke("picture", None), agent))[0] == Blob(b"\x89PNG")
    with pytest.raises(TypeError, match="object cannot travel"):
        await carried_out(type.bind_invoke("broken", None), agent)


async def test_what_a_handler_raises_comes_out_as_it_is() -> None:
    type, agent = made(Desk)
    with pytest.raises(AgentError, match="no such room"):
        await carried_out(type.bind_invoke("fail", None), agent)


async def test_each_kind_of_message_has_its_own_handler_if_it_is_written() -> None:
    type, agent = made(Desk)
    assert await carried_out(type.bind_followup("later"), agent) == (None, [])
    assert agent.state == {"later": "later"}
    output, said = await carried_out(type.bind_message([1]), agent)
    assert output == {"heard": [1]}
    assert said == []  # only text is said; other replies are the output


async def test_without_their_own_handlers_messages_and_followups_are_chats() -> None:
    type, agent = made(Talker)
    for bound in (type.bind_followup("a b"), type.bind_message("a b")):
        assert bound.handler == "Talker.chat"
        assert (await carried_out(bound, agent))[0] == "ab"


async def bad_item(message: str) -> AsyncIterator[Any]:
    try:
        yield "fine"
        yield object()
    finally:
        closed.append(message)


closed: list[str] = []


async def test_an_item_that_cannot_travel_fails_the_turn_and_closes_the_generator() -> None:
    type, agent = made(bad_item)
    with pytest.raises(TypeError, match="object cannot travel"):
        await carried_out(type.bind_chat("bad"), agent)
    assert closed.pop() == "bad"


async def patient(message: str) -> AsyncIterator[str]:
    try:
        yield "begin"
        await asyncio.get_running_loop().create_future()
    finally:
        closed.append(message)


async def test_a_cancelled_generator_is_closed_before_the_cancellation_goes_on() -> None:
    type, agent = made(patient)
    bound = type.bind_chat("left")
    turn = turn_of(bound, outbox := Outbox(reader_timeout=FUSE))
    task = asyncio.ensure_future(bound.run(agent, turn))
    await outbox.read()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed.pop() == "left"
    assert turn.ended


async def stubborn(message: str) -> AsyncIterator[str]:
    while True:
        try:
            yield "again"
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            closed.append(message)


async def test_a_generator_that_swallows_its_cancellation_is_ended_at_its_next_item() -> None:
    type, agent = made(stubborn)
    bound = type.bind_chat("swallowed")
    turn = turn_of(bound, outbox := Outbox(reader_timeout=FUSE))
    task = asyncio.ensure_future(bound.run(agent, turn))
    await outbox.read()
    turn.cancel_requested = "enough"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed.pop() == "swallowed"


async def restless(message: str) -> AsyncIterator[str]:
    while True:
        yield message


async def test_a_generator_that_never_waits_still_lets_others_run() -> None:
    type, agent = made(restless)
    bound = type.bind_followup("x")
    task = asyncio.ensure_future(bound.run(agent, turn_of(bound)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def endless_text(message: str) -> AsyncIterator[str]:
    for _ in range(5):
        yield message


async def test_a_text_too_long_to_keep_is_no_output_and_fails_where_nobody_saw_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(work, "MAX_TEXT", 12)
    type, agent = made(endless_text)
    output, said = await carried_out(type.bind_chat("four"), agent)
    assert output is None
    assert text_of(said) == "four" * 5
    with pytest.raises(TooLarge):
        await carried_out(type.bind_invoke("", "four"), agent)


async def test_a_slow_reader_makes_the_generator_wait() -> None:
    type, agent = made(restless)
    bound = type.bind_chat("x")
    outbox = Outbox(reader_timeout=20.0)
    turn = turn_of(bound, outbox)
    task = asyncio.ensure_future(bound.run(agent, turn))
    for _ in range(500):
        await asyncio.sleep(0)
    before = turn.last_seq
    assert before <= 256
    await outbox.read()
    for _ in range(10):
        await asyncio.sleep(0)
    assert turn.last_seq > before
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def both(message: str) -> AsyncIterator[Any]:
    yield {"a": 1}
    yield None
    yield 5


async def test_items_that_are_no_text_become_events_called_event() -> None:
    type, agent = made(both)
    _, said = await carried_out(type.bind_chat("x"), agent)
    assert customs_of(said) == [("event", {"a": 1}), ("event", None), ("event", 5)]
