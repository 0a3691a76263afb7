"""What turns say is logged before anybody hears it, and can be heard again from any event on."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from host_kit import GUESTS, World, ending, scene, settle
from test_followups import restart

from innkeeper_server.agent import Agent, action
from innkeeper_server.errors import (
    Draining,
    InnkeeperError,
    Interrupted,
    StoreUnavailable,
    TurnNotFound,
    WorkCancelled,
)
from innkeeper_server.events import TERMINAL, Cancelled, Completed, Event, Failed, Gap, Text
from innkeeper_server.mailbox import Call, Envelope
from innkeeper_server.rpc.hearing import heard

TURN = "one two three four five"
WORDS = TURN.split()


class Talker(Agent[None]):
    """Says as much as it is told to, without ever waiting; and speaks outside of chats."""

    async def chat(self, message: str) -> None:
        for number in range(int(message)):
            self.turn.emit(f"{number} ")

    @action
    async def mention(self, word: str) -> None:
        self.turn.emit(word)


GUESTS.register("talker", Talker)


async def resumed(world: World, turn_id: str, after: int = 0, id: str = "a") -> list[Event]:
    """What a turn says behind an event."""
    following = world.host.followed()
    return [each async for each in following.turn(world.key(id), turn_id, after, Call())]


async def hear(world: World, envelope: Envelope) -> list[Event]:
    """What an envelope's reader hears."""
    try:
        return [each async for each in heard(world.host, envelope)]
    finally:
        world.host.caller_left(envelope)


def words(events: list[Event]) -> list[str]:
    return [each.body.delta for each in events if isinstance(each.body, Text)]


def numbers(events: list[Event]) -> list[int]:
    return [each.seq for each in events]


# -- picked up ----------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", range(7))
def test_a_stream_that_is_cut_after_any_event_is_picked_up_there(cut: int) -> None:
    """Row 9 of the lessons: what was heard before and after is the uncut whole."""

    async def scenario(world: World) -> None:
        gate = world.gates["run three"].shut()
        chat = world.chat("a", TURN, on_disconnect="continue")
        before = []
        async with aclosing(heard(world.host, chat)) as events:
            while len(before) < cut:
                before.append(await anext(events))
                if len(before) == 2:
                    gate.open()
        world.host.caller_left(chat)
        rest = asyncio.ensure_future(resumed(world, chat.id, cut))
        await settle()
        gate.open()
        whole = before + (await rest)[0 if cut < 6 else 1 :]  # the end is told again
        assert words(whole) == WORDS
        assert numbers(whole) == [1, 2, 3, 4, 5, 6]
        assert isinstance(whole[-1].body, Completed)
        assert await world.done("a") == WORDS
        await world.at_rest()

    scene(scenario)


def test_a_turn_that_is_over_can_be_heard_again_until_its_retention_is_over() -> None:
    """Row 11: a resume always ends."""

    async def scenario(world: World) -> None:
        chat = world.chat("a", TURN)
        whole = await hear(world, chat)
        for after in range(6):
            assert await resumed(world, chat.id, after) == whole[after:]
        await restart(world)
        assert await resumed(world, chat.id, 2) == whole[2:]
        assert world.resident() == []  # it woke nobody
        await hear(world, world.chat("a", "six"))
        await asyncio.sleep(world.limits.event_retention + 600.0)
        await settle()
        with pytest.raises(TurnNotFound):
            await resumed(world, chat.id, 2)
        with pytest.raises(TurnNotFound):
            await resumed(world, "never", 1)

    scene(scenario, event_retention=1000.0)


def test_what_is_kept_no_longer_is_told_as_a_gap() -> None:
    async def scenario(world: World) -> None:
        chat = world.host.chat(world.key("a")._replace(type="talker"), "1500", Call())
        await hear(world, chat)
        following = world.host.followed()
        events = [each async for each in following.turn(chat.agent, chat.id, 3, Call())]
        first = events[0]
        assert isinstance(first.body, Gap)
        assert first.body.missed == events[1].seq - 1 - 3 == first.seq - 3
        assert numbers(events[1:]) == list(range(events[1].seq, 1502))
        assert isinstance(events[-1].body, Completed)

    async def with_little_room(world: World) -> None:
        world.store._log._kept = 600
        await scenario(world)
        await world.at_rest()

    scene(with_little_room)


def test_a_thousand_events_at_once_come_to_two_resumers_in_order() -> None:
    """Row 10: strictly increasing, no repeats."""

    async def scenario(world: World) -> None:
        gate = world.gates["append"].shut()
        chat = world.host.chat(
            world.key("a")._replace(type="talker"), "1000", Call(), on_disconnect="continue"
        )
        await gate.reached()
        world.host.caller_left(chat)
        following = world.host.followed()

        async def follow(after: int) -> list[Event]:
            return [each async for each in following.turn(chat.agent, chat.id, after, Call())]

        both = [asyncio.ensure_future(follow(0)), asyncio.ensure_future(follow(500))]
        await settle()
        gate.open()
        assert [numbers(await each) for each in both] == [
            list(range(1, 1002)),
            list(range(501, 1002)),
        ]
        await world.at_rest()

    scene(scenario)


def test_a_turn_that_broke_off_with_its_host_is_ended_by_the_next() -> None:
    """Row 11: resume after a restart."""

    async def scenario(world: World) -> None:
        gate = world.gates["run three"].shut()
        chat = world.chat("a", TURN, on_disconnect="continue")
        await gate.reached()
        await settle()
        await restart(world)
        events = await resumed(world, chat.id, 1)
        assert (words(events), numbers(events)) == (["two"], [2, 3])
        end = events[-1].body
        assert isinstance(end, Failed)
        assert isinstance(end.error, Interrupted)
        assert numbers(await resumed(world, chat.id, 1)) == [2, 3]
        assert await world.done("a") == []

    scene(scenario, capacity=2)


def test_who_leaves_a_turn_that_goes_on_changes_nothing_and_one_that_does_not_stops_it() -> None:
    """Row 12: the run completes, or is cancelled; never a part of it as a success."""

    async def scenario(world: World) -> None:
        for policy, kept in (("continue", WORDS), ("cancel", [])):
            gate = world.gates["run three"].shut()
            chat = world.chat(policy, TURN, on_disconnect=policy)
            await gate.reached()
            world.host.caller_left(chat)
            await settle()
            gate.open()
            await ending(chat)
            assert await world.done(policy) == kept
            end = (await resumed(world, chat.id, 1, policy))[-1].body
            assert isinstance(end, Completed if kept else Cancelled)
        await world.at_rest()

    scene(scenario, capacity=2)


# -- logged first -------------------------------------------------------------------------------


def test_nothing_is_heard_before_it_is_logged() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["append"].shut()
        chat = world.chat("a", "one")
        reading = asyncio.ensure_future(hear(world, chat))
        await gate.reached()
        await settle()
        assert not reading.done()
        assert chat.outbox is not None
        assert not chat.outbox._buffer
        gate.open()
        assert words(await reading) == ["one"]
        await world.at_rest()

    scene(scenario)


def test_the_end_of_a_turn_is_logged_in_the_commit_of_its_effect() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["commit"].shut()
        chat = world.chat("a", "one")
        reading = asyncio.ensure_future(hear(world, chat))
        await gate.reached()
        await settle()
        assert not reading.done()
        logged = await world.store.events(chat.agent)
        assert [each.ended for each in logged] == [False]
        gate.open()
        await reading
        assert [each.ended for each in await world.store.events(chat.agent)] == [False, True]
        assert await world.done("a") == ["one"]

    scene(scenario)


@pytest.mark.parametrize("operation", ["append", "commit"])
def test_a_turn_that_cannot_be_logged_comes_to_nothing(operation: str) -> None:
    async def scenario(world: World) -> None:
        world.store.fail[operation] = [StoreUnavailable("not now")]
        chat = world.chat("a", "one two")
        events = await hear(world, chat)
        assert isinstance(chat.error, StoreUnavailable)
        end = events[-1].body
        assert isinstance(end, Failed)
        assert isinstance(end.error, StoreUnavailable)
        del world.store.fail[operation]
        assert await world.done("a") == []
        told = await resumed(world, chat.id, 0)
        assert isinstance(told[-1].body, Failed)
        assert words(await hear(world, world.chat("a", "three"))) == ["three"]
        assert await world.done("a") == ["three"]
        await world.at_rest()

    scene(scenario)


def test_a_turn_whose_end_cannot_be_logged_is_over_all_the_same() -> None:
    async def scenario(world: World) -> None:
        unavailable: list[InnkeeperError | None] = [StoreUnavailable("not now")] * 2
        world.store.fail["append"] = unavailable
        chat = world.chat("a", "one two")
        await hear(world, chat)
        assert isinstance(chat.error, StoreUnavailable)
        del world.store.fail["append"]
        await hear(world, world.chat("a", "three"))
        with pytest.raises(TurnNotFound):  # nothing of it was ever heard by a follower
            await resumed(world, chat.id, 0)
        await world.at_rest()

    scene(scenario)


def test_only_what_was_said_is_logged() -> None:
    async def scenario(world: World) -> None:
        await ending(world.do("a"))
        assert await world.store.newest(world.key("a")) == 0
        talker = world.key("t")._replace(type="talker")
        await ending(world.host.invoke(talker, "mention", {"word": "psst"}, Call()))
        logged = await world.store.events(talker)
        assert [(each.first, each.last, each.ended) for each in logged] == [
            (1, 1, False),
            (2, 2, True),
        ]
        await world.at_rest()

    scene(scenario, capacity=2)


def test_a_host_that_keeps_no_log_speaks_as_before() -> None:
    async def scenario(world: World) -> None:
        assert words(await hear(world, world.chat("a", TURN))) == WORDS
        assert await world.store.newest(world.key("a")) == 0
        with pytest.raises(InnkeeperError, match="keeps no log"):
            world.host.followed()
        await world.at_rest()

    scene(scenario, event_log=False)


# -- subscribers --------------------------------------------------------------------------------


def test_a_subscriber_hears_everything_then_live_and_keeps_the_agent() -> None:
    async def scenario(world: World) -> None:
        await hear(world, world.chat("a", "one"))
        following = world.host.followed()
        heard_all: list[Event] = []

        async def listen(after: tuple[str, int] | None, told: list[Event], **how: Any) -> None:
            async for event in following.lasting(world.key("a"), after, Call(), **how):
                told.append(event)

        heard_new: list[Event] = []
        heard_after: list[Event] = []
        first = await resumed(world, (await world.store.events(world.key("a")))[0].turn_id)
        listeners = [
            asyncio.ensure_future(listen(None, heard_all)),
            asyncio.ensure_future(listen(None, heard_new, new_only=True)),
            asyncio.ensure_future(listen((first[0].turn_id, 1), heard_after)),
        ]
        await settle()
        await ending(world.followup("a", "unheard"))
        await hear(world, world.chat("a", "two three"))
        await settle()
        assert words(heard_all) == ["one", "two", "three"]
        assert words(heard_new) == ["two", "three"]
        assert heard_after == heard_all[1:]
        await asyncio.sleep(10 * world.limits.idle_timeout)
        assert world.resident() == ["a"]
        await ending(world.do("a", "leave"))
        async for _ in world.host.drain(0.0):
            pass
        for each in listeners:
            with pytest.raises(Draining):
                await each

    scene(scenario)


def test_a_subscriber_that_does_not_read_holds_nobody_up_and_is_told_what_it_missed() -> None:
    """Rows 21 and 30: nothing is kept for it, the turn and the others go on."""

    async def scenario(world: World) -> None:
        world.store._log._kept = 50
        following = world.host.followed()
        talker = world.key("a")._replace(type="talker")
        slow = following.agent(talker, None)
        quick: list[Event] = []

        async def listen() -> None:
            async for event in following.agent(talker, None):
                quick.append(event)

        listening = asyncio.ensure_future(listen())
        await ending(world.host.chat(talker, "1", Call()))
        assert (await anext(slow)).seq == 1
        for _ in range(20):
            await ending(world.host.chat(talker, "10", Call()))
            await settle()
        listening.cancel()
        assert len([each for each in quick if isinstance(each.body, TERMINAL)]) == 21
        rest = [await anext(slow) for _ in range(3)]
        assert isinstance(rest[1].body, Gap)  # behind what it had been given already
        # Of 222 events the newest 50 are kept, and the rest of the chunk that they begin in.
        assert rest[1].body.missed == 165
        assert rest[2].seq == rest[1].seq + 1 == 1
        await slow.aclose()
        assert world.host.turns._journal is not None
        assert world.host.turns._journal._watches.keys() <= {talker}

    scene(scenario)


# -- by key -------------------------------------------------------------------------------------


def chat_by_key(world: World, text: str = TURN, key: str = "k", **options: Any) -> Envelope:
    return world.host.chat(world.key("a"), text, Call(), idempotency_key=key, **options)


def test_a_message_that_is_sent_again_is_answered_by_the_same_turn() -> None:
    """Row 14: one execution, the same events, while it runs and after it, also after a restart."""

    async def scenario(world: World) -> None:
        gate = world.gates["run three"].shut()
        first = chat_by_key(world, on_disconnect="continue")
        reading = asyncio.ensure_future(hear(world, first))
        await gate.reached()
        second: list[Event] = []

        async def listen() -> None:
            async with aclosing(heard(world.host, chat_by_key(world))) as events:
                async for event in events:
                    second.append(event)

        listening = asyncio.ensure_future(listen())
        await settle()
        assert words(second) == ["one", "two"]  # live, from its beginning
        gate.open()
        whole = await reading
        await listening
        assert second == whole
        assert await hear(world, chat_by_key(world)) == whole
        await restart(world)
        assert await hear(world, chat_by_key(world)) == whole
        assert await world.done("a") == WORDS
        assert world.ran == WORDS

    scene(scenario)


def test_of_an_old_turn_at_least_the_end_is_known() -> None:
    async def scenario(world: World) -> None:
        whole = await hear(world, chat_by_key(world))
        await hear(world, world.chat("a", "six"))
        await asyncio.sleep(1700.0)
        events = await hear(world, chat_by_key(world))
        assert [type(each.body) for each in events] == [Gap, Completed]
        assert events[-1].body == whole[-1].body
        assert world.ran == [*WORDS, "six"]

    scene(scenario, event_retention=1000.0)


def test_who_waited_for_a_call_that_was_cancelled_hears_so_and_a_refused_one_runs_next() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["run three"].shut()
        first = chat_by_key(world)
        await gate.reached()
        again = chat_by_key(world)
        listening = asyncio.ensure_future(hear(world, again))
        await settle()
        world.host.cancel(world.key("a"), "turn")
        gate.open()
        assert isinstance(await ending(first), WorkCancelled)
        assert isinstance((await listening)[-1].body, Cancelled)
        assert await world.done("a") == []

    scene(scenario)
