"""Follow-ups: what was accepted ends once, through evictions, failures and restarts."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from host_kit import World, ending, scene, settle

from innkeeper_server.errors import (
    AgentDeleted,
    Draining,
    Evicted,
    MailboxFull,
    ReceiptNotFound,
    StoreUnavailable,
)
from innkeeper_server.host import Host
from innkeeper_server.identity import AgentKey
from innkeeper_server.mailbox import Call, Envelope
from innkeeper_server.store import Followup


async def stands(world: World, id: str) -> tuple[str, int]:
    """State and attempts of a follow-up, as the store has it."""
    found = await world.store.followup(id)
    assert found is not None
    return found.state, found.attempt


async def accepted(world: World, agent: str, *texts: str) -> list[str]:
    """Leave messages with an agent, and return their receipts."""
    left = [world.followup(agent, text) for text in texts]
    for envelope in left:
        await envelope.accepted()
    return [envelope.id for envelope in left]


async def kept(world: World, id: str) -> Followup:
    found = await world.store.followup(id)
    assert found is not None
    return found


class Nothing:
    """The store as a host sees it that is gone: whatever it does has no effect."""

    def __getattr__(self, name: str) -> Any:
        async def fails(*args: Any, **named: Any) -> None:
            raise StoreUnavailable("this host is gone")

        return fails


async def restart(world: World) -> None:
    """Another host over the same store, as after a crash of the one before."""
    for part in (world.host.turns, world.host.lives, world.host.followups):
        part._store = Nothing()  # type: ignore[attr-defined]
    if world.host.turns._journal is not None:
        world.host.turns._journal.store = Nothing()  # type: ignore[assignment]
    world.host.followups.close()
    world.host.driver.close()
    world.host = Host(world.registry, world.store, world.limits, clock=world.clock)
    await world.host.start()


def test_accepted_means_that_the_store_has_it() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["accept"].shut()
        left = world.followup("a", "one")
        waiting = asyncio.ensure_future(left.accepted())
        await gate.reached()
        await settle()
        assert not waiting.done()
        assert world.resident() == []
        gate.open()
        await waiting
        assert await ending(left) is None
        assert await world.done("a") == ["one"]
        assert await stands(world, left.id) == ("completed", 1)
        await world.at_rest()

    scene(scenario)


def test_what_the_store_cannot_take_is_refused() -> None:
    async def scenario(world: World) -> None:
        world.store.fail["accept"] = [StoreUnavailable("full")]
        with pytest.raises(StoreUnavailable):
            await world.followup("a", "one").accepted()
        assert await world.store.pending() == []
        await world.at_rest()

    scene(scenario)


def test_follow_ups_run_in_the_order_of_acceptance_among_other_work() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["run zero"].shut()
        zero = world.do("a", "zero")
        await gate.reached()
        await accepted(world, "a", "one", "two")
        three = world.do("a", "three")
        gate.open()
        await ending(zero)
        await ending(three)
        assert await world.done("a") == ["zero", "one", "two", "three"]
        await world.at_rest()

    scene(scenario)


def test_a_full_host_takes_follow_ups_and_runs_them_when_it_can() -> None:
    """No capacity and no patience are needed to accept one."""

    async def scenario(world: World) -> None:
        gate = world.gates["run long"].shut()
        long = world.do("a", "long")
        await gate.reached()
        ids = await accepted(world, "b", "one", "two")
        await asyncio.sleep(100 * world.limits.admission_timeout)
        assert [await stands(world, id) for id in ids] == [("accepted", 0)] * 2
        gate.open()
        await ending(long)
        await settle()
        assert await world.done("b") == ["one", "two"]
        await world.at_rest()

    scene(scenario, max_waiting=1)


def test_another_host_finds_what_was_accepted_and_runs_each_once() -> None:
    """1. a runs the first of three when the host ends without a word.
    2. The next host takes up all three, in order; the cut attempt counts.
    """

    async def scenario(world: World) -> None:
        gate = world.gates["run one"].shut()
        ids = await accepted(world, "a", "one", "two", "three")
        await gate.reached()
        await restart(world)
        gate.open()
        await settle()
        assert await world.done("a") == ["one", "two", "three"]
        found = [await stands(world, id) for id in ids]
        assert found == [("completed", 2), ("completed", 1), ("completed", 1)]

    scene(scenario)


def test_a_backlog_is_taken_up_within_its_bound_oldest_first() -> None:
    """1. A host with one slot finds 40 follow-ups for 20 agents; five may be live at once.
    2. New ones come meanwhile. Everything runs, each agent's own in order.
    """

    async def scenario(world: World) -> None:
        for number in range(40):
            await accepted(world, f"a{number % 20}", f"{number}")
        await settle()
        world.ran.clear()
        for number in range(40):
            message = json.dumps({"message": {"text": f"x{number}"}, "call": {}}).encode()
            key = world.key(f"b{number % 20}")
            await world.store.accept(Followup(f"r{number}", key, message, 0.0))
        await restart(world)
        most = 0
        fresh = []
        for number in range(200):
            await asyncio.sleep(0)
            most = max(most, len(world.host.followups._live))
            if number < 10:
                fresh.append(world.followup("b3", f"y{number}"))
        await settle()
        assert 0 < most <= 5
        assert len(world.ran) == 50
        assert await world.store.pending() == []
        assert await world.done("b3") == ["x3", "x23", *(f"y{n}" for n in range(10))]

    scene(scenario, backlog=5)


def test_one_whose_acceptance_was_not_heard_of_runs_though_later_ones_came() -> None:
    async def scenario(world: World) -> None:
        told = world.gates["the answer"].shut()
        accept = world.store.accept

        async def accept_and_lose(followup: Followup) -> Followup:
            world.store.accept = accept  # type: ignore[method-assign]
            await accept(followup)
            await told.pass_through()
            raise StoreUnavailable("the outcome is unknown")

        world.store.accept = accept_and_lose  # type: ignore[method-assign]
        lost = world.followup("a", "lost")
        await told.reached()
        [second] = await accepted(world, "a", "second")
        await settle()
        assert world.ran == ["second"]
        told.open()
        assert isinstance(await ending(lost), StoreUnavailable)
        await settle()
        assert world.ran == ["second", "lost"]
        assert await stands(world, second) == ("completed", 1)
        assert await stands(world, lost.id) == ("completed", 1)
        await world.at_rest()

    scene(scenario)


def test_what_falls_behind_while_the_store_is_read_is_found() -> None:
    """The page that comes is of later ones."""

    async def scenario(world: World) -> None:
        ids = await accepted(world, "a", "one", "two")
        await settle()
        assert world.ran == ["one", "two"]
        # A third, that the store alone knows of, and a page of later ones on its way.
        left = replace(await kept(world, ids[1]), id="third", seq=0, state="accepted")
        left = replace(left, attempt=0, started_at=None, settled_at=None, outcome=None)
        third = await world.store.accept(left)
        gate = world.gates["pending"].shut()
        world.host.followups.read_on(third.seq)
        await world.store.accept(replace(left, id="fourth"))
        await gate.reached()
        world.host.followups.read_on(third.seq - 1)
        gate.open()
        await settle()
        assert await stands(world, "third") == ("completed", 1)
        assert await stands(world, "fourth") == ("completed", 1)
        await world.at_rest()

    scene(scenario)


def test_a_handler_that_fails_is_tried_again_and_then_put_aside() -> None:
    """1. One follow-up always fails; others come behind it.
    2. It is tried three times, 1 s and 2 s apart; the others do not wait for that.
    3. It is put aside: its receipt says why, nothing of it was kept, and the agent goes on.
    """

    async def scenario(world: World) -> None:
        world.failing["bad"] = 99
        [bad, good] = await accepted(world, "a", "bad", "good")
        await settle()
        assert await world.done("a") == ["good"]
        receipt = await world.host.followups.receipts.get(
            bad, "default", deadline=world.host.now() + 100
        )
        assert (receipt.followup.state, receipt.followup.attempt) == ("dead_lettered", 3)
        assert world.host.now() == 3.0
        assert receipt.followup.outcome is not None
        assert json.loads(receipt.followup.outcome)["error"]["reason"] == "HANDLER_FAILED"
        assert await stands(world, good) == ("completed", 1)
        assert await world.done("a") == ["good"]
        await world.at_rest()

    scene(scenario)


def test_a_handler_that_fails_twice_and_then_does_not_has_run_once() -> None:
    async def scenario(world: World) -> None:
        world.failing["shaky"] = 2
        [id] = await accepted(world, "a", "shaky")
        receipt = await world.host.followups.receipts.get(
            id, "default", deadline=world.host.now() + 100
        )
        assert (receipt.followup.state, receipt.followup.attempt) == ("completed", 3)
        assert await world.done("a") == ["shaky"]
        await world.at_rest()

    scene(scenario)


def test_one_that_ends_its_host_each_time_is_put_aside_too() -> None:
    """An attempt counts before it is made: four hosts that end in it, and no fifth."""

    async def scenario(world: World) -> None:
        gate = world.gates["run poison"].shut()
        [id] = await accepted(world, "a", "poison")
        for attempt in (1, 2, 3):
            await gate.reached()
            assert await stands(world, id) == ("accepted", attempt)
            gate.shut()
            await restart(world)
        await settle()
        assert (await stands(world, id))[0] == "dead_lettered"
        assert world.ran == ["poison"] * 3
        gate.open()

    scene(scenario)


def test_an_agent_that_does_not_start_is_left_alone_for_longer_and_longer() -> None:
    """Failed starts are no attempts: the follow-up runs once the agent starts again."""

    async def scenario(world: World) -> None:
        world.unwilling = ["a"] * 4
        [id] = await accepted(world, "a", "one")
        await settle()
        assert await stands(world, id) == ("accepted", 0)
        receipt = await world.host.followups.receipts.get(
            id, "default", deadline=world.host.now() + 100
        )
        assert (receipt.followup.state, receipt.followup.attempt) == ("completed", 1)
        assert world.host.now() == 1.0 + 2.0 + 5.0 + 10.0  # two pauses, two quarantines
        await world.at_rest()

    scene(scenario)


def test_a_forced_eviction_costs_a_follow_up_no_attempt() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["run one"].shut()
        left = world.followup("a", "one")
        await gate.reached()
        await world.host.operators.evict(world.key("a"), mode="force")
        assert isinstance(await ending(left), Evicted)
        await settle()
        assert await stands(world, left.id) == ("accepted", 0)
        gate.open()
        receipt = await world.host.followups.receipts.get(
            left.id, "default", deadline=world.host.now() + 100
        )
        assert (receipt.followup.state, receipt.followup.attempt) == ("completed", 1)
        assert await world.done("a") == ["one"]
        await world.at_rest()

    scene(scenario)


def test_a_drain_leaves_to_the_next_host_what_it_cannot_finish() -> None:
    """1. a works on one; two waits. The drain's deadline passes.
    2. Both are in the store still, and nothing was loaded for them meanwhile.
    3. Undrained, the host takes them up.
    """

    async def scenario(world: World) -> None:
        gate = world.gates["run one"].shut()
        ids = await accepted(world, "a", "one", "two")
        await gate.reached()
        async for _ in world.host.drain(5.0):
            pass
        await settle()
        assert world.resident() == []
        assert [await stands(world, id) for id in ids] == [("accepted", 0)] * 2
        with pytest.raises(Draining):
            world.followup("a", "three")
        gate.open()
        world.host.undrain()
        await settle()
        assert await world.done("a") == ["one", "two"]
        await world.at_rest()

    scene(scenario)


def test_what_was_read_when_a_drain_began_is_taken_up_after_it() -> None:
    """1. A host finds three follow-ups; while it reads them, a drain begins.
    2. It takes up none of them. Undrained, it takes up all three.
    """

    async def scenario(world: World) -> None:
        gate = world.gates["run one"].shut()
        await accepted(world, "a", "one", "two", "three")
        await gate.reached()
        reading = world.gates["pending"].shut()
        await restart(world)
        await reading.reached()
        world.host.drains.begin()
        reading.open()
        gate.open()
        await settle()
        assert world.host.account.slots == {}
        world.host.undrain()
        await settle()
        assert await world.done("a") == ["one", "two", "three"]

    scene(scenario)


def test_one_that_expires_before_it_begins_never_runs() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["run zero"].shut()
        zero = world.do("a", "zero")
        await gate.reached()
        late = world.host.followup(world.key("a"), "late", Call(), expires_at=world.clock() + 5)
        await late.accepted()
        await asyncio.sleep(6)
        gate.open()
        await ending(zero)
        await settle()
        assert await stands(world, late.id) == ("expired", 0)
        assert await world.done("a") == ["zero"]
        await world.at_rest()

    scene(scenario)


@pytest.mark.parametrize("when", ["queued", "running"])
def test_one_that_is_cancelled_ends_so_and_stays_so(when: str) -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["run one"].shut()
        first = world.followup("a", "one")
        second = world.followup("a", "two")
        await gate.reached()
        meant = first if when == "running" else second
        assert [work.id for work in world.host.cancel(world.key("a"), "", meant.id)] == [meant.id]
        receipt = await world.host.followups.receipts.get(
            meant.id, "default", deadline=world.host.now() + 100
        )
        assert receipt.followup.state == "cancelled"
        gate.open()
        await settle()
        await restart(world)
        await settle()
        assert await world.done("a") == (["two"] if when == "running" else ["one"])

    scene(scenario)


def test_an_agents_end_is_the_end_of_its_follow_ups() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["run one"].shut()
        left = [world.followup("a", text) for text in ("one", "two")]
        await gate.reached()
        await world.host.delete_agent(world.key("a"))
        for envelope in left:
            assert isinstance(await ending(envelope), AgentDeleted)
            assert (await stands(world, envelope.id))[0] == "cancelled"
        gate.open()
        with pytest.raises(AgentDeleted):
            await world.followup("a", "three").accepted()
        await world.at_rest()

    scene(scenario)


def test_a_commit_that_fails_keeps_neither_effect_nor_end() -> None:
    async def scenario(world: World) -> None:
        world.store.fail["commit"] = [StoreUnavailable("full")]
        [id] = await accepted(world, "a", "one")
        await settle()
        assert await stands(world, id) == ("accepted", 1)
        assert await world.done("a") == []
        receipt = await world.host.followups.receipts.get(
            id, "default", deadline=world.host.now() + 100
        )
        assert receipt.followup.state == "completed"
        assert await world.done("a") == ["one"]
        await world.at_rest()

    scene(scenario)


def test_an_end_that_cannot_be_kept_now_is_kept_later() -> None:
    """What the agent refuses on purpose has failed at the first attempt. The store is told when it
    can be told, and the turn is not made again for it."""

    async def scenario(world: World) -> None:
        world.refusing.add("bad")
        world.store.fail["settle"] = [StoreUnavailable("full")] * 3
        [id] = await accepted(world, "a", "bad")
        receipt = await world.host.followups.receipts.get(
            id, "default", deadline=world.host.now() + 100
        )
        assert (receipt.followup.state, receipt.followup.attempt) == ("failed", 1)
        assert world.ran == ["bad"]
        await world.at_rest()

    scene(scenario)


def test_a_mailbox_that_is_full_takes_no_follow_up_either() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["run one"].shut()
        await accepted(world, "a", "one")
        await gate.reached()
        await accepted(world, "a", "two", "three")
        with pytest.raises(MailboxFull):
            world.followup("a", "four")
        gate.open()
        await settle()
        assert await world.done("a") == ["one", "two", "three"]
        await world.at_rest()

    scene(scenario, mailbox_size=2)


def test_a_receipt_can_be_waited_for_and_is_nobody_elses() -> None:
    async def scenario(world: World) -> None:
        gate = world.gates["run one"].shut()
        [id] = await accepted(world, "a", "one")
        await gate.reached()
        now = world.host.now()
        receipt = await world.host.followups.receipts.get(id, "default")
        assert (receipt.followup.state, receipt.running) == ("accepted", True)
        assert (await world.host.followups.receipts.get(id, "default", deadline=now + 5)).running
        assert world.host.now() == now + 5
        waiting = asyncio.ensure_future(
            world.host.followups.receipts.get(id, "default", deadline=now + 50)
        )
        await settle()
        gate.open()
        assert (await waiting).followup.state == "completed"
        assert world.host.now() == now + 5
        for other in (id, "no such"):
            with pytest.raises(ReceiptNotFound):
                await world.host.followups.receipts.get(other, "another tenant")
        assert world.host.followups.receipts._watches == {}
        await world.at_rest()

    scene(scenario)


def test_a_receipt_tells_the_end_that_the_store_has_before_the_turn_knows_of_it() -> None:
    async def scenario(world: World) -> None:
        told, commit = world.gates["commit is told"].shut(), world.store.commit

        async def commit_and_wait(key: AgentKey, **change: Any) -> int:
            version = await commit(key, **change)
            await told.pass_through()
            return version

        world.store.commit = commit_and_wait  # type: ignore[method-assign]
        [id] = await accepted(world, "a", "one")
        await told.reached()
        for deadline in (None, world.host.now() + 5):
            receipt = await world.host.followups.receipts.get(id, "default", deadline=deadline)
            assert (receipt.followup.state, receipt.running) == ("completed", False)
        told.open()
        await world.at_rest()

    scene(scenario)


def test_old_receipts_are_forgotten() -> None:
    async def scenario(world: World) -> None:
        [id] = await accepted(world, "a", "one")
        await settle()
        await asyncio.sleep(1000)
        assert await stands(world, id) == ("completed", 1)
        await asyncio.sleep(1000)
        with pytest.raises(ReceiptNotFound):
            await world.host.followups.receipts.get(id, "default")
        await world.at_rest()

    scene(scenario, receipt_retention=1000.0)


def passively(world: World, text: str, **more: Any) -> Envelope:
    return world.host.followup(world.key("a"), text, Call(), passive=True, **more)


def test_a_passive_one_wakes_nobody_and_runs_behind_other_work() -> None:
    """1. Left with an agent that is not there, it waits in the store.
    2. Left with one that is idle, too; and it keeps nobody.
    3. The agent has work: they run behind it, in order.
    """

    async def scenario(world: World) -> None:
        first = passively(world, "one")
        await first.accepted()
        await settle()
        assert (world.resident(), await stands(world, first.id)) == ([], ("accepted", 0))
        await world.do("a", "work").outcome()
        await settle()
        assert await world.done("a") == ["work", "one"]
        second = passively(world, "two")
        await second.accepted()
        await settle()
        assert await world.done("a") == ["work", "one"]
        assert world.host.account.slots[world.key("a")].leases is None
        await world.at_rest()
        assert await stands(world, second.id) == ("accepted", 0)
        await world.do("a", "more").outcome()
        await settle()
        assert await world.done("a") == ["work", "one", "more", "two"]
        assert await stands(world, second.id) == ("completed", 1)
        await world.at_rest()

    scene(scenario)


def test_one_that_is_left_while_its_agent_starts_is_found() -> None:
    async def scenario(world: World) -> None:
        start = world.gates["on_start"].shut()
        work = world.do("a", "work")
        await start.reached()
        left = passively(world, "one")
        await left.accepted()
        start.open()
        await ending(work)
        await settle()
        assert await world.done("a") == ["work", "one"]
        await world.at_rest()

    scene(scenario)


def test_a_passive_one_that_nobody_woke_its_agent_for_expires() -> None:
    async def scenario(world: World) -> None:
        left = passively(world, "one", expires_at=world.clock() + 100)
        await left.accepted()
        await asyncio.sleep(1000)
        assert await stands(world, left.id) == ("expired", 0)
        await world.do("a", "work").outcome()
        await settle()
        assert await world.done("a") == ["work"]
        await world.at_rest()

    scene(scenario)


def test_passive_ones_outlive_their_host_and_end_with_their_agent() -> None:
    async def scenario(world: World) -> None:
        left = passively(world, "one")
        await left.accepted()
        await restart(world)
        await settle()
        assert world.resident() == []
        await world.do("a", "work").outcome()
        await settle()
        assert await world.done("a") == ["work", "one"]
        other = passively(world, "two")
        await other.accepted()
        await world.host.delete_agent(world.key("a"))
        assert (await stands(world, other.id))[0] == "cancelled"

    scene(scenario)
