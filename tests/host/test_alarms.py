"""Alarms: each comes once for each of its times, and never from a turn that came to nothing."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from host_kit import Guest, World, ending, scene, settle
from test_followups import restart

from innkeeper_server.agent import Alarm, action
from innkeeper_server.alarms import AT_ONCE, LOOK_AGAIN
from innkeeper_server.errors import AgentDeleted, HandlerFailed, StoreUnavailable
from innkeeper_server.mailbox import Call, Envelope
from innkeeper_server.registry import Registry
from innkeeper_server.slots import LeaseKind
from innkeeper_server.store import Alarm as StoredAlarm


class Sleeper(Guest):
    """A guest that sets alarms; each that comes is one of its steps."""

    seen: list[list[Alarm]]

    @action
    async def set(self, text: str, when: float = 10.0, name: str = "", every: float = 0.0) -> str:
        name = self.set_alarm(when, text, name=name, every=every or None)
        await self._pass(f"setting {text}")
        return name

    @action
    async def set_and_fail(self, text: str) -> None:
        self.set_alarm(1.0, text)
        self.cancel_alarm("kept")
        raise RuntimeError("not today")

    @action
    async def cancel(self, name: str) -> None:
        self.cancel_alarm(name)

    @action
    async def look(self) -> None:
        self.world.seen.append(await self.alarms())  # type: ignore[attr-defined]

    @action
    async def try_all(self, calls: str) -> None:
        self.world.tried.extend(attempts(self))  # type: ignore[attr-defined]

    @action
    async def set_late(self) -> None:
        """In a job that outlives its turn."""

        async def late() -> None:
            await self.world.gates["late"].pass_through()
            try:
                self.set_alarm(1.0, "late")
            except RuntimeError as error:
                self.world.tried.append(str(error))  # type: ignore[attr-defined]

        self.spawn(late())

    @action
    def in_thread(self) -> str:
        return self.set_alarm(timedelta(seconds=10), "from a thread", name="thread")

    async def followup(self, message: str) -> None:
        assert self.turn.kind == "alarm"
        await self._step(message)


SLEEPERS = Registry()
SLEEPERS.register("guest", Sleeper)


def attempts(agent: Sleeper) -> list[str]:
    """What an alarm is refused with, one for each way to be wrong."""
    wrong: list[tuple[Any, ...]] = [
        (float("nan"), "x"),
        (float("inf"), "x"),
        (True, "x"),
        ("soon", "x"),
        (datetime(2030, 1, 1), "x"),
        (1e15, "x"),
        (1.0, object()),
        (1.0, 12),
        (1.0, "x" * 70_000),
        (1.0, "x", "tab\t"),
        (1.0, "x", "", 0.5),
        (1.0, "x", "", timedelta(0)),
        (1.0, "x", "", 1e15),
    ]
    told = []
    for when, message, *rest in wrong:
        name, every = (*rest, "", None)[:2] if len(rest) < 2 else rest
        try:
            agent.set_alarm(when, message, name=name, every=every)
        except (TypeError, ValueError) as error:
            told.append(f"{type(error).__name__}: {error}")
        else:
            told.append("nothing")
    return told


def night(scenario: Any, **limits: Any) -> None:
    """A scene whose guests are sleepers."""

    async def play(world: World) -> None:
        world.registry._types.update(SLEEPERS._types)
        Sleeper.world = world
        world.seen = []  # type: ignore[attr-defined]
        world.tried = []  # type: ignore[attr-defined]
        await scenario(world)

    scene(play, **limits)


def ask(world: World, id: str, action: str, **arguments: Any) -> Envelope:
    return world.host.invoke(world.key(id), action, arguments or None, Call())


async def names(world: World, id: str) -> list[str]:
    return [each.name for each in await world.store.alarms(world.key(id))]


def test_an_alarm_wakes_an_agent_that_has_left_and_does_not_keep_it_before() -> None:
    """1. a sets an alarm for in 1000 s, and leaves when its idle time is over.
    2. It comes when it is due, not before, and once; then a leaves again.
    """

    async def scenario(world: World) -> None:
        await ending(ask(world, "a", "set", text="wake up", when=1000.0))
        assert world.host.alarm_clock._soonest == world.clock() + 1000.0
        await asyncio.sleep(999.0)
        assert world.resident() == []
        assert await world.done("a") == []
        await asyncio.sleep(1.0)
        await settle()
        assert await world.done("a") == ["wake up"]
        await asyncio.sleep(3000.0)
        assert await world.done("a") == ["wake up"]
        await world.at_rest()

    night(scenario)


def test_an_alarm_that_is_delivered_owns_its_agent() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["run long"].shut()
        await ending(ask(world, "a", "set", text="long", when=5.0))
        await asyncio.sleep(6.0)
        await gate.reached()
        await asyncio.sleep(10 * world.limits.idle_timeout)
        assert world.resident() == ["a"]
        owners = world.host.account.slots[world.key("a")].leases
        assert [lease.kind for lease in owners or ()] == [LeaseKind.TIMER]
        gate.open()
        await world.at_rest()
        assert await world.done("a") == ["long"]

    night(scenario)


def test_what_a_turn_sets_comes_only_with_its_commit() -> None:
    async def scenario(world: World) -> None:
        await ending(ask(world, "a", "set", text="kept", name="kept"))
        failed = await ending(ask(world, "a", "set_and_fail", text="never"))
        assert isinstance(failed, HandlerFailed)
        gate = world.gates["setting cut"].shut()
        cut = ask(world, "a", "set", text="cut", when=0.0)
        await gate.reached()
        assert world.host.cancel(world.key("a"), "turn")
        await ending(cut)
        world.store.fail["commit"] = [StoreUnavailable("full")]
        assert isinstance(await ending(ask(world, "a", "set", text="lost")), StoreUnavailable)
        assert await names(world, "a") == ["kept"]
        await asyncio.sleep(100.0)
        assert await world.done("a") == ["kept"]
        await world.at_rest()

    night(scenario)


def test_a_turn_sees_what_it_sets_and_cancels() -> None:
    async def scenario(world: World) -> None:
        now = world.clock()
        await ending(ask(world, "a", "set", text="two", when=20.0, name="two", every=5.0))
        name = await ending(ask(world, "a", "set", text="one", when=10.0))
        assert isinstance(name, str)
        await ending(ask(world, "a", "look"))
        at = lambda seconds: datetime.fromtimestamp(now + seconds, UTC)  # noqa: E731
        assert world.seen[0] == [  # type: ignore[attr-defined]
            Alarm(name, at(10.0), None, "one"),
            Alarm("two", at(20.0), timedelta(seconds=5), "two"),
        ]
        await ending(ask(world, "a", "cancel", name=name))
        await ending(ask(world, "a", "cancel", name="nobody"))
        await ending(ask(world, "a", "set", text="two again", when=7.0, name="two"))
        await asyncio.sleep(100.0)
        assert await world.done("a") == ["two again"]
        await world.at_rest()

    night(scenario)


def test_one_that_comes_again_and_again_does_so_on_time_until_it_is_cancelled() -> None:
    async def scenario(world: World) -> None:
        await ending(ask(world, "a", "set", text="tick", when=5.0, name="t", every=10.0))
        for count in range(1, 5):
            await asyncio.sleep(5.0)
            await settle()
            assert await world.done("a") == ["tick"] * count
            await asyncio.sleep(5.0)
        await ending(ask(world, "a", "cancel", name="t"))
        await asyncio.sleep(100.0)
        assert await world.done("a") == ["tick"] * 4
        await world.at_rest()

    night(scenario)


def test_the_times_of_a_host_that_was_down_come_as_one() -> None:
    """1. An alarm for every 10 s, and one that comes once; then the host ends without a word.
    2. 105 s later another one starts: each comes once, and then again in its old rhythm.
    """

    async def scenario(world: World) -> None:
        await ending(ask(world, "a", "set", text="tick", when=10.0, every=10.0, name="t"))
        await ending(ask(world, "b", "set", text="once", when=30.0))
        begun = world.clock()
        world.host.alarm_clock.close()
        world.host.alarm_clock._store = None  # type: ignore[assignment]
        await asyncio.sleep(105.0)
        await restart(world)
        await settle()
        assert await world.done("a") == ["tick"]
        assert await world.done("b") == ["once"]
        (tick,) = await world.store.alarms(world.key("a"))
        assert tick.due == pytest.approx(begun + 110.0)
        await asyncio.sleep(5.0)
        await settle()
        assert await world.done("a") == ["tick", "tick"]
        await ending(ask(world, "a", "cancel", name="t"))
        await world.at_rest()

    night(scenario, capacity=2)


def test_the_times_of_an_agent_that_is_busy_come_as_one() -> None:
    """A turn that takes long must not find a heap of alarms behind it."""

    async def scenario(world: World) -> None:
        gate = world.gates["run tick"].shut()
        await ending(ask(world, "a", "set", text="tick", when=1.0, every=1.0, name="t"))
        await asyncio.sleep(50.5)
        assert len(await world.store.pending()) == 1
        gate.open()
        await settle()
        assert await world.done("a") == ["tick"]
        await asyncio.sleep(1.0)
        await settle()
        assert await world.done("a") == ["tick", "tick"]
        await ending(ask(world, "a", "cancel", name="t"))
        await world.at_rest()

    night(scenario)


def test_what_an_alarm_calls_for_is_tried_again_like_any_accepted_work() -> None:
    async def scenario(world: World) -> None:
        world.failing["shaky"] = 2
        await ending(ask(world, "a", "set", text="shaky", when=1.0))
        await asyncio.sleep(30.0)
        assert world.ran == ["shaky"] * 3
        assert await world.done("a") == ["shaky"]
        await world.at_rest()

    night(scenario)


def test_a_deleted_agent_is_revived_by_nothing() -> None:
    """Not by its alarms, nor by one that is being delivered, a follow-up, or a late write."""

    async def scenario(world: World) -> None:
        gate = world.gates["run now"].shut()
        await ending(ask(world, "a", "set", text="later", when=50.0))
        await ending(ask(world, "a", "set", text="tick", when=20.0, every=5.0))
        await ending(ask(world, "a", "set", text="now", when=1.0))
        await asyncio.sleep(2.0)
        await gate.reached()
        runtime = world.host.driver.find(world.key("a"))
        assert runtime is not None
        assert await world.host.delete_agent(world.key("a"))
        gate.open()
        await settle()
        with pytest.raises(AgentDeleted):
            await world.followup("a", "too late").accepted()
        with pytest.raises(AgentDeleted):
            await world.store.commit(world.key("a"), epoch=1, version=0, state=b"{}")
        assert isinstance(await ending(world.do("a")), AgentDeleted)
        await asyncio.sleep(200.0)
        assert world.ran == ["now"]
        assert await world.store.read(world.key("a")) is None
        assert await world.store.pending() == []
        await world.at_rest()

    night(scenario)


def test_many_that_are_due_at_once_are_a_backlog_like_any_other() -> None:
    """1. 450 agents have an alarm for the same second; three have room, twenty may be live.
    2. All come, and nobody is refused.
    """

    async def scenario(world: World) -> None:
        for number in range(4 * AT_ONCE + 50):
            key = world.key(f"a{number}")
            await world.store.hydrate(key)
            letter = b'{"message":{"text":"up"},"call":{},"alarm":"x"}'
            change = {"x": StoredAlarm(key, "x", world.clock() + 5.0, None, letter)}
            await world.store.commit(key, epoch=1, version=0, state=None, alarms=change)
        world.host.alarm_clock.start()
        await asyncio.sleep(5.0)
        await settle()
        assert world.ran == ["up"] * 450
        assert await world.store.due(["guest"]) == []
        await world.at_rest()

    night(scenario, capacity=3, backlog=20)


def test_a_draining_host_leaves_alarms_to_the_next() -> None:
    async def scenario(world: World) -> None:
        await ending(ask(world, "a", "set", text="up", when=10.0))
        async for _ in world.host.drain():
            pass
        await asyncio.sleep(100.0)
        assert await names(world, "a") != []
        assert world.ran == []
        world.host.undrain()
        await settle()
        assert await world.done("a") == ["up"]
        await world.at_rest()

    night(scenario)


def test_a_store_that_fails_puts_alarms_off_and_loses_none() -> None:
    async def scenario(world: World) -> None:
        await ending(ask(world, "a", "set", text="up", when=10.0))
        world.store.fail["due"] = [StoreUnavailable("away")] * 3
        world.store.fail["fire"] = [StoreUnavailable("away")] * 2
        await asyncio.sleep(10.0)
        await settle()
        assert world.ran == []
        await asyncio.sleep(6.0)
        assert await world.done("a") == ["up"]
        await world.at_rest()

    night(scenario)


def test_an_alarm_that_fired_though_its_answer_was_lost_comes_once() -> None:
    async def scenario(world: World) -> None:
        await ending(ask(world, "a", "set", text="up", when=10.0))
        world.store.lost["fire"] = [StoreUnavailable("the outcome is unknown")]
        await asyncio.sleep(12.0)
        assert world.ran == ["up"]
        assert await world.done("a") == ["up"]
        await world.at_rest()

    night(scenario)


def test_a_host_sees_in_time_what_another_has_set() -> None:
    async def scenario(world: World) -> None:
        key = world.key("a")
        await world.store.hydrate(key)
        letter = b'{"message":{"text":"up"},"call":{},"alarm":"x"}'
        change = {"x": StoredAlarm(key, "x", world.clock() + 1.0, None, letter)}
        await world.store.commit(key, epoch=1, version=0, state=None, alarms=change)
        await asyncio.sleep(LOOK_AGAIN + 1.0)
        assert await world.done("a") == ["up"]
        await world.at_rest()

    night(scenario)


def test_a_wrong_alarm_is_refused_where_it_is_set() -> None:
    async def scenario(world: World) -> None:
        await ending(ask(world, "a", "try_all", calls=""))
        assert world.tried == [  # type: ignore[attr-defined]
            "ValueError: when: nan is no time",
            "ValueError: when: inf is no time",
            "TypeError: when: seconds or a timedelta, not bool",
            "TypeError: when: seconds or a timedelta, not str",
            "ValueError: when: a datetime needs a time zone, as in datetime.now(UTC)",
            "ValueError: when, every: no calendar goes so far",
            "TypeError: object cannot travel as JSON: Unable to serialize unknown type: "
            "<class 'object'>",
            "ValueError: guest/a cannot take this alarm: message: should be a valid string",
            "ValueError: an alarm's message has 70135 bytes; at most 65536",
            "ValueError: an alarm cannot be called 'tab\\t': name: must not contain control "
            "characters",
            "ValueError: every: 0.5 s is too short; at least 1 s",
            "ValueError: every: 0 s is too short; at least 1 s",
            "ValueError: when, every: no calendar goes so far",
        ]
        assert await names(world, "a") == []
        await world.at_rest()

    night(scenario)


def test_outside_of_a_turn_there_is_no_alarm_to_set() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["late"].shut()
        await ending(ask(world, "a", "set_late"))
        gate.open()
        await settle()
        (told,) = world.tried  # type: ignore[attr-defined]
        assert told.startswith("no turn runs here: alarms are set and cancelled while a handler")
        await world.at_rest()

    night(scenario)


def test_a_handler_in_a_thread_can_set_one() -> None:
    async def scenario(world: World) -> None:
        assert await ending(ask(world, "a", "in_thread")) == "thread"
        await asyncio.sleep(11.0)
        assert await world.done("a") == ["from a thread"]
        await world.at_rest()

    night(scenario)
