"""Turns: one at a time, one transaction each, settled once; and what stops them."""

from __future__ import annotations

import asyncio

import pytest
from host_kit import World, ending, scene, settle

from innkeeper_server.errors import (
    AgentBusy,
    AgentError,
    DeadlineExceeded,
    HandlerFailed,
    InvalidRequest,
    MailboxFull,
    NoHandler,
    StoreUnavailable,
    TooLarge,
    UnknownAgentType,
    VersionMismatch,
    WorkCancelled,
)
from innkeeper_server.events import Cancelled, Completed, Failed, Text
from innkeeper_server.identity import AgentKey
from innkeeper_server.mailbox import Call
from innkeeper_server.slots import LeaseKind


def test_calls_at_once_make_a_serial_history() -> None:
    """Row 13: each sees what the one before left."""

    async def scenario(world: World) -> None:
        calls = [world.do("a", f"n{n}") for n in range(50)]
        for call in calls:
            await ending(call)
        assert world.ran == [f"n{n}" for n in range(50)]
        assert await world.done("a") == world.ran
        await world.at_rest()

    scene(scenario)


def test_a_caller_that_will_not_wait_is_refused_while_the_agent_is_busy() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["run one"].shut()
        first = world.do("a", "one")
        await gate.reached()
        second = world.host.invoke(world.key("a"), "work", {"text": "two"}, Call(), busy="reject")
        assert isinstance(await ending(second), AgentBusy)
        gate.open()
        assert await ending(first) == "one"
        third = world.host.invoke(world.key("a"), "work", {"text": "three"}, Call(), busy="reject")
        assert await ending(third) == "three"
        assert await world.done("a") == ["one", "three"]
        await world.at_rest()

    scene(scenario)


def test_a_full_mailbox_refuses_and_a_cancel_does_not_wait_behind_it() -> None:
    """Row 16: the cancel acts at once; the queue goes only if it is asked for."""

    async def scenario(world: World) -> None:
        gate = world.gates["run one"].shut()
        running = world.do("a", "one")
        await gate.reached()
        queued = [world.do("a", f"q{n}") for n in range(3)]
        assert isinstance(await ending(world.do("a", "over")), MailboxFull)
        stopped = world.host.cancel(world.key("a"), "turn")
        assert [(work.id, work.was_running) for work in stopped] == [(running.id, True)]
        assert isinstance(await ending(running), WorkCancelled)
        assert [await ending(call) for call in queued] == ["q0", "q1", "q2"]
        assert await world.done("a") == ["q0", "q1", "q2"]
        await world.at_rest()

    scene(scenario, mailbox_size=3)


@pytest.mark.parametrize(
    ("scope", "survivors"), [("turn", ["q0", "q1"]), ("queue", ["one"]), ("all", [])]
)
def test_a_cancel_stops_what_its_scope_names(scope: str, survivors: list[str]) -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["run one"].shut()
        work = [world.do("a", "one"), world.do("a", "q0"), world.do("a", "q1")]
        await gate.reached()
        world.host.cancel(world.key("a"), scope)
        gate.open()
        for envelope in work:
            await ending(envelope)
        assert await world.done("a") == survivors
        await world.at_rest()

    scene(scenario)


def test_one_piece_of_work_can_be_cancelled_by_its_id_wherever_it_is() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["run one"].shut()
        running, queued = world.do("a", "one"), world.do("a", "two")
        await gate.reached()
        waiting = world.do("b", "three")
        assert world.host.cancel(world.key("a"), "", "no such id") == []
        for envelope in (waiting, queued, running):
            key = envelope.agent
            assert [work.id for work in world.host.cancel(key, "", envelope.id)] == [envelope.id]
            assert isinstance(await ending(envelope), WorkCancelled)
        assert world.ran == ["one"]
        await world.at_rest()

    scene(scenario, capacity=1)


def test_work_whose_caller_left_before_it_began_never_runs() -> None:
    """Row 26."""

    async def scenario(world: World) -> None:
        gate = world.gates["run one"].shut()
        first = world.do("a", "one")
        await gate.reached()
        queued, waiting = world.do("a", "two"), world.do("b", "three")
        chat = world.chat("a", "four")
        for envelope in (queued, waiting, chat):
            world.host.caller_left(envelope)
            world.check()
        gate.open()
        assert await ending(first) == "one"
        await settle()
        assert world.ran == ["one"]
        await world.at_rest()

    scene(scenario, capacity=1)


@pytest.mark.parametrize(
    ("policy", "kept"), [("cancel", []), ("continue", ["one", "two", "three"])]
)
def test_a_chat_whose_reader_left_is_cancelled_or_goes_on_alone(
    policy: str, kept: list[str]
) -> None:
    """Row 12: under either policy, never a part of it."""

    async def scenario(world: World) -> None:
        gate = world.gates["run two"].shut()
        chat = world.chat("a", "one two three", on_disconnect=policy)
        await gate.reached()
        world.host.caller_left(chat)
        if policy == "continue":
            assert chat.lease is not None
            assert chat.lease.kind is LeaseKind.ENVELOPE
        gate.open()
        ended = await ending(chat)
        assert ended == "onetwothree" if kept else isinstance(ended, WorkCancelled)
        assert await world.done("a") == kept
        await world.at_rest()

    scene(scenario)


@pytest.mark.parametrize("how", ["exit", "interrupt", "key", "cancelled"])
def test_whatever_a_handler_raises_fails_its_own_turn_and_keeps_nothing(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: World) -> None:
        failing = world.host.invoke(world.key("a"), "fail", {"how": how}, Call())
        after = world.do("a", "after")
        error = await ending(failing)
        assert isinstance(error, HandlerFailed)
        assert "secret text" not in error.message + str(error.metadata)
        assert error.metadata["error_id"] in caplog.text
        assert await ending(after) == "after"
        assert await world.done("a") == ["after"]
        await world.at_rest()

    scene(scenario)


def test_a_turn_that_changes_nothing_writes_nothing() -> None:
    async def scenario(world: World) -> None:
        await world.do("a", "one").outcome()
        before = await world.store.read(world.key("a"))
        await world.host.invoke(world.key("a"), "work", {"text": "two"}, Call()).outcome()
        after = await world.store.read(world.key("a"))
        assert before is not None
        assert after is not None
        assert (before.version, after.version) == (1, 2)
        commits = world.gates["commit"].passed
        with pytest.raises(HandlerFailed):
            await world.host.invoke(world.key("a"), "fail", {"how": "key"}, Call()).outcome()
        assert world.gates["commit"].passed == commits
        await world.at_rest()

    scene(scenario)


def test_a_reply_leaves_after_the_commit_and_a_failed_commit_keeps_nothing() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["commit"].shut()
        call = world.do("a", "one")
        await gate.reached()
        await settle()
        assert call.stage.value == "active"
        world.store.fail["commit"] = [StoreUnavailable("disk full")]
        gate.open()
        assert isinstance(await ending(call), StoreUnavailable)
        assert await ending(world.do("a", "two")) == "two"
        assert await world.done("a") == ["two"]
        await world.at_rest()

    scene(scenario)


def test_a_turn_in_its_commit_cannot_be_cancelled_any_more() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["commit"].shut()
        call = world.do("a", "one")
        await gate.reached()
        assert world.host.cancel(world.key("a"), "turn") == []
        gate.open()
        assert await ending(call) == "one"
        await world.at_rest()

    scene(scenario)


def test_a_turn_that_takes_too_long_is_stopped() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["run one"].shut()
        error = await ending(world.do("a", "one"))
        assert isinstance(error, DeadlineExceeded)
        assert "longer than 7 s" in error.message
        gate.open()
        await world.at_rest()

    scene(scenario, turn_timeout=7.0)


def test_work_that_waited_beyond_its_deadline_is_skipped() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["run one"].shut()
        first = world.do("a", "one")
        await gate.reached()
        late = world.do("a", "two", deadline=world.host.now() + 5)
        expired = world.host.followup(
            world.key("a"), "three", Call(), expires_at=world.host.now() + 5
        )
        await asyncio.sleep(6)
        gate.open()
        assert await ending(first) == "one"
        assert isinstance(await ending(late), DeadlineExceeded)
        assert isinstance(await ending(expired), DeadlineExceeded)
        assert world.ran == ["one"]
        await world.at_rest()

    scene(scenario)


def test_events_are_numbered_and_end_with_one_terminal_event() -> None:
    async def scenario(world: World) -> None:
        outboxes = {}
        for text in ("one two", "fails"):
            chat = world.chat("a", text)
            if text == "fails":
                world.store.fail["commit"] = [StoreUnavailable("disk full")]
            events = []
            assert chat.outbox is not None
            while batch := await chat.outbox.read():
                events += batch
            outboxes[text] = events
        good, bad = outboxes["one two"], outboxes["fails"]
        assert [event.seq for event in good] == [1, 2, 3]
        assert [event.body for event in good] == [Text("one"), Text("two"), Completed("onetwo")]
        assert isinstance(bad[-1].body, Failed)
        assert {event.epoch for event in good} == {1}
        await world.at_rest()

    scene(scenario)


def test_a_cancelled_chat_says_so_in_its_last_event() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["run two"].shut()
        chat = world.chat("a", "one two")
        await gate.reached()
        world.host.cancel(world.key("a"), "turn")
        assert chat.outbox is not None
        events = []
        while batch := await chat.outbox.read():
            events += batch
        assert isinstance(events[-1].body, Cancelled)
        assert await world.done("a") == []
        await world.at_rest()

    scene(scenario)


def test_state_is_replaced_through_the_mailbox_and_checked_for_its_version() -> None:
    async def scenario(world: World) -> None:
        key = world.key("a")
        await world.do("a", "one").outcome()
        stale = world.host.update_state(key, {"done": ["x"]}, Call(), expected_version=7)
        assert isinstance(await ending(stale), VersionMismatch)
        good = world.host.update_state(key, {"done": ["x"]}, Call(), expected_version=1)
        await ending(good)
        await world.do("a", "two").outcome()
        assert await world.done("a") == ["x", "two"]
        with pytest.raises(InvalidRequest) as refused:
            world.host.update_state(key, {"done": "no list"}, Call())
        assert refused.value.violations[0][0].startswith("state")
        await world.at_rest()

    scene(scenario)


def test_a_state_over_the_limit_fails_its_turn_and_is_not_kept() -> None:
    async def scenario(world: World) -> None:
        assert isinstance(await ending(world.do("a", "x" * 200)), TooLarge)
        assert await ending(world.do("a", "small")) == "small"
        assert await world.done("a") == ["small"]
        await world.at_rest()

    scene(scenario, max_state_bytes=100)


def test_what_is_wrong_with_a_request_is_said_before_anything_is_allocated() -> None:
    """Rows 19 and 32: a hundred thousand refused calls leave nothing behind."""
    import gc

    async def scenario(world: World) -> None:
        def refuse() -> None:
            with pytest.raises(UnknownAgentType):
                world.host.invoke(AgentKey("default", "nobody", "a"), "work", None, Call())
            with pytest.raises(NoHandler):
                world.host.invoke(world.key("a"), "nothing", None, Call())
            with pytest.raises(InvalidRequest):
                world.host.invoke(world.key("a"), "work", {"text": 1}, Call())
            with pytest.raises(InvalidRequest):
                world.host.chat(world.key("a"), None, Call())

        for _ in range(100):
            refuse()
        gc.collect()
        objects, tasks = len(gc.get_objects()), len(asyncio.all_tasks())
        for _ in range(25_000):
            refuse()
        gc.collect()
        assert len(gc.get_objects()) - objects < 100
        assert len(asyncio.all_tasks()) == tasks
        assert world.host.account.slots == {}
        assert world.host.account.loaded_total == 0
        assert await world.store.list("default") == []

    scene(scenario)


def test_an_error_that_an_agent_raises_on_purpose_reaches_its_caller() -> None:
    async def scenario(world: World) -> None:
        async def picky(message: str) -> str:
            raise AgentError("OUT_OF_RANGE", "not that far", {"limit": "3"})

        world.registry.register("picky", picky)
        chat = world.host.chat(AgentKey("default", "picky", "p"), "go", Call())
        error = await ending(chat)
        assert isinstance(error, AgentError)
        assert (error.status_code.name, error.message) == ("OUT_OF_RANGE", "not that far")
        assert error.metadata == {"limit": "3"}

    scene(scenario)


def test_a_reader_that_reads_gets_a_reply_of_any_size() -> None:
    async def scenario(world: World) -> None:
        async def long(message: str) -> object:
            return "x" * int(message)

        async def pieces(message: str):  # type: ignore[no-untyped-def]
            for _ in range(12):
                yield "x" * 1_000_000

        world.registry.register("long", long)
        world.registry.register("pieces", pieces)
        for type, size in (("pieces", 12_000_000), ("long", 9_000_000)):
            chat = world.host.chat(AgentKey("default", type, "a"), "9000000", Call())
            assert chat.outbox is not None
            said = 0
            while events := await chat.outbox.read():
                said += sum(len(e.body.delta) for e in events if isinstance(e.body, Text))
            assert said == size

    scene(scenario)
