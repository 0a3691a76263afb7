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


async def test_counters_are_what_was_acknowledged_or_one_more_after_a_kill(
    serve: Callable[..., object], tmp_path: Path
) -> None:
    """Each counter has one call in flight at a time, so its last call is the only one whose
    outcome the kill may have hidden."""
    flags = ("--agents", AGENTS, "--store", f"sqlite:///{tmp_path}/state.db")
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


async def test_a_stop_and_a_start_keep_every_state(
    serve: Callable[..., object], tmp_path: Path
) -> None:
    flags = ("--agents", AGENTS, "--store", f"sqlite:///{tmp_path}/state.db", "--capacity", "2")
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
