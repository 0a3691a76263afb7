"""Idempotency keys: one execution for each, whoever repeats it, and whenever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from host_kit import World, ending, scene, settle
from test_followups import restart

from innkeeper_server.errors import (
    AgentError,
    DeadlineExceeded,
    Evicted,
    HandlerFailed,
    IdempotencyMismatch,
    InvalidRequest,
    StoreUnavailable,
)
from innkeeper_server.mailbox import Call, Envelope


def keyed(world: World, text: str, key: str = "k", id: str = "a", **call: Any) -> Envelope:
    """Invoke `work` with an idempotency key."""
    return world.host.invoke(
        world.key(id), "work", {"text": text}, Call(**call), idempotency_key=key
    )


def test_a_repeated_call_is_told_what_the_first_came_to() -> None:
    async def scenario(world: World) -> None:
        first = keyed(world, "one")
        assert await ending(first) == "one"
        again = keyed(world, "one")
        assert await ending(again) == "one"
        assert (first.replayed, again.replayed, again.id) == (False, True, first.id)
        assert await ending(keyed(world, "one", "another key")) == "one"
        assert await ending(keyed(world, "one", id="b")) == "one"
        assert world.ran == ["one"] * 3
        assert await world.done("a") == ["one", "one"]
        await world.at_rest()

    scene(scenario, capacity=2)


def test_calls_at_once_run_once_and_are_told_the_same() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["run one"].shut()
        calls = [keyed(world, "one") for _ in range(5)]
        await gate.reached()
        calls += [keyed(world, "one") for _ in range(5)]
        await settle()
        gate.open()
        assert [await ending(call) for call in calls] == ["one"] * 10
        assert len({call.id for call in calls}) == 1
        assert await world.done("a") == ["one"]
        assert world.host.repeats._under_way == {}
        await world.at_rest()

    scene(scenario)


def test_an_outcome_outlives_its_host() -> None:
    async def scenario(world: World) -> None:
        first = keyed(world, "one")
        await ending(first)
        await restart(world)
        again = keyed(world, "one")
        assert await ending(again) == "one"
        assert (again.replayed, again.id) == (True, first.id)
        assert world.ran == ["one"]

    scene(scenario)


def test_a_key_with_another_request_is_refused() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["run one"].shut()
        first = keyed(world, "one")
        await gate.reached()
        with pytest.raises(IdempotencyMismatch):
            keyed(world, "two")
        gate.open()
        await ending(first)
        assert isinstance(await ending(keyed(world, "two")), IdempotencyMismatch)
        for key in ("x" * 257, "\n"):
            with pytest.raises(InvalidRequest, match="idempotency_key"):
                keyed(world, "one", key)
        assert await world.done("a") == ["one"]
        await world.at_rest()

    scene(scenario)


@pytest.mark.parametrize("how", ["on purpose", "by a fault"])
def test_a_turn_that_failed_is_not_made_again(how: str) -> None:
    """The agent's code may have acted on the world before it failed."""

    async def scenario(world: World) -> None:
        if how == "on purpose":
            world.refusing.add("bad")
        else:
            world.failing["bad"] = 1
        expected = AgentError if how == "on purpose" else HandlerFailed
        first, second = keyed(world, "bad"), keyed(world, "bad")
        errors = [await ending(call) for call in (first, second)]
        await restart(world)
        errors.append(await ending(keyed(world, "bad")))
        assert [type(error) for error in errors] == [expected] * 3
        assert len({str(error) for error in errors}) == 1
        assert world.ran == ["bad"]
        assert await world.done("a") == []

    scene(scenario)


def test_what_was_cut_is_run_by_a_repetition() -> None:
    """1. A call runs; another waits with it. The agent is forced out.
    2. The first is told; the second runs in the next life, and its effect is there once.
    """

    async def scenario(world: World) -> None:
        gate = world.gates["run one"].shut()
        first = keyed(world, "one")
        await gate.reached()
        second = keyed(world, "one")
        await world.host.operators.evict(world.key("a"), mode="force")
        assert isinstance(await ending(first), Evicted)
        gate.open()
        assert await ending(second) == "one"
        assert await ending(keyed(world, "one")) == "one"
        assert await world.done("a") == ["one"]
        await world.at_rest()

    scene(scenario)


def test_a_caller_that_leaves_takes_nothing_from_those_who_wait_with_it() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["run zero"].shut()
        zero = world.do("a", "zero")
        await gate.reached()
        first = keyed(world, "one")
        await settle()
        second = keyed(world, "one")
        world.host.caller_left(first)
        gate.open()
        assert await ending(second) == "one"
        await ending(zero)
        lonely = keyed(world, "two", "other")
        world.host.caller_left(lonely)  # while the store is still asked
        await settle()
        assert await world.done("a") == ["zero", "one"]
        assert world.host.repeats._under_way == {}
        await world.at_rest()

    scene(scenario)


def test_a_deadline_is_its_callers_own() -> None:
    """The first call's passes in the queue; the second, with the same key, has none and runs."""

    async def scenario(world: World) -> None:
        gate = world.gates["run zero"].shut()
        zero = world.do("a", "zero")
        await gate.reached()
        first = keyed(world, "one", deadline=world.host.now() + 5)
        await settle()
        second = keyed(world, "one")
        await asyncio.sleep(6)
        gate.open()
        await ending(zero)
        assert isinstance(await ending(first), DeadlineExceeded)
        assert await ending(second) == "one"
        assert await world.done("a") == ["zero", "one"]
        await world.at_rest()

    scene(scenario)


def test_a_commit_that_fails_leaves_the_key_free() -> None:
    async def scenario(world: World) -> None:
        world.store.fail["commit"] = [StoreUnavailable("full")]
        first, second = keyed(world, "one"), keyed(world, "one")
        assert isinstance(await ending(first), StoreUnavailable)
        assert await ending(second) == "one"
        assert await world.done("a") == ["one"]
        world.store.fail["outcome"] = [StoreUnavailable("gone")]
        assert isinstance(await ending(keyed(world, "one")), StoreUnavailable)
        assert await ending(keyed(world, "one")) == "one"
        assert world.ran == ["one", "one"]
        await world.at_rest()

    scene(scenario)


def test_outcomes_are_kept_for_the_retention_time() -> None:
    async def scenario(world: World) -> None:
        await ending(keyed(world, "one"))
        await asyncio.sleep(900)
        assert keyed(world, "one") is not None
        await asyncio.sleep(1200)
        again = keyed(world, "one")
        assert await ending(again) == "one"
        assert not again.replayed
        assert world.ran == ["one", "one"]
        await world.at_rest()

    scene(scenario, receipt_retention=1000.0)


def test_a_follow_up_with_a_key_is_left_once() -> None:
    async def scenario(world: World) -> None:
        def leave(text: str) -> Envelope:
            return world.host.followup(world.key("a"), text, Call(), idempotency_key="k")

        first, second = leave("one"), leave("one")
        await first.accepted()
        await second.accepted()
        await settle()
        third = leave("one")
        await third.accepted()
        assert first.id == second.id == third.id
        with pytest.raises(IdempotencyMismatch):
            await leave("two").accepted()
        assert await world.done("a") == ["one"]
        await world.at_rest()

    scene(scenario)
