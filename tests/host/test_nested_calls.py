"""Calls from agent to agent that could never end are refused, with the path; the others end."""

from __future__ import annotations

import asyncio

import pytest
from host_kit import World, ending, scene, settle

from innkeeper_server.errors import CallCycle, CapacityDeadlock, WorkCancelled
from innkeeper_server.mailbox import Call, Envelope


def ask(world: World, *ids: str) -> Envelope:
    """Have the first call the second, and so on; the last one works."""
    return world.host.invoke(world.key(ids[0]), "ask", {"ids": list(ids[1:])}, Call())


@pytest.mark.parametrize(
    ("ids", "path"),
    [
        ("aa", "guest/a → guest/a"),
        ("aba", "guest/a → guest/b → guest/a"),
        ("abca", "guest/a → guest/b → guest/c → guest/a"),
        ("abcb", "guest/b → guest/c → guest/b"),
    ],
)
def test_a_call_that_comes_back_is_refused_at_once_with_its_path(ids: str, path: str) -> None:
    """Row 17: without any time passing."""

    async def scenario(world: World) -> None:
        begun = world.host.now()
        error = await ending(ask(world, *ids))
        assert isinstance(error, CallCycle)
        assert error.metadata["path"] == path
        assert world.host.now() == begun
        await world.at_rest()

    scene(scenario, capacity=5)


def test_two_agents_that_call_each_other_at_once_are_not_left_waiting() -> None:
    """Row 17, A↔B: 1. both turns run. 2. a calls b, and waits behind b's turn. 3. b calls a: this
    edge closes the cycle and is refused; b's turn fails, a's call then runs in b."""

    async def scenario(world: World) -> None:
        for id in "ab":
            world.gates[f"ask {id}"].shut()
        first, second = ask(world, "a", "b"), ask(world, "b", "a")
        await world.gates["ask a"].reached()
        await world.gates["ask b"].reached()
        world.gates["ask a"].open()
        await settle()
        world.gates["ask b"].open()
        begun = world.host.now()
        error = await ending(second)
        assert isinstance(error, CallCycle)
        assert error.metadata["path"] == "guest/b → guest/a → guest/b"
        assert await ending(first) == "for a"
        assert world.host.now() == begun
        await world.at_rest()

    scene(scenario, capacity=2)


@pytest.mark.parametrize("capacity", [1, 2, 4])
def test_parents_that_hold_every_slot_are_told_instead_of_waiting(capacity: int) -> None:
    """Row 18: C parents each call a new child. The last call would close the deadlock: it is
    refused, its parent ends, and its slot serves the others' children."""

    async def scenario(world: World) -> None:
        parents = [f"p{n}" for n in range(capacity)]
        for parent in parents:
            world.gates[f"ask {parent}"].shut()
        calls = [ask(world, parent, f"child of {parent}") for parent in parents]
        for parent in parents:
            await world.gates[f"ask {parent}"].reached()
        begun = world.host.now()
        for parent in parents:
            world.gates[f"ask {parent}"].open()
            await settle()
        ended = [await ending(call) for call in calls]
        assert world.host.now() == begun
        refused = [end for end in ended if isinstance(end, CapacityDeadlock)]
        assert len(refused) == 1
        assert refused[0].metadata["capacity"] == str(capacity)
        assert "guest/p" in refused[0].metadata["path"]
        assert [end for end in ended if end not in refused] == [
            f"for {parent}"
            for parent, end in zip(parents, ended, strict=True)
            if end not in refused
        ]
        await world.at_rest()

    scene(scenario, capacity=capacity)


def test_a_parent_may_wait_for_a_slot_while_anybody_else_can_free_one() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["run work"].shut()
        other = world.do("x")
        await gate.reached()
        parent = ask(world, "p", "c")
        await settle()
        assert world.host.account.waiting == 1
        gate.open()
        assert await ending(other) == "work"
        assert await ending(parent) == "for p"
        await world.at_rest()

    scene(scenario, capacity=2)


def test_a_call_to_a_busy_agent_that_itself_waits_for_a_slot_closes_the_deadlock() -> None:
    """p waits for a slot for c; q then calls p, which is busy waiting: nobody could go on."""

    async def scenario(world: World) -> None:
        world.gates["ask q"].shut()
        second = ask(world, "q", "p")
        await world.gates["ask q"].reached()
        first = ask(world, "p", "c")
        await settle()
        begun = world.host.now()
        world.gates["ask q"].open()
        assert isinstance(await ending(second), CapacityDeadlock)
        assert await ending(first) == "for p"
        assert world.host.now() == begun
        await world.at_rest()

    scene(scenario, capacity=2)


def test_cancelling_a_parent_stops_its_child() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["run for p"].shut()
        parent = ask(world, "p", "c")
        await gate.reached()
        world.host.cancel(world.key("p"), "turn")
        assert isinstance(await ending(parent), WorkCancelled)
        await settle()
        assert await world.done("c") == []
        await world.at_rest()

    scene(scenario, capacity=2)


def test_a_followup_to_oneself_is_no_cycle() -> None:
    async def scenario(world: World) -> None:
        async def note(message: str, turn: object) -> str:
            return message

        world.registry.register("note", note)
        gate = world.gates["run one"].shut()
        running = world.do("a", "one")
        await gate.reached()
        runtime = world.host.driver.find(world.key("a"))
        assert runtime is not None
        handle = runtime.agent("guest", "a")
        left = asyncio.ensure_future(handle.followup("two"))
        await settle()
        assert (
            await world.host.followups.receipts.get(await left, "default")
        ).followup.state == "accepted"
        gate.open()
        await ending(running)
        await settle()
        assert await world.done("a") == ["one", "two"]
        await world.at_rest()

    scene(scenario)
