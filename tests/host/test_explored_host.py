"""The host under a controlled loop: other orders than first come, first served, and every caller
cancelled at every step. After each step the account is true and agrees with the lives that exist;
at the end everything accepted has settled once, in order, and what was kept is what was told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from host_kit import World, settle

from innkeeper_server.errors import Evicted, InnkeeperError, StoreUnavailable
from innkeeper_server.lives import Lives
from innkeeper_server.mailbox import Call, Envelope, Stage
from innkeeper_server.residency import Account
from innkeeper_server.runtime import Runtime
from innkeeper_server.slots import Claim, Phase
from innkeeper_server.testing import Scene, explore, replay
from innkeeper_server.testing.explorer import ScheduleFailed
from innkeeper_server.turns import Turns


class Play:
    """One world under search, with callers of every kind."""

    def __init__(self, scene: Scene, **limits: Any) -> None:
        self.scene = scene
        self.world = World(pauses=1, **limits)
        self.sent: dict[str, list[tuple[str, Envelope]]] = {}
        self.tasks: list[asyncio.Task[Any]] = []
        scene.always(self.check)

    @classmethod
    async def begun(cls, scene: Scene, **limits: Any) -> Play:
        """A world whose host has started."""
        play = cls(scene, **limits)
        await play.world.host.start()
        return play

    def check(self) -> None:
        """What must hold after every step."""
        self.world.check()
        host = self.world.host
        for slot in host.account.slots.values():
            if slot.phase is not Phase.LOADING:
                assert slot.runtime_id in host.driver.runtimes, f"3: no runtime for {slot}"
        for number, runtime in host.driver.runtimes.items():
            slot = host.account.slots.get(runtime.key)
            assert slot is not None, f"3: no slot for {runtime}"
            assert slot.runtime_id == number, f"3: no slot for {runtime}"
            if runtime.mailbox.active is not None and slot.phase is Phase.RESIDENT:
                assert slot.leases, f"6: {runtime} works and nobody owns it"
            if slot.phase in (Phase.STOPPING, Phase.ZOMBIE):
                assert runtime.mailbox.closed, f"7: {runtime} is past its fence and open"

    # -- callers --------------------------------------------------------------------------------

    def start(self, caller: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(caller)
        self.tasks.append(self.scene.cancellable(task))

    def note(self, id: str, text: str, envelope: Envelope) -> Envelope:
        self.sent.setdefault(id, []).append((text, envelope))
        return envelope

    async def invoke(self, id: str, text: str) -> None:
        envelope = self.note(id, text, self.world.do(id, text))
        try:
            await envelope.outcome()
        except InnkeeperError:
            pass
        finally:
            self.world.host.caller_left(envelope)

    async def followup(self, id: str, text: str) -> None:
        envelope = self.note(id, text, self.world.followup(id, text))
        try:
            await envelope.accepted()
        except InnkeeperError:
            pass
        finally:
            if not envelope.runtime_id:
                self.world.host.caller_left(envelope)

    async def chat(self, id: str, text: str, policy: str) -> None:
        envelope = self.note(id, text, self.world.chat(id, text, on_disconnect=policy))
        assert envelope.outbox is not None
        try:
            while await envelope.outbox.read():
                pass
        finally:
            self.world.host.caller_left(envelope)

    async def session(self, id: str) -> None:
        host, left = self.world.host, asyncio.Event()
        connection = host.connect(
            self.world.key(id), Call(), name="s", on_leaving=lambda _: left.set()
        )
        try:
            await connection.ready()
            await asyncio.sleep(0)
        except InnkeeperError:
            pass
        finally:
            connection.close()

    async def evict(self, id: str, mode: str) -> None:
        try:
            await self.world.host.operators.evict(self.world.key(id), mode=mode, patience=5.0)  # type: ignore[arg-type]
        except InnkeeperError:
            pass

    async def cancel(self, id: str) -> None:
        await asyncio.sleep(0)
        self.world.host.cancel(self.world.key(id), "all")

    async def pin(self, id: str) -> None:
        try:
            await self.world.host.operators.pin(self.world.key(id), 30.0, "ops", Call())
        except InnkeeperError:
            pass

    # -- the end --------------------------------------------------------------------------------

    async def finish(self, *, forced: bool = False) -> None:
        """Let everything end; then compare what was told with what was kept. Only where somebody
        `forced` an agent out may a turn have been cut."""
        await asyncio.wait(self.tasks)
        for task in self.tasks:
            if not task.cancelled() and task.exception() is not None:
                raise task.exception()  # type: ignore[misc]
        self.world.host.drains.end()
        await settle()
        await asyncio.sleep(40)  # beyond every patience and pin, not beyond an idle time
        for id, sent in self.sent.items():
            unsettled = [text for text, envelope in sent if envelope.stage is not Stage.SETTLED]
            assert not unsettled, f"8: {unsettled} never settled"
            cut = [text for text, envelope in sent if isinstance(envelope.error, Evicted)]
            assert forced or not cut, f"{cut} was cut by a polite eviction"
            kept = [word for text, env in sent if env.error is None for word in text.split()]
            assert await self.world.done(id) == kept, "8: what was told is not what was kept"
        await self.world.at_rest()
        own = asyncio.current_task()
        assert asyncio.all_tasks() == {own}, "a task without an owner"
        await self.world.host.close()


async def hand_over(scene: Scene) -> None:
    """Capacity one: b evicts a while work for a keeps arriving."""
    play = await Play.begun(scene, capacity=1)
    await play.world.do("a", "zero").outcome()
    play.start(play.invoke("b", "b1"))
    play.start(play.followup("a", "one"))
    play.start(play.invoke("a", "two"))
    await finish_with(play, first={"a": ["zero"]})


async def finish_with(play: Play, first: dict[str, list[str]]) -> None:
    """As `finish`, where something had been kept before."""
    for id, texts in first.items():
        done = Envelope.__new__(Envelope)
        done.stage, done.error = Stage.SETTLED, None
        play.sent[id] = [(text, done) for text in texts] + play.sent.get(id, [])
    await play.finish()


async def streams_and_sessions(scene: Scene) -> None:
    """Two slots, three agents: readers that leave, a session, a follow-up behind a stream."""
    play = await Play.begun(scene, capacity=2)
    play.start(play.chat("a", "one two", "cancel"))
    play.start(play.chat("b", "three four", "continue"))
    play.start(play.followup("a", "five"))
    play.start(play.session("c"))
    await play.finish()


async def operators_at_work(scene: Scene) -> None:
    """Every kind of eviction, a pin and a cancel, around running and waiting work."""
    play = await Play.begun(scene, capacity=1)
    play.start(play.invoke("a", "one"))
    play.start(play.evict("a", "graceful"))
    play.start(play.invoke("a", "two"))
    play.start(play.evict("a", "force"))
    play.start(play.pin("a"))
    play.start(play.evict("a", "if_idle"))
    await play.finish(forced=True)


async def cancels_and_failures(scene: Scene) -> None:
    """A store that fails at its first reads and writes, a stop hook that raises, and a cancel."""
    play = await Play.begun(scene, capacity=1)
    play.world.store.fail = {
        "hydrate": [StoreUnavailable("locked")],
        "commit": [StoreUnavailable("disk full")],
    }
    play.world.raising.add("a")
    play.start(play.invoke("a", "one"))
    play.start(play.invoke("a", "two"))
    play.start(play.invoke("b", "b1"))
    play.start(play.cancel("a"))
    await play.finish()


async def a_drain(scene: Scene) -> None:
    """A drain that begins in the middle of everything, and its end."""
    play = await Play.begun(scene, capacity=2)

    async def drain() -> None:
        await asyncio.sleep(0)
        async for _ in play.world.host.drain(10.0):
            pass

    play.start(play.invoke("a", "one"))
    play.start(play.followup("a", "two"))
    play.start(drain())
    play.start(play.invoke("b", "b1"))
    await play.finish(forced=True)


async def a_polite_eviction(scene: Scene) -> None:
    """An idle agent is to leave, and work arrives."""
    play = await Play.begun(scene, capacity=1)
    await play.world.do("a", "zero").outcome()
    play.start(play.evict("a", "if_idle"))
    play.start(play.invoke("a", "one"))
    play.start(play.followup("a", "two"))
    await finish_with(play, first={"a": ["zero"]})


async def a_forced_eviction(scene: Scene) -> None:
    """A running turn is cut; what waits behind it goes to the next life, in order."""
    play = await Play.begun(scene, capacity=1)
    play.start(play.invoke("a", "one"))
    play.start(play.invoke("a", "two"))
    play.start(play.followup("a", "three"))
    play.start(play.evict("a", "force"))
    await play.finish(forced=True)


SCENARIOS = [
    hand_over,
    streams_and_sessions,
    operators_at_work,
    cancels_and_failures,
    a_drain,
    a_polite_eviction,
    a_forced_eviction,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_no_schedule_breaks_the_host(
    scenario: Callable[[Scene], Coroutine[Any, Any, None]],
    report: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("CRITICAL")
    explored = explore(scenario, deviations=2, most=500, walks=60)
    report.append(
        f"host: {explored.schedules} schedules ({explored.cancellations} end in a cancellation), "
        f"{explored.steps} steps: {scenario.__name__}"
    )
    assert explored.schedules > 400
    assert explored.cancellations > 100


# -- planted faults: tests of the test ------------------------------------------------------------


def await_before_the_fence(patch: pytest.MonkeyPatch) -> None:
    """Looks at the mailbox, lets others go first, and fences all the same."""
    real = Account.commit

    def commit(self: Account, claim: Claim, now: float) -> Any:
        slot = self.slots.get(claim.agent)
        if slot is not None and slot.phase is Phase.RESIDENT and slot.leases:
            self._claim(slot, claim.reason, now, force=True)
            self._out.clear()
            return real(self, slot.claim, now)  # type: ignore[arg-type]
        return real(self, claim, now)

    patch.setattr(Account, "commit", commit)


def the_lease_goes_with_the_caller(patch: pytest.MonkeyPatch) -> None:
    from innkeeper_server.host import Host

    real = Host.caller_left

    def caller_left(self: Host, envelope: Envelope) -> None:
        if envelope.stage is Stage.ACTIVE and envelope.lease is not None:
            self.driver.release(envelope.lease)
        real(self, envelope)

    patch.setattr(Host, "caller_left", caller_left)


def stopped_before_the_code_has_ended(patch: pytest.MonkeyPatch) -> None:
    real = Lives._deactivate

    async def deactivate(self: Lives, runtime: Runtime, claim: Claim) -> None:
        self._child(real(self, runtime, claim), "left behind")

    patch.setattr(Lives, "_deactivate", deactivate)


def waiting_work_is_dropped_at_the_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lives, "_hand_over", lambda self, runtime, waiting: None)


def a_reply_before_its_commit(patch: pytest.MonkeyPatch) -> None:
    real = Turns._transact

    async def transact(self: Turns, runtime: Runtime, envelope: Envelope) -> Any:
        try:
            return await real(self, runtime, envelope)
        except StoreUnavailable:
            return "as if"

    patch.setattr(Turns, "_transact", transact)


def a_failed_checkpoint_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = Turns._undo
    patch.setattr(Turns, "_undo", lambda self, runtime, error: None)
    assert real is not Turns._undo


FAULTS = [
    (await_before_the_fence, a_polite_eviction),
    (the_lease_goes_with_the_caller, hand_over),
    (stopped_before_the_code_has_ended, hand_over),
    (waiting_work_is_dropped_at_the_fence, a_forced_eviction),
    (a_reply_before_its_commit, cancels_and_failures),
    (a_failed_checkpoint_is_forgotten, cancels_and_failures),
]


@pytest.mark.parametrize(("plant", "scenario"), FAULTS, ids=lambda value: value.__name__)
def test_a_planted_fault_is_found_and_its_schedule_replays(
    plant: Callable[[pytest.MonkeyPatch], None],
    scenario: Callable[[Scene], Coroutine[Any, Any, None]],
    monkeypatch: pytest.MonkeyPatch,
    report: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("CRITICAL")
    plant(monkeypatch)
    with pytest.raises(ScheduleFailed) as found:
        explore(scenario, deviations=2, most=1_500, walks=150)
    schedule = str(found.value).split("'")[1]
    with pytest.raises(Exception, match=r".+"):
        replay(scenario, schedule)
    report.append(f"host: fault {plant.__name__} found by schedule {schedule or 'fifo'!r:.60}")
