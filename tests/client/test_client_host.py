"""The client against a real host over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from scripted import FUSE

from innkeeper_client import AgentRef, Client, GoingAway, Retry, errors
from innkeeper_server import Agent, action
from innkeeper_server.limits import Limits
from innkeeper_server.registry import Registry
from innkeeper_server.server import Server, serving


class Inn:
    """A host with one slot and agents that can be held, and a client of it."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.held = asyncio.Event()
        self.server: Server
        self.client: Client

    def registry(self) -> Registry:
        """What the host serves."""
        gate, held = self.gate, self.held

        class Guest(Agent[dict[str, int]]):
            """Counts, and can be held while it speaks."""

            @action
            async def add(self, n: int = 1) -> int:
                """Add to the count."""
                self.state["count"] = self.state.get("count", 0) + n
                return self.state["count"]

            @action
            async def hold(self) -> str:
                """Count, and wait at the gate."""
                await self.add()
                held.set()
                await gate.wait()
                return "let go"

            async def chat(self, message: str) -> AsyncIterator[str]:
                """Count, speak, wait, speak."""
                await self.add()
                yield f"{message}, "
                held.set()
                await gate.wait()
                yield "and gone"

        registry = Registry()
        registry.register(Guest)
        return registry

    async def count(self, id: str) -> int:
        """What a guest has kept."""
        return int(await self.client.agent("guest", id).invoke("add", n=0))


@asynccontextmanager
async def running() -> AsyncIterator[Inn]:
    """A running inn."""
    it = Inn()
    limits = Limits(capacity=1, admission_timeout=0.02, drain_timeout=2.0)
    async with (
        asyncio.timeout(FUSE),
        serving(registry=it.registry(), limits=limits) as it.server,
        Client(it.server.address) as it.client,
    ):
        yield it
        it.gate.set()


@pytest_asyncio.fixture
async def inn() -> AsyncIterator[Inn]:
    """A running inn."""
    async with running() as it:
        yield it


async def test_twenty_at_once_are_twenty_by_every_way_in(inn: Inn) -> None:
    guest = inn.client.agent("guest", "a")
    await asyncio.gather(*(guest.invoke("add") for _ in range(20)))
    async with guest.session() as session:
        calls = [session.invoke("add") for _ in range(20)]
        calls += [guest.invoke("add") for _ in range(20)]
        assert sorted(await asyncio.gather(*calls)) == list(range(21, 61))


async def test_a_session_holds_its_agent_and_answers_many_calls(inn: Inn) -> None:
    guest = inn.client.agent("guest", "a")
    async with guest.session(max_in_flight=5) as session:
        assert session.runtime_id == (await session.invoke_raw("add")).runtime_id
        (resident,) = [r async for r in inn.client.residency.list()]
        assert resident.connections == 1
        await asyncio.gather(*(session.invoke("add") for _ in range(50)), session.ping())
        inn.gate.set()
        assert await session.chat("here").text() == "here, and gone"
        receipt = await session.followup("later")
        assert receipt.state == "accepted"
        ended = await inn.client.receipt(receipt.receipt_id, wait=True)
        assert (ended.state, ended.attempt, ended.error) == ("completed", 1, None)
        assert await session.close()
    assert not (await inn.client.residency.explain("guest/a")).resident.busy  # type: ignore[union-attr]


async def test_a_reader_that_leaves_stops_the_turn_and_nothing_of_it_is_kept(inn: Inn) -> None:
    async with inn.client.agent("guest", "a").chat("here") as reply:
        assert (await anext(reply)).text == "here, "
    assert await inn.count("a") == 0
    async with inn.client.agent("guest", "a").session() as session:
        async with session.chat("here") as reply:
            await anext(reply)
        assert await session.invoke("add", n=0) == 0


async def test_a_reader_that_leaves_may_let_the_turn_go_on(inn: Inn) -> None:
    chat = inn.client.agent("guest", "a").chat("here", on_disconnect="continue")
    async with chat as reply:
        await anext(reply)
    await inn.held.wait()
    inn.gate.set()
    assert await inn.count("a") == 1


async def test_a_call_of_a_session_that_runs_out_of_time_is_stopped_on_the_host(inn: Inn) -> None:
    async with inn.client.agent("guest", "a").session() as session:
        with pytest.raises(errors.DeadlineExceeded):
            await session.invoke("hold", timeout=0.1)
        # The gate is still shut: only a stopped turn lets the next one in.
        assert await session.invoke("add", n=0) == 0


async def test_a_slot_that_comes_free_between_two_tries_is_taken(inn: Inn) -> None:
    await inn.client.residency.pin("guest/a", ttl=60, owner="ops")

    async def meanwhile(seconds: float) -> None:
        assert seconds >= 1
        await inn.client.residency.unpin("guest/a")

    async with Client(inn.server.address, retry=Retry(sleep=meanwhile)) as client:
        assert await client.agent("guest", "b").invoke("add") == 1


async def test_work_that_was_cut_by_force_is_repeated_only_on_request(inn: Inn) -> None:
    async def evict() -> None:
        await inn.held.wait()
        inn.held.clear()
        await inn.client.residency.evict("guest/a", mode="force")

    guest = inn.client.agent("guest", "a")
    evicting = asyncio.create_task(evict())
    with pytest.raises(errors.Evicted):
        await guest.invoke("hold")
    await evicting
    assert await inn.count("a") == 0

    evicting = asyncio.create_task(evict())
    held = asyncio.create_task(guest.invoke("hold", retry_unknown=True))
    await evicting
    inn.gate.set()
    assert await held == "let go"
    assert await inn.count("a") == 1


async def test_a_drain_is_heard_by_everybody_who_listens(inn: Inn) -> None:
    health = inn.client.health.watch()
    assert await anext(health) == "serving"
    moves = inn.client.residency.watch(after=0)
    async with inn.client.agent("guest", "a").session() as session:
        draining = asyncio.create_task(_drain(inn.client))
        pushes = session.events()
        assert {await anext(pushes), await anext(pushes)} == {
            GoingAway("the host is draining", AgentRef("guest", "a")),
            GoingAway("the host is draining", None),
        }
        assert await anext(health) == "not_serving"
    report = await draining
    assert (report.evicted, report.clean) == (1, True)
    seen = [(await anext(moves)).to_state for _ in range(2)]
    assert seen == ["loading", "resident"]
    assert await inn.client.residency.undrain()
    assert await anext(health) == "serving"


async def test_a_host_that_goes_ends_sessions_and_refuses_what_comes_later() -> None:
    async with running() as inn, Client(inn.server.address) as client:
        session = client.agent("guest", "a").session()
        await session.open()
        held = asyncio.create_task(session.invoke("hold"))
        await inn.held.wait()
        await inn.server.stop(patience=0.05)
        # A turn that had to be cut, by a host that was still there to say so.
        with pytest.raises(errors.Evicted):
            await held
        with pytest.raises(errors.ClientClosed):
            await session.invoke("add")
        assert isinstance((await _pushes(session))[0], GoingAway)
        assert not await session.close()
        with pytest.raises(errors.Unreachable):
            await client.agent("guest", "a").invoke("add", timeout=0.5)


async def _drain(client: Client) -> Any:
    return [step async for step in client.residency.drain(deadline=5)][-1]


async def _pushes(session: Any) -> list[Any]:
    heard = []
    try:
        async for push in session.events():
            heard.append(push)
    except errors.InnkeeperError:
        pass
    return heard
