"""A session of the client library whose server is restarted in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from server_kit import FUSE
from test_server_process import Place, Running, place  # noqa: F401

from innkeeper_client import Client, GoingAway, Retry, errors
from innkeeper_client.events import Push

CALLS = 120
RESTARTED_AFTER = (30, 60, 90)  # answers


@pytest.fixture
def listen(place: Place) -> dict[str, Any]:  # noqa: F811
    """Every server of a test is found in the same place."""
    return {"listen": f"unix:{place.path}/serving.sock"}


async def rest_of(pushes: AsyncIterator[Push]) -> None:
    """Read to the end, which is told by farewells alone."""
    async for push in pushes:
        assert isinstance(push, GoingAway)


async def test_a_gentle_restart_costs_a_session_nothing_that_was_begun(
    place: Place,  # noqa: F811
    listen: dict[str, Any],
) -> None:
    """1. A call runs; the server is told to stop. The session hears that, and begins nothing more.
    2. The call ends well, then the session does. The next server goes on with the same state.
    """
    async with place.run(**listen) as first, Client(first.address) as client:
        session = client.agent("guest", "a").session()
        await session.open()
        assert await session.invoke("add") == 1
        pushes = session.events()
        held = asyncio.ensure_future(session.invoke("hold"))
        _, agent = await place.reported()
        first.process.terminate()
        assert isinstance(await anext(pushes), GoingAway)
        with pytest.raises(errors.Draining):
            await session.invoke("add", timeout=0.5)
        agent.write(b"go on\n")
        assert await held == "let go"
        with pytest.raises(errors.Draining):
            await rest_of(pushes)
        with pytest.raises(errors.ClientClosed):
            await session.invoke("add")
        await session.detach()
        assert await first.ended() == 0
        async with place.run(**listen), client.agent("guest", "a").session() as again:
            assert await again.invoke("add") == 2


async def test_a_killed_server_leaves_a_call_in_doubt_and_the_state_whole(
    place: Place,  # noqa: F811
    listen: dict[str, Any],
) -> None:
    async with place.run(**listen) as first, Client(first.address) as client:
        session = client.agent("guest", "a").session()
        await session.open()
        assert await session.invoke("add") == 1
        held = asyncio.ensure_future(session.invoke("hold"))
        await place.reported()
        first.process.kill()
        with pytest.raises(errors.OutcomeUnknown):
            await held
        with pytest.raises(errors.InnkeeperError):
            await anext(session.events())
        await session.detach()
        await first.ended()
        async with place.run(**listen), client.agent("guest", "a").session() as again:
            assert await again.invoke("add") == 2


async def test_a_client_that_opens_its_session_anew_counts_right_through_restarts(
    place: Place,  # noqa: F811
    listen: dict[str, Any],
) -> None:
    """It calls all the time while servers come and go. What was answered has happened; beyond it
    at most what the end of a session left in doubt."""
    answered = doubtful = 0
    due = {number: asyncio.Event() for number in RESTARTED_AFTER}

    async def count(client: Client) -> None:
        nonlocal answered, doubtful
        while answered < CALLS:
            try:
                async with client.agent("guest", "a").session() as session:
                    while answered < CALLS:
                        await session.invoke("add", timeout=1.0)
                        answered += 1
                        if answered in due:
                            due[answered].set()
            except errors.OutcomeUnknown:
                doubtful += 1
            except (errors.ClientClosed, errors.Draining, errors.Unreachable):
                pass

    async def stopped(running: Running) -> None:
        running.process.terminate()
        assert await running.ended() == 0

    retry = Retry(attempts=100, most=0.1)
    async with asyncio.timeout(FUSE), Client(f"{listen['listen']}", retry=retry) as client:
        counting: asyncio.Future[None] | None = None
        for restart in due.values():
            async with place.run(**listen) as running:
                counting = counting or asyncio.ensure_future(count(client))
                await restart.wait()
                await stopped(running)
        async with place.run(**listen) as running:
            assert counting is not None
            await counting
            kept = await client.agent("guest", "a").invoke("add", n=0)
            assert CALLS <= kept <= CALLS + doubtful
            assert doubtful <= len(RESTARTED_AFTER)
            await stopped(running)
