"""How lives end when something goes wrong on the way: nothing stays, and nobody is forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from host_kit import World, ending, scene, settle

from innkeeper_server.errors import Draining, Internal, StartTimeout
from innkeeper_server.mailbox import Call, Envelope
from innkeeper_server.turns import Turns


def test_a_hand_over_that_fails_costs_its_own_work_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1. a works; two and three wait in its mailbox. It is evicted by force.
    2. The hand-over of two breaks. three runs in the next life; the first one was stopped first.
    """
    real = Turns.submit

    def submit(self: Turns, envelope: Envelope, *, accepted: bool = False) -> None:
        if accepted and envelope is broken[0]:
            raise RuntimeError("a defect")
        real(self, envelope, accepted=accepted)

    broken: list[Any] = []
    monkeypatch.setattr(Turns, "submit", submit)

    async def scenario(world: World) -> None:
        gate = world.gates["run one"].shut()
        one, two, three = (world.do("a", text) for text in ("one", "two", "three"))
        broken.append(two)
        await gate.reached()
        assert (await world.host.operators.evict(world.key("a"), mode="force")).stopped
        world.check()
        assert world.gates["on_stop a"].passed == 1
        assert [type(await ending(work)) for work in (one, two)][1] is Internal
        assert await ending(three) == "three"
        await world.at_rest()

    scene(scenario)


def test_a_listener_that_fails_keeps_the_word_from_nobody() -> None:
    """Neither from the others, nor from `on_stop`."""

    async def scenario(world: World) -> None:
        def broken(reason: str) -> None:
            raise RuntimeError("a defect")

        heard: list[str] = []
        for name, listener in (("x", broken), ("y", heard.append)):
            connection = world.host.connect(world.key("a"), Call(), name=name, on_leaving=listener)
            await connection.ready()
        assert (await world.host.operators.evict(world.key("a"), mode="force")).stopped
        assert len(heard) == 1
        assert world.gates["on_stop a"].passed == 1
        await world.at_rest()

    scene(scenario)


def test_a_start_that_is_deaf_for_long_is_stopped_when_it_ends_at_last() -> None:
    """1. a's on_start takes too long, is cancelled, and is deaf to it: its slot is a zombie's.
    2. It ends well, much later: what it opened is closed by on_stop, and then the slot is free.
    """

    async def scenario(world: World) -> None:
        world.once.add("on_start")
        gate, end = world.gates["on_start"].shut(), world.gates["on_stop a"].shut()
        assert isinstance(await ending(world.do("a")), StartTimeout)
        gate.open()
        await end.reached()
        assert world.resident() == ["a"]
        end.open()
        await settle()
        assert world.resident() == []
        await world.at_rest()

    scene(scenario)


def test_a_stop_hook_that_is_cut_is_said_to_be(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        await world.do("a").outcome()
        world.gates["on_stop a"].shut()
        assert (await world.host.operators.evict(world.key("a"))).stopped
        assert world.host.now() == world.limits.stop_timeout

    scene(scenario)
    assert "on_stop of guest/a took too long and was cancelled" in caplog.text


def test_two_pins_at_once_leave_the_later_one() -> None:
    """Both wait for the same load, and are granted in the same block."""

    async def scenario(world: World) -> None:
        gate, key = world.gates["on_start"].shut(), world.key("a")
        pin = world.host.operators.pin
        both = [asyncio.ensure_future(pin(key, ttl, "me", Call())) for ttl in (100.0, 200.0)]
        await gate.reached()
        gate.open()
        await asyncio.gather(*both)
        leases = world.host.account.slots[key].leases or ()
        assert [(lease.owner, lease.until) for lease in leases] == [("me", 200.0)]

    scene(scenario)


def test_a_pin_that_is_granted_in_a_drain_is_taken_back() -> None:
    """1. a is pinned, and loads. 2. A drain begins, which takes pins back. 3. a has loaded."""

    async def scenario(world: World) -> None:
        gate = world.gates["on_start"].shut()
        pinning = asyncio.ensure_future(
            world.host.operators.pin(world.key("a"), 5000.0, "me", Call())
        )
        await gate.reached()
        world.host.drains.begin()
        gate.open()
        with pytest.raises(Draining):
            await pinning
        await settle()
        assert (world.resident(), world.host.now()) == ([], 0.0)

    scene(scenario)


def test_a_connection_that_is_granted_in_a_drain_is_told_of_it() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["on_start"].shut()
        heard: list[str] = []
        connection = world.host.connect(world.key("a"), Call(), name="x", on_leaving=heard.append)
        await gate.reached()
        world.host.drains.begin()
        gate.open()
        await connection.ready()
        assert heard == ["the host is draining and takes nothing new"]
        connection.close()
        await settle()
        assert world.resident() == []

    scene(scenario)
