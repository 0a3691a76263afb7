"""SIGKILL in the middle of a thousand increments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from innkeeper_client import Client
from innkeeper_client.errors import InnkeeperError

AGENTS = str(Path(__file__).with_name("agents.py"))
COUNTERS = 20
INCREMENTS = 1000
KILLED_AFTER = 400  # acknowledged increments
FOLLOWED = 10  # agents that get follow-ups
KILLS = 3
KILLED_EACH = 100  # acknowledged follow-ups


async def test_counters_are_what_was_acknowledged_or_one_more_after_a_kill(
    serve: Callable[..., object], store_url: str
) -> None:
    """Each counter has one call in flight at a time, so its last call is the only one whose
    outcome the kill may have hidden."""
    flags = ("--agents", AGENTS, "--store", store_url)
    first = serve(*flags)
    acknowledged = [0] * COUNTERS
    left = iter(range(INCREMENTS))
    total = 0

    async with Client(first.address) as client:  # type: ignore[attr-defined]

        async def count(number: int) -> None:
            nonlocal total
            for _ in left:
                try:
                    value = await client.agent("counter", f"c{number}").invoke("add")
                except InnkeeperError:
                    return
                acknowledged[number] += 1
                assert value == acknowledged[number]
                total += 1
                if total == KILLED_AFTER:
                    first.kill()  # type: ignore[attr-defined]

        await asyncio.gather(*(count(number) for number in range(COUNTERS)))
    assert KILLED_AFTER <= total < INCREMENTS

    second = serve(*flags)
    async with Client(second.address) as client:  # type: ignore[attr-defined]
        for number in range(COUNTERS):
            value = await client.agent("counter", f"c{number}").invoke("get")
            assert value in (acknowledged[number], acknowledged[number] + 1)
    assert second.stop() == 0  # type: ignore[attr-defined]


async def test_every_follow_up_that_was_accepted_runs_once_through_kills(
    serve: Callable[..., object], store_url: str
) -> None:
    """Each adds a bit of its own to a counter, so that the sums tell which ran, and how often. The
    host is killed while it takes and runs them, three times; one that was killed in its handler
    runs again, and its effect is there once all the same."""
    flags = ("--agents", AGENTS, "--store", store_url, "--max-attempts", "9")
    receipts: dict[str, tuple[int, int]] = {}  # the counter and the bit
    bits = [0] * FOLLOWED
    doubtful = [0] * FOLLOWED  # bits whose acceptance the kill may have hidden
    for _ in range(KILLS):
        host = serve(*flags)
        async with Client(host.address) as client:  # type: ignore[attr-defined]

            async def leave(number: int, host: object = host, client: Client = client) -> None:
                while True:
                    bit = bits[number]
                    bits[number] += 1
                    try:
                        left = await client.agent("bits", f"b{number}").followup({"bit": bit})
                    except InnkeeperError:
                        doubtful[number] |= 1 << bit
                        return
                    receipts[left.receipt_id] = (number, bit)
                    if len(receipts) % KILLED_EACH == 0:
                        host.kill()  # type: ignore[attr-defined]
                        return

            await asyncio.gather(*(leave(number) for number in range(FOLLOWED)))
    assert len(receipts) >= KILLS * KILLED_EACH
    host = serve(*flags)
    async with Client(host.address) as client:  # type: ignore[attr-defined]
        for id in receipts:
            assert (await client.receipt(id, wait=True)).state == "completed"
        for number in range(FOLLOWED):
            accepted = sum(1 << bit for counter, bit in receipts.values() if counter == number)
            ran, twice = await client.agent("bits", f"b{number}").invoke("get")
            assert int(ran, 16) & ~doubtful[number] == accepted
            assert not twice
    assert host.stop() == 0  # type: ignore[attr-defined]


async def test_a_stop_and_a_start_keep_every_state(
    serve: Callable[..., object], store_url: str
) -> None:
    flags = ("--agents", AGENTS, "--store", store_url, "--capacity", "2")
    first = serve(*flags)
    async with Client(first.address) as client:  # type: ignore[attr-defined]
        for number in range(5):
            await client.agent("counter", f"c{number}").invoke("add", n=number)
    assert first.stop() == 0  # type: ignore[attr-defined]
    second = serve(*flags)
    async with Client(second.address) as client:  # type: ignore[attr-defined]
        for number in range(5):
            assert await client.agent("counter", f"c{number}").invoke("get") == number
    assert second.stop() == 0  # type: ignore[attr-defined]
