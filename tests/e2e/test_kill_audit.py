"""Hosts that are killed again and again under mixed load, over one store: everything that was
accepted has one end and one effect.

Each worker has an agent of its own and gives it numbered pieces of work, by every ingress and by
alarms, each with an idempotency key. Where a kill hides an answer, the same piece is given to the
next host under the same key. So in the end every number that was ever given must have been noted,
once.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from e2e_kit import Served

from innkeeper_client import Client
from innkeeper_client.calls import Retry
from innkeeper_client.errors import InnkeeperError
from postgres_kit import Postgres

AGENTS = str(Path(__file__).with_name("agents.py"))
WORKERS = 8
CAPACITY = 6  # fewer than agents: evictions take part
MOST_BETWEEN = 60  # acknowledged pieces between two kills
ONCE = Retry(attempts=1)
FUSE = 1800.0  # seconds; only a defect burns it

KINDS = ("invoke", "followup", "chat", "passive", "alarm")

Serve = Callable[..., Served]
Report = list[str]


@dataclass
class Audit:
    """What was given, and what was acknowledged of it."""

    seed: int
    given: list[int] = field(default_factory=lambda: [0] * WORKERS)  # numbers used by each
    open: dict[int, int] = field(default_factory=dict)  # by worker: the piece to give again
    receipts: dict[str, tuple[int, int]] = field(default_factory=dict)
    acknowledged: Counter[str] = field(default_factory=Counter)
    repeated: int = 0

    def next(self, worker: int) -> int:
        """The piece whose answer was hidden, or a new one."""
        if worker in self.open:
            self.repeated += 1
            return self.open[worker]
        self.open[worker] = self.given[worker]
        self.given[worker] += 1
        return self.open[worker]

    async def give(self, client: Client, worker: int, number: int) -> None:
        """One piece, by the ingress that its number stands for."""
        agent, key = client.agent("bits", f"b{worker}"), f"k{number}"
        kind = KINDS[(number * 7 + self.seed) % len(KINDS)]
        if kind == "invoke":
            assert await agent.invoke("note", bit=number, idempotency_key=key) == number
        elif kind == "alarm":
            await agent.invoke("remind", bit=number, idempotency_key=key)
        elif kind == "chat":
            text = ""
            async with agent.chat({"bit": number}, idempotency_key=key) as reply:
                text = await reply.text()
            assert text == f"noting {number}"
        else:
            left = await agent.followup(
                {"bit": number}, idempotency_key=key, passive=kind == "passive"
            )
            assert self.receipts.setdefault(left.receipt_id, (worker, number)) == (worker, number)
        self.acknowledged[kind] += 1
        del self.open[worker]

    async def life(self, host: Served, pieces: int, end: Callable[[], None]) -> None:
        """Load one host, and end it after so many acknowledged pieces."""
        goal = self.acknowledged.total() + pieces

        async def work(worker: int, client: Client) -> None:
            while self.acknowledged.total() < goal:
                try:
                    await self.give(client, worker, self.next(worker))
                except InnkeeperError:
                    if host.process.poll() is not None:
                        return  # it was killed; the piece stays open
                else:
                    if self.acknowledged.total() == goal:
                        end()

        async with Client(host.address, retry=ONCE) as client, asyncio.timeout(FUSE):
            await asyncio.gather(*(work(worker, client) for worker in range(WORKERS)))

    async def close(self, host: Served) -> str:
        """Give what is open once more, wait for every receipt, and compare; a line on it."""
        async with Client(host.address) as client, asyncio.timeout(FUSE):
            for worker in list(self.open):
                await self.give(client, worker, self.next(worker))
            for id in self.receipts:
                if (await client.receipt(id)).state == "accepted":  # a passive one sleeps: wake it
                    await client.agent("bits", f"b{self.receipts[id][0]}").invoke("get")
                assert (await client.receipt(id, wait=True)).state == "completed"
            for worker in range(WORKERS):
                await self.all_alarms(client, worker)
                bits, twice = await client.agent("bits", f"b{worker}").invoke("get")
                assert int(bits, 16) == (1 << self.given[worker]) - 1, "lost"
                assert not twice, "doubled"
        assert self.acknowledged.total() == sum(self.given)
        each = ", ".join(f"{count} {kind}" for kind, count in sorted(self.acknowledged.items()))
        return f"{each}; {self.repeated} repeated after a hidden answer"

    async def all_alarms(self, client: Client, worker: int) -> None:
        """Until none waits, and what they became has been done: a follow-up behind them has."""
        agent = client.agent("bits", f"b{worker}")
        while await agent.invoke("waiting"):
            pass
        last = self.given[worker]
        self.given[worker] += 1
        left = await agent.followup({"bit": last})
        assert (await client.receipt(left.receipt_id, wait=True)).state == "completed"
        self.acknowledged["followup"] += 1


async def killed(
    serve: Serve, url: str, kills: int, seed: int, end: Callable[[Served], None] = Served.kill
) -> str:
    """The audit over so many lives; the moments of the kills come from the seed."""
    chance, audit = random.Random(seed), Audit(seed)
    flags = ("--agents", AGENTS, "--store", url, "--capacity", str(CAPACITY))
    flags = (*flags, "--max-attempts", "1000")
    for _ in range(kills):
        host = serve(*flags)
        await audit.life(host, chance.randint(1, MOST_BETWEEN), lambda host=host: end(host))
    last = serve(*flags)
    line = await audit.close(last)
    assert last.stop() == 0
    return line


# Each of them beside others would be as good; one after the other they tell which store failed.
KILLS = [("sqlite", 200), ("postgresql", 50)]


@pytest.mark.parametrize(("store_url", "kills"), KILLS, indirect=["store_url"])
async def test_nothing_is_lost_or_doubled_through_kills_at_random_moments(
    serve: Serve, store_url: str, kills: int, report: Report, request: pytest.FixtureRequest
) -> None:
    line = await killed(serve, store_url, kills, seed=kills)
    report.append(f"{kills} kills, {store_url.split(':')[0]}: {line}")


@pytest.mark.long
@pytest.mark.skipif("INNKEEPER_KILLS" not in os.environ, reason="INNKEEPER_KILLS=N, a long run")
async def test_nothing_is_lost_or_doubled_through_as_many_kills_as_wanted(
    serve: Serve, store_url: str, report: Report
) -> None:
    kills = int(os.environ["INNKEEPER_KILLS"])
    seed = random.randrange(1 << 32)
    line = await killed(serve, store_url, kills, seed)
    report.append(f"{kills} kills, {store_url.split(':')[0]}, seed {seed}: {line}")


async def test_nothing_is_lost_or_doubled_where_the_database_is_killed_too(
    serve: Serve, report: Report
) -> None:
    """In every life it is killed with SIGKILL and started again in the middle of the load, and
    then the host is killed."""
    database = Postgres()
    try:
        url = database.url(await database.schema())
        chance, audit = random.Random(7), Audit(7)
        flags = ("--agents", AGENTS, "--store", url, "--capacity", str(CAPACITY))
        flags = (*flags, "--max-attempts", "1000")
        for _ in range(3):
            host = serve(*flags)

            def again() -> None:
                database.kill()
                database.start()

            await audit.life(host, chance.randint(1, MOST_BETWEEN), again)
            await audit.life(host, chance.randint(1, MOST_BETWEEN), host.kill)
        last = serve(*flags)
        line = await audit.close(last)
        assert last.stop() == 0
    finally:
        database.stop()
    report.append(f"3 kills of the database and of the host: {line}")
