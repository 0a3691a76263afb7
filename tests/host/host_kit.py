"""A host on virtual time, with agents and a store that stop where a test wants them to.

Owns the world of the host's tests: `scene` runs a scenario on virtual time; `Guest` is an agent
each of whose steps passes a gate; and the ghost count, which knows the lives that exist from the
agents themselves, not from the account.
"""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from innkeeper_server.agent import Agent, action
from innkeeper_server.content import Content
from innkeeper_server.errors import AgentError, InnkeeperError
from innkeeper_server.host import Host
from innkeeper_server.identity import AgentKey
from innkeeper_server.limits import Limits
from innkeeper_server.mailbox import Call, Envelope
from innkeeper_server.registry import Registry
from innkeeper_server.testing import GatedStore, Gates, run, settle

FUSE = 100_000.0  # virtual seconds; a scenario that needs more hangs


FAULTS: dict[str, BaseException] = {
    "exit": SystemExit(3),
    "interrupt": KeyboardInterrupt(),
    "key": KeyError("secret text"),
    "cancelled": asyncio.CancelledError(),
}


@dataclass
class Log:
    """What a guest keeps in its state: the work it has done, in order."""

    done: list[str] = field(default_factory=list)


class World:
    """One host and everything a test needs to steer it."""

    def __init__(self, pauses: int = 0, **limits: Any) -> None:
        self.gates = Gates(pauses)
        self.alive: Tally[str] = Tally()
        self.ran: list[str] = []
        self.failing: dict[str, int] = {}  # texts whose code raises, so many times
        self.refusing: set[str] = set()  # texts that are refused on purpose
        self.stubborn: set[str] = set()  # guests, or texts, whose code is deaf to cancellation
        self.once: set[str] = set()  # texts whose code is deaf to its first cancellation
        self.raising: set[str] = set()  # guests whose on_stop raises
        self.parting: dict[str, str] = {}  # guests whose on_stop calls another
        self.greeting: dict[str, list[str]] = {}  # guests whose on_start asks others, in a row
        self.sending: dict[str, str] = {}  # guests whose on_start has a job call themselves
        self.refusals: list[InnkeeperError] = []  # what these calls were refused with
        self.industrious: set[str] = set()  # guests whose on_start spawns a job
        self.unwilling: list[str] = []  # guests whose on_start raises, once for each entry
        self.store = GatedStore(self.gates)
        self.registry = Registry()
        self.registry._types.update(GUESTS._types)
        Guest.world = self
        self.limits = Limits(
            **{"capacity": 1, "idle_timeout": 60.0, "admission_timeout": 10.0, **limits}
        )
        self.clock = asyncio.get_running_loop().time
        self.host = Host(self.registry, self.store, self.limits, clock=self.clock)
        self.most = self.limits.capacity  # the highest capacity so far

    def key(self, id: str) -> AgentKey:
        return AgentKey("default", "guest", id)

    def do(self, id: str, text: str = "work", **call: Any) -> Envelope:
        """Invoke `work` on a guest."""
        return self.host.invoke(self.key(id), "work", {"text": text}, Call(**call))

    def followup(self, id: str, text: str) -> Envelope:
        return self.host.followup(self.key(id), text, Call())

    def chat(self, id: str, text: str, **options: Any) -> Envelope:
        return self.host.chat(self.key(id), text, Call(), **options)

    def resident(self) -> list[str]:
        """Ids of everybody who has a slot."""
        return sorted(key.id for key in self.host.account.slots)

    def check(self) -> None:
        """The account is true, and agrees with the lives that exist."""
        self.host.account.check()
        exist = sum(self.alive.values())
        self.most = max(self.most, self.host.account.capacity)  # a shrink takes its time
        assert exist <= min(self.most, len(self.host.account.slots)), "2: ghosts"
        assert max(self.alive.values(), default=0) <= 1, "4: two lives of one agent"
        assert self.host.account.reconciled_total == 0, "the account had to be mended"

    async def done(self, id: str) -> list[str]:
        """What the store says that a guest has done."""
        record = await self.store.read(self.key(id))
        if record is None or record.state is None:
            return []
        return list(self.registry.resolve("guest")._codec.load(record.state).done)

    async def at_rest(self) -> None:
        """Let everything go on until nothing moves, then check that everybody leaves in time."""
        await settle()
        self.check()
        assert self.host.account.waiting == 0, "somebody still waits"
        await asyncio.sleep(self.limits.idle_timeout + self.host.account.hold_time + 1)
        self.check()
        assert self.resident() == [], "somebody stays whom nobody owns"
        assert sum(self.alive.values()) == 0, "a ghost stays"


class Guest(Agent[Log]):
    """An agent of the world that was made last; what an agent is costs time to find out."""

    world: ClassVar[World]

    async def on_start(self) -> None:
        self.world.alive[self.id] += 1
        try:
            await self._pass("on_start")
            if self.id in self.world.unwilling:
                self.world.unwilling.remove(self.id)
                raise RuntimeError("not today")
            if self.id in self.world.industrious:
                self.spawn(self._job(f"job of {self.id}"))
            if way := self.world.greeting.get(self.id):
                await self._call(way)
            if text := self.world.sending.get(self.id):
                self.spawn(self.host.agent("guest", self.id).invoke("work", text=text))
        except BaseException:
            self.world.alive[self.id] -= 1
            raise

    async def on_stop(self, reason: str) -> None:
        gate = self.world.gates[f"on_stop {self.id}"]
        try:
            if self.id in self.world.stubborn:
                await gate.pass_stubbornly()
            else:
                await gate.pass_through()
            if self.id in self.world.raising:
                raise RuntimeError("not today")
            if other := self.world.parting.get(self.id):
                await self._call([other])
        finally:
            self.world.alive[self.id] -= 1

    async def _call(self, way: list[str]) -> None:
        """Have the last of them work, each called by the one before."""
        first = self.host.agent("guest", way[0])
        try:
            if len(way) == 1:
                await first.invoke("work", text=f"farewell of {self.id}")
            else:
                await first.invoke("ask", ids=way[1:])
        except InnkeeperError as error:
            self.world.refusals.append(error)
            raise

    async def _job(self, text: str, gate: str = "") -> None:
        await self.world.gates[gate or text].pass_through()
        self.state.done.append(text)

    async def _step(self, text: str) -> str:
        self.world.ran.append(text)
        if text in self.world.stubborn:
            await self.world.gates[f"run {text}"].pass_stubbornly()
        else:
            await self._pass(f"run {text}", text)
        self.state.done.append(text)
        if self.world.failing.get(text, 0) > 0:
            self.world.failing[text] -= 1
            raise RuntimeError("not today")
        if text in self.world.refusing:
            raise AgentError("ABORTED", "not this one")
        return text

    async def _pass(self, gate: str, name: str = "") -> None:
        """Go by a gate; where the world says so, deaf to the first cancellation."""
        if (name or gate) in self.world.once:
            with suppress(asyncio.CancelledError):
                await self.world.gates[gate].pass_through()
                return
        await self.world.gates[gate].pass_through()

    @action
    async def work(self, text: str = "work") -> str:
        return await self._step(text)

    @action
    async def dirty(self, text: str) -> None:
        """Leaves state behind that is only saved at the checkpoint."""

        self.spawn(self._job(text, "job"))

    @action
    async def remind(self, text: str) -> None:
        """Have it done soon."""
        await self.world.gates[f"remind {text}"].pass_through()
        self.set_alarm(1.0, text, name=text)

    @action
    async def spawn_late(self, text: str) -> None:
        """Spawn a job, but not at once."""
        await self._step(text)
        self.spawn(self._job("late job"))

    @action
    async def change_its_mind(self) -> None:
        """Cancel a job before its first step."""
        self.spawn(self._job("never")).cancel()

    @action
    async def ask(self, ids: list[str]) -> Any:
        """Call the first, and have it call the rest."""
        await self.world.gates[f"ask {self.id}"].pass_through()
        other = self.host.agent("guest", ids[0])
        if len(ids) == 1:
            return await other.invoke("work", text=f"for {self.id}")
        return await other.invoke("ask", ids=ids[1:])

    @action
    async def fail(self, how: str) -> None:
        self.state.done.append("never kept")
        raise FAULTS[how]

    async def chat(self, message: str) -> AsyncIterator[str]:
        for word in message.split():
            yield await self._step(word)

    async def followup(self, message: str) -> None:
        await self._step(message)


GUESTS = Registry()
GUESTS.register("guest", Guest)


async def ending(envelope: Envelope) -> Content | InnkeeperError:
    """How an envelope ended: its output, or the error as a value."""
    try:
        async with asyncio.timeout(FUSE):
            return await envelope.outcome()
    except InnkeeperError as error:
        return error


def scene(scenario: Callable[[World], Coroutine[Any, Any, None]], **limits: Any) -> None:
    """Run a scenario in a world of its own, on virtual time, and end the world tidily."""

    async def play() -> None:
        world = World(**limits)
        await world.host.start()
        await scenario(world)
        await world.host.close()

    run(play())
