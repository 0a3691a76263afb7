"""Two hosts over one database: the one that loaded an agent last owns it, and the other one's
writes are refused, also where it was paused and knows nothing of that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e_kit import Served

from innkeeper_client import Client
from innkeeper_client.calls import Retry
from innkeeper_client.errors import StaleEpoch

AGENTS = str(Path(__file__).with_name("agents.py"))
ONCE = Retry(attempts=1)
FUSE = 60.0  # seconds

Serve = Callable[..., Served]


async def bits(client: Client) -> int:
    noted, twice = await client.agent("bits", "a").invoke("get")
    assert not twice
    return int(noted, 16)


async def test_the_host_that_lost_an_agent_is_refused_once_and_then_takes_it_back(
    serve: Serve, schema_url: str
) -> None:
    one, other = (serve("--agents", AGENTS, "--store", schema_url) for _ in range(2))
    async with Client(one.address, retry=ONCE) as first, Client(other.address) as second:
        await first.agent("bits", "a").invoke("note", bit=0)
        await second.agent("bits", "a").invoke("note", bit=1)
        with pytest.raises(StaleEpoch) as refused:
            await first.agent("bits", "a").invoke("note", bit=2)
        assert refused.value.retry_after is not None
        await first.agent("bits", "a").invoke("note", bit=3)
        assert await bits(first) == 0b1011
    assert (one.stop(), other.stop()) == (0, 0)


async def test_a_client_that_may_repeat_notices_nothing(serve: Serve, schema_url: str) -> None:
    """The two hosts take the agent from each other with every call."""
    one, other = (serve("--agents", AGENTS, "--store", schema_url) for _ in range(2))
    async with Client(one.address) as first, Client(other.address) as second:
        for number in range(20):
            agent = (first, second)[number % 2].agent("bits", "a")
            await agent.invoke("note", bit=number, idempotency_key=f"k{number}")
        # A turn that changes nothing may see an old state; one that commits may not.
        await second.agent("bits", "a").invoke("note", bit=30, idempotency_key="last")
        assert await bits(second) == (1 << 20) - 1 | 1 << 30
    assert (one.stop(), other.stop()) == (0, 0)


async def test_a_paused_host_damages_nothing_when_it_goes_on(serve: Serve, schema_url: str) -> None:
    """It is paused with the agent in memory and with work on its way: a call, a chat, a follow-up.
    Meanwhile the other host takes the agent over. When it goes on, its commits are refused, its
    callers are told so, and what it had accepted has one effect.
    """
    paused, other = (serve("--agents", AGENTS, "--store", schema_url) for _ in range(2))
    async with Client(paused.address, retry=ONCE) as first, Client(other.address) as second:
        agent = first.agent("bits", "a")
        await agent.invoke("note", bit=0)
        paused.pause()

        async def chat() -> str:
            async with agent.chat({"bit": 2}, idempotency_key="chat") as reply:
                return await reply.text()

        calls = [
            asyncio.ensure_future(agent.invoke("note", bit=1, idempotency_key="call")),
            asyncio.ensure_future(chat()),
            asyncio.ensure_future(agent.followup({"bit": 3}, idempotency_key="followup")),
        ]
        for number in (4, 5, 6):
            await second.agent("bits", "a").invoke("note", bit=number)
        paused.go_on()
        async with asyncio.timeout(FUSE):
            call, chatted, left = await asyncio.gather(*calls, return_exceptions=True)
        # Whichever the paused host began first was refused; then it took the agent back.
        refused = [told for told in (call, chatted) if isinstance(told, BaseException)]
        assert all(isinstance(told, StaleEpoch) for told in refused)
        await agent.invoke("note", bit=1, idempotency_key="call")
        await chat()
        assert not isinstance(left, BaseException)
        assert (await first.receipt(left.receipt_id, wait=True)).state == "completed"
        assert await bits(first) == 0b1111111
    assert (paused.stop(), other.stop()) == (0, 0)
