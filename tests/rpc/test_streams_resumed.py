"""Streams that are picked up, subscriptions, and sessions that hear an agent, over the wire."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from rpc_kit import World, chat, key, ref, soon, until

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import common_pb2 as common_pb

SAID = "one two at-door three"
ON = agent_pb.ON_DISCONNECT_CONTINUE


async def told(call: Any) -> list[common_pb.Event]:
    """The events of a stream, to its end."""
    events = []
    while (message := await call.read()) is not grpc.aio.EOF:
        events.append(message.event)
    return events


def texts(events: list[common_pb.Event]) -> list[str]:
    return [event.text_delta for event in events if event.HasField("text_delta")]


def resume(after: common_pb.Cursor, id: str = "a") -> agent_pb.StreamChatRequest:
    return agent_pb.StreamChatRequest(agent=ref(id), after=after)


def subscribe(id: str = "a", **more: Any) -> agent_pb.SubscribeRequest:
    return agent_pb.SubscribeRequest(agent=ref(id), **more)


async def test_a_stream_is_picked_up_after_each_of_its_events(it: World) -> None:
    whole = await soon(told(it.stub.StreamChat(chat("one two three"))))
    for cut, event in enumerate(whole[:-1], 1):
        assert await soon(told(it.stub.StreamChat(resume(event.cursor)))) == whole[cut:]
    assert await soon(told(it.stub.StreamChat(resume(whole[-1].cursor)))) == whole[-1:]


async def test_a_turn_that_goes_on_alone_is_picked_up_while_it_runs(it: World) -> None:
    gate = it.gate("at-door").shut()
    call = it.stub.StreamChat(chat(SAID, on_disconnect=ON))
    first = await soon(call.read())
    await gate.reached()
    call.cancel()
    await soon(it.no_calls())
    again = it.stub.StreamChat(resume(first.event.cursor))
    assert (await soon(again.read())).event.text_delta == "two"
    gate.open()
    rest = await soon(told(again))
    assert texts(rest) == ["three"]
    assert rest[-1].HasField("completed")
    assert await it.count() == 1


async def test_a_failed_turn_fails_again_with_the_same_status(it: World) -> None:
    call = it.stub.StreamChat(chat("one fail"))
    first = await soon(call.read())
    with pytest.raises(grpc.aio.AioRpcError) as was:
        await soon(told(call))
    with pytest.raises(grpc.aio.AioRpcError) as now:
        await soon(told(it.stub.StreamChat(resume(first.event.cursor))))
    assert (now.value.code(), now.value.details()) == (was.value.code(), was.value.details())
    assert "hunter2" not in str(now.value.details())


@pytest.mark.parametrize(
    ("after", "code", "field"),
    [
        ({"turn_id": "never", "seq": 1}, grpc.StatusCode.NOT_FOUND, "no such turn"),
        ({"turn_id": "", "seq": 1}, grpc.StatusCode.INVALID_ARGUMENT, "after.turn_id"),
        ({"turn_id": "t", "seq": -1}, grpc.StatusCode.INVALID_ARGUMENT, "after.seq"),
        ({"turn_id": "t\n", "seq": 1}, grpc.StatusCode.INVALID_ARGUMENT, "after.turn_id"),
        ({"turn_id": "t" * 257, "seq": 1}, grpc.StatusCode.INVALID_ARGUMENT, "after.turn_id"),
    ],
)
async def test_what_cannot_be_picked_up_is_refused_and_wakes_nobody(
    it: World, after: dict[str, Any], code: grpc.StatusCode, field: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await soon(told(it.stub.StreamChat(resume(common_pb.Cursor(**after)))))
    assert refusal.value.code() is code
    assert field in str(refusal.value.details())
    assert not it.host.account.slots


async def test_one_agents_turn_is_nothing_to_another(it: World) -> None:
    (first, *_) = await soon(told(it.stub.StreamChat(chat("one"))))
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await soon(told(it.stub.StreamChat(resume(first.cursor, "b"))))
    assert refusal.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_message_that_is_sent_twice_runs_once(it: World) -> None:
    whole = await soon(told(it.stub.StreamChat(chat("one two", idempotency_key="k"))))
    assert await soon(told(it.stub.StreamChat(chat("one two", idempotency_key="k")))) == whole
    assert await it.count() == 1
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await soon(told(it.stub.StreamChat(chat("another", idempotency_key="k"))))
    assert refusal.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_subscriber_hears_the_log_and_then_live(it: World) -> None:
    whole = await soon(told(it.stub.StreamChat(chat("one two"))))
    everything = it.stub.Subscribe(subscribe())
    behind = it.stub.Subscribe(subscribe(after=whole[1].cursor))
    assert [(await soon(everything.read())).event for _ in whole] == whole
    assert (await soon(behind.read())).event == whole[2]
    new = it.stub.Subscribe(subscribe(new_only=True))
    await until(lambda: _subscribers(it) == 3)
    more = await soon(told(it.stub.StreamChat(chat("three"))))
    for call in (everything, behind):
        assert [(await soon(call.read())).event for _ in more] == more
    for call in (everything, behind, new):
        call.cancel()
    await soon(it.no_calls())
    assert _subscribers(it) == 0


async def test_a_subscriber_is_told_when_its_agent_is_evicted_or_the_host_drains(
    it: World,
) -> None:
    call = it.stub.Subscribe(subscribe())
    await soon(told(it.stub.StreamChat(chat("one"))))
    await soon(call.read())
    await soon(it.host.operators.evict(key(), mode="force"))
    with pytest.raises(grpc.aio.AioRpcError) as end:
        await soon(told(call))
    assert end.value.code() is grpc.StatusCode.ABORTED


async def test_new_only_and_after_exclude_each_other(it: World) -> None:
    after = common_pb.Cursor(turn_id="t", seq=1)
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await soon(told(it.stub.Subscribe(subscribe(after=after, new_only=True))))
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "new_only" in str(refusal.value.details())


def _subscribers(it: World) -> int:
    journal = it.host.turns._journal
    assert journal is not None
    watch = journal._watches.get(key())
    return 0 if watch is None else watch.watchers
