"""Calls, replies and pushes of a session, against a host that follows a script."""

from __future__ import annotations

import asyncio
import gc

import pytest
from grpc import StatusCode
from scripted import World, status
from session_kit import OPENED, Desk, Frame, completed, refused, result, session, text

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import common_pb2 as common_pb
from innkeeper_client import Completed, Gap, GoingAway, Text, errors
from innkeeper_client.exchange import PUSH_BOUND
from innkeeper_client.inflight import REPLY_BOUND
from innkeeper_client.values import from_payload


async def test_a_session_opens_answers_and_closes_cleanly(it: World) -> None:
    async def play(desk: Desk) -> None:
        opened = await desk.hears("open")
        assert opened.open.agent == common_pb.AgentRef(type="counter", id="a")
        await desk.says(OPENED)
        frame = await desk.hears("invoke")
        assert frame.invoke.action == "add"
        assert not frame.invoke.HasField("agent")
        assert from_payload(frame.invoke.input) == {"n": 2}
        await desk.says(result(frame.call_id, 2))
        await desk.closes()

    async with session(it, play) as s:
        assert (s.id, s.runtime_id, str(s.agent)) == ("s1", "r1", "counter/a")
        assert await s.invoke("add", n=2) == 2
        assert await s.close()


async def test_answers_find_their_calls_in_any_order(it: World) -> None:
    async def play(desk: Desk) -> None:
        await desk.opens()
        frames = [await desk.hears("invoke") for _ in range(3)]
        for frame in reversed(frames):
            await desk.says(result(frame.call_id, from_payload(frame.invoke.input)["n"]))
        await desk.closes()

    async with session(it, play) as s:
        assert await asyncio.gather(*(s.invoke("add", n=n) for n in range(3))) == [0, 1, 2]


async def test_frames_that_are_ready_together_travel_together(it: World) -> None:
    batches: list[int] = []

    async def play(desk: Desk) -> None:
        await desk.opens()
        frames = [await desk.hears("invoke") for _ in range(40)]
        batches.extend(desk.batches)
        await desk.says(*(result(frame.call_id, None) for frame in frames))
        await desk.closes()

    async with session(it, play) as s:
        await asyncio.gather(*(s.invoke("add") for _ in range(40)))
    assert batches == [1, 40]


async def test_calls_beyond_the_room_wait_for_their_turn(it: World) -> None:
    at_once: list[int] = []

    async def play(desk: Desk) -> None:
        await desk.opens()
        for _ in range(3):
            pair = [await desk.hears("invoke"), await desk.hears("invoke")]
            at_once.append(len(pair))
            await desk.says(*(result(frame.call_id, 0) for frame in pair))
        await desk.closes()

    async with session(it, play, max_in_flight=2) as s:
        await asyncio.gather(*(s.invoke("add") for _ in range(6)))
    assert at_once == [2, 2, 2]


async def test_waiting_for_room_counts_against_the_deadline(it: World) -> None:
    async def play(desk: Desk) -> None:
        await desk.opens()
        first = await desk.hears("invoke")
        heard.set()
        await late.wait()
        await desk.says(result(first.call_id, 1))
        await desk.closes()

    heard, late = asyncio.Event(), asyncio.Event()
    async with session(it, play, max_in_flight=1) as s:
        first = asyncio.create_task(s.invoke("add"))
        await heard.wait()
        with pytest.raises(errors.DeadlineExceeded, match="room"):
            await s.invoke("add", timeout=0.05)
        late.set()
        assert await first == 1


async def test_a_reply_streams_and_ends_with_its_output(it: World) -> None:
    async def play(desk: Desk) -> None:
        await desk.opens()
        chat = await desk.hears("chat")
        assert chat.chat.message.text == "hello"
        await desk.says(text(chat.call_id, "good "), text(chat.call_id, "day"))
        await desk.says(completed(chat.call_id, "good day"))
        said = await desk.hears("message")
        await desk.says(completed(said.call_id, "heard"))
        await desk.closes()

    async with session(it, play) as s:
        events = [event async for event in s.chat("hello")]
        assert [type(event) for event in events] == [Text, Text, Completed]
        assert "".join(event.text for event in events) == "good day"
        assert await s.message("psst").text() == "heard"


async def test_two_replies_at_once_do_not_mix(it: World) -> None:
    async def play(desk: Desk) -> None:
        await desk.opens()
        one, two = await desk.hears("chat"), await desk.hears("chat")
        for delta in "abc":
            await desk.says(text(one.call_id, delta), text(two.call_id, delta.upper()))
        await desk.says(completed(two.call_id, None), completed(one.call_id, None))
        await desk.closes()

    async with session(it, play) as s:
        replies = await asyncio.gather(s.chat("1").text(), s.chat("2").text())
    assert [*replies] == ["abc", "ABC"]


async def test_a_turn_that_fails_or_is_cancelled_raises_in_its_reply(it: World) -> None:
    async def play(desk: Desk) -> None:
        await desk.opens()
        chat = await desk.hears("chat")
        failed = common_pb.Failed(status=status(StatusCode.UNKNOWN, "HANDLER_FAILED"))
        await desk.says(Frame(call_id=chat.call_id, event=common_pb.Event(failed=failed)))
        chat = await desk.hears("chat")
        stopped = common_pb.Event(cancelled=common_pb.Cancelled(reason="by an operator"))
        await desk.says(Frame(call_id=chat.call_id, event=stopped))
        await desk.closes()

    async with session(it, play) as s:
        with pytest.raises(errors.HandlerFailed):
            await s.chat("1").text()
        with pytest.raises(errors.WorkCancelled, match="by an operator"):
            await s.chat("2").text()


async def test_a_refused_call_is_sent_again_where_that_is_safe(it: World) -> None:
    async def play(desk: Desk) -> None:
        await desk.opens()
        for kind in ("invoke", "chat"):
            frame = await desk.hears(kind)
            full = refused(frame.call_id, StatusCode.RESOURCE_EXHAUSTED, "MAILBOX_FULL", retry=0.5)
            await desk.says(full)
            again = await desk.hears(kind)
            assert again.call_id != frame.call_id
            answer = result if kind == "invoke" else completed
            await desk.says(answer(again.call_id, "ok"))
        frame = await desk.hears("invoke")
        await desk.says(refused(frame.call_id, StatusCode.ABORTED, "EVICTED", retry=0.1))
        await desk.closes()

    async with session(it, play) as s:
        assert await s.invoke("add") == "ok"
        assert await s.chat("hello").text() == "ok"
        with pytest.raises(errors.Evicted):
            await s.invoke("add")
    assert it.naps.taken == [pytest.approx(0.6), pytest.approx(0.6)]


async def test_followups_cancels_and_pings_are_answered(it: World) -> None:
    async def play(desk: Desk) -> None:
        await desk.opens()
        frame = await desk.hears("followup")
        receipt = common_pb.Receipt(
            receipt_id="f1", state=common_pb.RECEIPT_STATE_ACCEPTED, agent=frame.followup.agent
        )
        taken = agent_pb.ResultFrame(followup=agent_pb.FollowupResponse(receipt=receipt))
        await desk.says(Frame(call_id=frame.call_id, result=taken))
        frame = await desk.hears("cancel")
        assert frame.cancel.scope == agent_pb.CANCEL_SCOPE_ALL
        work = agent_pb.CancelledWork(id="f1", kind="followup", was_running=False)
        stopped = agent_pb.ResultFrame(cancel=agent_pb.CancelResponse(cancelled=[work]))
        await desk.says(Frame(call_id=frame.call_id, result=stopped))
        ping = await desk.hears("ping")
        await desk.says(Frame(pong=agent_pb.PongFrame(nonce=ping.ping.nonce)))
        await desk.closes()

    async with session(it, play) as s:
        receipt = await s.followup("later", agent="counter/b")
        assert (receipt.receipt_id, receipt.state, str(receipt.agent)) == (
            "f1", "accepted", "counter/b",
        )  # fmt: skip
        (work,) = await s.cancel("all")
        assert (work.id, work.was_running) == ("f1", False)
        await s.ping()


async def test_pushes_and_farewells_come_by_events(it: World) -> None:
    async def play(desk: Desk) -> None:
        await desk.hears("open")
        await desk.says(OPENED, text("", "early"))
        going = agent_pb.GoingAwayFrame(reason="draining")
        await desk.says(text("", "later"), Frame(going_away=going))
        await desk.closes()

    async with session(it, play) as s:
        events = s.events()
        assert [(await anext(events)).text for _ in range(2)] == ["early", "later"]
        assert await anext(events) == GoingAway("draining", None)
    with pytest.raises(StopAsyncIteration):
        await anext(events)


async def test_pushes_that_nobody_reads_are_dropped_and_counted(it: World) -> None:
    half = "x" * (PUSH_BOUND // 2)

    async def play(desk: Desk) -> None:
        await desk.opens()
        for _ in range(5):
            await desk.says(text("", half))
        ping = await desk.hears("ping")
        await desk.says(Frame(pong=agent_pb.PongFrame(nonce=ping.ping.nonce)))
        ping = await desk.hears("ping")
        await desk.says(text("", "last"), Frame(pong=agent_pb.PongFrame(nonce=ping.ping.nonce)))
        await desk.closes()

    async with session(it, play) as s:
        await s.ping()
        events = s.events()
        assert len((await anext(events)).text) == len(half)
        await s.ping()
        assert await anext(events) == Gap(4)
        assert (await anext(events)).text == "last"


async def test_a_reply_that_nobody_reads_is_let_go_and_stopped(it: World) -> None:
    chunk = "x" * (1 << 20)

    async def play(desk: Desk) -> None:
        await desk.opens()
        chat = await desk.hears("chat")
        for _ in range(REPLY_BOUND // len(chunk) + 2):
            await desk.says(text(chat.call_id, chunk))
        stop = await desk.hears("cancel")
        assert stop.cancel.call_id == chat.call_id
        stopped.set()
        frame = await desk.hears("invoke")
        await desk.says(result(frame.call_id, 1))
        await desk.closes()

    stopped = asyncio.Event()
    async with session(it, play) as s:
        reply = s.chat("tell me everything")
        await anext(reply)
        await stopped.wait()
        # The other calls of the session do not wait behind the reply.
        assert await s.invoke("add") == 1
        with pytest.raises(errors.SlowReader):
            await reply.text()


async def test_a_call_that_is_given_up_is_stopped_on_the_host(it: World) -> None:
    stopped: list[str] = []

    async def play(desk: Desk) -> None:
        await desk.opens()
        for kind in ("invoke", "invoke", "chat", "chat"):
            frame = await desk.hears(kind)
            if kind == "chat":
                await desk.says(text(frame.call_id, "well"))
            reached.put_nowait(None)
            stop = await desk.hears("cancel")
            assert stop.cancel.call_id == frame.call_id != stop.call_id
            stopped.append(frame.call_id)
        await desk.closes()

    reached: asyncio.Queue[None] = asyncio.Queue()
    async with session(it, play) as s:
        with pytest.raises(errors.DeadlineExceeded):
            await s.invoke("add", timeout=0.05)
        await reached.get()
        cancelled = asyncio.create_task(s.invoke("add"))
        await reached.get()
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        async with s.chat("left by the end of a block") as reply:
            await anext(reply)
        dropped = s.chat("left by being dropped")
        await anext(dropped)
        del dropped
        gc.collect()
    assert len(stopped) == 4
