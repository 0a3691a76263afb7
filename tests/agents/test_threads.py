"""Plain handlers in threads: what they see, how they speak, and that they are waited for."""

import asyncio
import threading
from typing import Any

import pytest
from agents_kit import FUSE, carried_out, made, turn_of

from innkeeper_server import Agent, Custom, action
from innkeeper_server.agent import current_turn
from innkeeper_server.events import Outbox, Text
from innkeeper_server.threads import Threads, in_thread


class Press(Agent[dict[str, Any]]):
    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.gate = threading.Event()
        self.loop = asyncio.get_running_loop()

    @action
    def where(self) -> list[Any]:
        return [threading.get_ident(), self.turn.id, current_turn.get().kind]

    @action
    def held(self) -> str:
        self.loop.call_soon_threadsafe(self.started.set)
        assert self.gate.wait(FUSE)
        self.state["held"] = True
        return "released"

    @action
    def fail(self) -> None:
        raise KeyError("gone")

    @action
    def leave(self) -> None:
        raise SystemExit(3)

    @action
    def speak(self) -> str:
        self.turn.emit("one ")
        self.turn.emit({"n": 2}, name="count")
        self.turn.emit("three")
        return "done"

    @action
    def look(self) -> str:
        self.loop.call_soon_threadsafe(self.started.set)
        while not self.turn.cancelled:
            assert not self.gate.wait(0.001)
        return self.turn.cancel_requested


async def test_a_plain_action_runs_in_a_thread_that_sees_its_turn() -> None:
    type, agent = made(Press)
    output, _ = await carried_out(type.bind_invoke("where", None), agent)
    assert isinstance(output, list)
    assert output[0] != threading.get_ident()
    assert output[1:] == ["t1", "invoke"]


async def test_a_cancelled_plain_action_is_waited_for_to_its_end() -> None:
    type, agent = made(Press)
    bound = type.bind_invoke("held", None)
    task = asyncio.ensure_future(bound.run(agent, turn_of(bound)))
    await agent.started.wait()
    for _ in range(3):  # however often
        task.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not task.done()
    agent.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert agent.state == {"held": True}


async def test_a_plain_action_can_see_that_it_was_told_to_stop() -> None:
    type, agent = made(Press)
    bound = type.bind_invoke("look", None)
    turn = turn_of(bound)

    async def run() -> Any:
        current_turn.set(turn)
        return await bound.run(agent, turn)

    task = asyncio.ensure_future(run())
    await agent.started.wait()
    turn.cancel_requested = "somebody asked"
    assert await task == "somebody asked"


async def test_what_a_thread_raises_comes_out_even_system_exit() -> None:
    type, agent = made(Press)
    with pytest.raises(KeyError, match="gone"):
        await carried_out(type.bind_invoke("fail", None), agent)
    bound = type.bind_invoke("leave", None)
    with pytest.raises(SystemExit):
        await bound.run(agent, turn_of(bound))


async def test_events_of_a_thread_arrive_in_order() -> None:
    type, agent = made(Press)
    output, said = await carried_out(type.bind_invoke("speak", None), agent)
    assert output == "done"
    assert said == [Text("one "), Custom("count", {"n": 2}), Text("three")]


def flood(message: str) -> str:
    turn = current_turn.get()
    for _ in range(1000):
        turn.emit(message)
    return ""


async def test_a_thread_that_says_too_much_waits_for_its_reader() -> None:
    type, agent = made(flood)
    bound = type.bind_chat("x")
    outbox = Outbox(reader_timeout=FUSE)
    turn = turn_of(bound, outbox)

    async def run() -> Any:
        current_turn.set(turn)
        return await bound.run(agent, turn)

    task = asyncio.ensure_future(run())
    heard = 0
    while heard < 1001:  # the empty reply is the last
        batch = len(await outbox.read())
        assert batch <= 257
        heard += batch
    await task


async def test_a_call_that_waits_for_a_thread_is_dropped_when_it_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("innkeeper_server.threads._threads", Threads(1))
    gate, began = threading.Event(), asyncio.Event()
    ran: list[int] = []
    loop = asyncio.get_running_loop()

    def hold() -> bool:
        loop.call_soon_threadsafe(began.set)
        return gate.wait(FUSE)

    first = asyncio.ensure_future(in_thread(hold))
    await began.wait()
    second = asyncio.ensure_future(in_thread(ran.append, 1))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    gate.set()
    assert await first
    assert await in_thread(len, "last") == 4  # the same thread goes on
    assert ran == []


async def test_no_more_threads_are_started_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("innkeeper_server.threads._threads", Threads(3))
    meeting = threading.Barrier(3, timeout=FUSE)  # passes only if three run at once

    def meet() -> int:
        meeting.wait()
        return threading.get_ident()

    idents = await asyncio.gather(*(in_thread(meet) for _ in range(9)))
    assert len(set(idents)) == 3


def test_one_thread_is_enough_for_calls_that_follow_each_other() -> None:
    threads = Threads(8)
    idents = {threads.submit(threading.get_ident).result(FUSE) for _ in range(50)}
    assert len(idents) == 1


def test_a_thread_that_outlives_its_loop_harms_nobody() -> None:
    gate = threading.Event()
    began = threading.Event()

    def hold() -> None:
        began.set()
        gate.wait(FUSE)

    loop = asyncio.new_event_loop()
    task = loop.create_task(in_thread(hold))
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert began.wait(FUSE)
    loop.close()
    gate.set()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
