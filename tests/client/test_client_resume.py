"""Replies and subscriptions that go on through broken connections: every event once."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from grpc import StatusCode
from scripted import Refusal, World

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import common_pb2 as common_pb
from innkeeper_client import Completed, Cursor, Event, Gap, errors


def said(seq: int, text: str) -> agent_pb.StreamChatResponse:
    cursor = common_pb.Cursor(epoch=1, turn_id="t1", seq=seq)
    return agent_pb.StreamChatResponse(event=common_pb.Event(cursor=cursor, text_delta=text))


def end(seq: int) -> agent_pb.StreamChatResponse:
    cursor = common_pb.Cursor(epoch=1, turn_id="t1", seq=seq)
    done = common_pb.Completed(output=common_pb.Payload(text="all"))
    return agent_pb.StreamChatResponse(event=common_pb.Event(cursor=cursor, completed=done))


async def hear(events: AsyncIterator[Event], heard: list[Event]) -> None:
    async for event in events:
        heard.append(event)


def lost() -> Refusal:
    return Refusal(StatusCode.UNAVAILABLE, message="Socket closed")


def logged(seq: int, text: str) -> agent_pb.SubscribeResponse:
    return agent_pb.SubscribeResponse(event=said(seq, text).event)


async def test_a_reply_that_goes_on_is_picked_up_behind_its_last_event(it: World) -> None:
    it.agents.will([lost()], [said(1, "a"), lost()], [lost()], [said(2, "b"), end(3)])
    reply = it.client.agent("t", "x").chat("hi", on_disconnect="continue")
    assert [event.text async for event in reply] == ["a", "b", ""]
    assert reply.output == "all"
    first, again, resumed, last = it.agents.asked
    assert first.idempotency_key
    assert again == first  # nothing was heard yet: the same message, by its key
    assert resumed == last
    assert (last.after.turn_id, last.after.seq, last.agent.id) == ("t1", 1, "x")
    assert not last.HasField("message")


async def test_a_reply_that_ends_with_its_stream_is_not_picked_up(it: World) -> None:
    it.agents.will([said(1, "a"), lost()])
    reply = it.client.agent("t", "x").chat("hi")
    with pytest.raises(errors.OutcomeUnknown):
        [event async for event in reply]
    (only,) = it.agents.asked
    assert not only.idempotency_key


async def test_a_turn_that_came_to_nothing_is_not_asked_for_again(it: World) -> None:
    interrupted = Refusal(StatusCode.ABORTED, "INTERRUPTED", "the host ended")
    it.agents.will([said(1, "a"), lost()], [interrupted])
    reply = it.client.agent("t", "x").chat("hi", on_disconnect="continue")
    with pytest.raises(errors.Interrupted):
        [event async for event in reply]
    assert len(it.agents.asked) == 2


async def test_a_reply_is_resumed_from_a_cursor_that_was_kept(it: World) -> None:
    it.agents.will([said(3, "c"), end(4)])
    reply = it.client.agent("t", "x").resume(Cursor.parse("1:t1:2"))
    events = [event async for event in reply]
    assert [event.text for event in events] == ["c", ""]
    assert isinstance(events[-1], Completed)
    (asked,) = it.agents.asked
    assert (asked.after.epoch, asked.after.turn_id, asked.after.seq) == (1, "t1", 2)


async def test_a_subscription_goes_on_behind_its_last_event(it: World) -> None:
    gap = agent_pb.SubscribeResponse(event=common_pb.Event(gap=common_pb.Gap(missed=7)))
    leaving = Refusal(StatusCode.ABORTED, "EVICTED", retry=0.5)
    gone = Refusal(StatusCode.NOT_FOUND, "AGENT_DELETED")
    it.agents.will([lost()], [logged(1, "a"), leaving], [gap, logged(9, "b"), lost()], [gone])
    heard: list[Event] = []
    with pytest.raises(errors.AgentDeleted):
        await hear(it.client.agent("t", "x").subscribe(new_only=True), heard)
    assert [event.text for event in heard] == ["a", "", "b"]
    assert heard[1] == Gap(7)
    first, second, third, fourth = it.agents.asked
    assert first.new_only
    assert second == first
    assert (third.after.seq, third.new_only) == (1, False)
    assert fourth.after.seq == 9


async def test_a_subscription_gives_up_when_nothing_comes(it: World) -> None:
    it.agents.will(*[[lost()]] * 4)
    with pytest.raises(errors.OutcomeUnknown):
        await hear(it.client.agent("t", "x").subscribe(), [])
    assert len(it.agents.asked) == 4


@pytest.mark.parametrize("text", ["", "1", "1:t", "x:t:1", "1::2", "1:t:x", ":t:1"])
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="EPOCH:TURN:SEQ"):
        Cursor.parse(text)


def test_a_cursor_is_written_as_it_is_read() -> None:
    assert str(Cursor.parse("3:5f2a:b-t17:4")) == "3:5f2a:b-t17:4"
