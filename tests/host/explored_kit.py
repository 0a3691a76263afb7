"""A world under search: callers of every kind, what must hold after each step, and the end.

Owns `Play`. The lives that exist are counted by the agents themselves, what was told is known from
the envelopes, and what was kept from the store: none of it is the account's own word.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from typing import Any, ClassVar

from host_kit import World, settle

from innkeeper_server.errors import AgentDeleted, Evicted, InnkeeperError
from innkeeper_server.events import TERMINAL, Event
from innkeeper_server.letters import read_events, read_message
from innkeeper_server.mailbox import Call, Envelope, Stage
from innkeeper_server.slots import Phase
from innkeeper_server.testing import Scene

BEYOND_EVERYTHING = 100.0  # seconds: longer than any patience, pin, hold or stop of these worlds


class Play:
    """One world, its callers, and everything they have sent."""

    # What the account did in all courses of this process, by phase and reason.
    seen: ClassVar[Counter[str]] = Counter()

    def __init__(self, scene: Scene, **limits: Any) -> None:
        self.scene = scene
        self.world = World(**{"pauses": 1, "idle_timeout": 300.0, **limits})
        self.host = self.world.host
        self.sent: dict[str, list[tuple[str, Envelope]]] = {}
        self.before: dict[str, list[str]] = {}  # what was kept before the search began
        self.tasks: list[asyncio.Task[Any]] = []
        self.forced = False  # somebody cuts turns
        self.deleting: set[str] = set()
        self.keyed: set[str] = set()  # texts that are sent more than once, under one key
        self.reminded: dict[str, dict[str, Envelope]] = {}  # by agent and text: who set the alarm
        self.followers: list[asyncio.Task[None]] = []  # each hears an agent until the end
        self.heard: list[tuple[str, list[Event]]] = []  # what they heard
        self.picked_up: list[list[Event]] = []  # turns as they were heard in two parts
        scene.always(self.check)

    @classmethod
    async def begun(cls, scene: Scene, *residents: str, **limits: Any) -> Play:
        """A world whose host has started, and where these agents are in memory, idle."""
        play = cls(scene, **limits)
        await play.host.start()
        for id in residents:
            await play.world.do(id, f"{id}0").outcome()
            play.before[id] = [f"{id}0"]
        return play

    def check(self) -> None:
        """What must hold after every step. Numbers are those of the design's invariants."""
        self.world.check()
        slots, runtimes = self.host.account.slots, self.host.driver.runtimes
        for slot in slots.values():
            if slot.phase is not Phase.LOADING:
                assert slot.runtime_id in runtimes, f"3: no runtime for {slot}"
        for number, runtime in runtimes.items():
            slot = slots[runtime.key]
            assert slot.runtime_id == number, f"3: no slot for {runtime}"
            mailbox = runtime.mailbox
            if not mailbox.is_empty and slot.phase in (Phase.RESIDENT, Phase.CLAIMED):
                assert slot.leases, f"6: {runtime} has work and nobody owns it"
            if slot.phase in (Phase.STOPPING, Phase.ZOMBIE):
                assert mailbox.closed, f"7: {runtime} is past its fence and open"
                assert not len(mailbox), f"9: {runtime} will never run what waits in it"

    # -- callers: each a task that may be cancelled at any step ----------------------------------

    def start(self, *callers: Coroutine[Any, Any, None]) -> None:
        """Begin them, in this order."""
        for caller in callers:
            task = asyncio.ensure_future(caller)
            self.tasks.append(self.scene.cancellable(task))

    async def invoke(self, id: str, text: str, patience: float | None = None) -> None:
        deadline = None if patience is None else self.host.now() + patience
        await self._until_settled(id, text, self.world.do(id, text, deadline=deadline))

    async def repeat(self, id: str, text: str) -> None:
        """One of several calls with the same key."""
        self.keyed.add(text)
        call = self.host.invoke(
            self.world.key(id), "work", {"text": text}, Call(), idempotency_key=text
        )
        await self._until_settled(id, text, call)

    async def job(self, id: str, text: str) -> None:
        """A turn that leaves work behind, and with it state that no turn commits."""
        call = self.host.invoke(self.world.key(id), "dirty", {"text": text}, Call())
        await self._until_settled(id, "", call)

    async def remind(self, id: str, text: str) -> None:
        """A turn that sets an alarm."""
        call = self.host.invoke(self.world.key(id), "remind", {"text": text}, Call())
        self.reminded.setdefault(id, {})[text] = call
        await self._until_settled(id, "", call)

    async def pick_up(self, id: str, text: str) -> None:
        """Leave a stream behind its first event, and hear the rest of it from the log."""
        envelope = self._note(id, text, self.world.chat(id, text, on_disconnect="continue"))
        assert envelope.outbox is not None
        try:
            events = await envelope.outbox.read()
        finally:
            self.host.caller_left(envelope)
        if events and not isinstance(events[-1].body, TERMINAL):
            following, after = self.host.followed(), events[-1].seq
            async for event in following.turn(envelope.agent, envelope.id, after, Call()):
                events.append(event)
            self.picked_up.append(events)

    def follow(self, id: str) -> None:
        """Hear everything that an agent says, until the end of the play."""
        heard: list[Event] = []
        self.heard.append((id, heard))

        async def follower() -> None:
            async for event in self.host.followed().agent(self.world.key(id), None):
                heard.append(event)

        self.followers.append(asyncio.ensure_future(follower()))

    async def ask(self, id: str, *ids: str) -> None:
        """A chain of nested calls."""
        call = self.host.invoke(self.world.key(id), "ask", {"ids": list(ids)}, Call())
        await self._until_settled(id, "", call)

    async def _until_settled(self, id: str, text: str, envelope: Envelope) -> None:
        self._note(id, text, envelope)
        try:
            await envelope.outcome()
        finally:
            self.host.caller_left(envelope)

    async def followup(self, id: str, text: str) -> None:
        await self._note(id, text, self.world.followup(id, text)).accepted()

    async def chat(self, id: str, text: str, policy: str) -> None:
        envelope = self._note(id, text, self.world.chat(id, text, on_disconnect=policy))
        assert envelope.outbox is not None
        try:
            while await envelope.outbox.read():
                pass
        finally:
            self.host.caller_left(envelope)

    async def session(self, id: str, seconds: float = 0.0) -> None:
        """A conversation that is left when the agent is about to leave, or after some time."""
        left = asyncio.Event()
        connection = self.host.connect(
            self.world.key(id), Call(), name="s", on_leaving=lambda _: left.set()
        )
        try:
            await connection.ready()
            await asyncio.wait([asyncio.ensure_future(left.wait())], timeout=seconds)
        finally:
            left.set()
            connection.close()

    async def evict(self, id: str, mode: str, patience: float = 5.0) -> None:
        self.forced |= mode == "force"
        await self.host.operators.evict(self.world.key(id), "", mode, patience)  # type: ignore[arg-type]

    async def cancel(self, id: str, scope: str = "all") -> None:
        self.host.cancel(self.world.key(id), scope)

    async def pin(self, id: str) -> None:
        await self.host.operators.pin(self.world.key(id), 30.0, "ops", Call())

    async def unpin(self, id: str) -> None:
        self.host.operators.unpin(self.world.key(id))

    async def resize(self, capacity: int) -> None:
        self.host.operators.set_capacity(capacity)

    async def delete(self, id: str, after: float = 0.0) -> None:
        await asyncio.sleep(after)
        self.deleting.add(id)
        await self.host.delete_agent(self.world.key(id))

    async def drain(self, patience: float = 10.0) -> None:
        self.forced = True
        async for _ in self.host.drain(patience):
            pass

    def _note(self, id: str, text: str, envelope: Envelope) -> Envelope:
        self.sent.setdefault(id, []).append((text, envelope))
        return envelope

    # -- the end --------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Let everything end; then compare what was told with what was kept, and see that nothing
        is left: no task, no ticket, and in time nobody in memory."""
        await asyncio.wait(self.tasks)
        for task in self.tasks:
            if not task.cancelled() and (fault := task.exception()) is not None:
                assert isinstance(fault, InnkeeperError), f"not a refusal: {fault!r}"
        self.world.gates.open_all()
        self.host.undrain()
        await settle()
        await asyncio.sleep(BEYOND_EVERYTHING)
        for id in self.sent.keys() | self.before.keys():
            await self._compare(id)
            await self._check_log(id)
        await self.world.at_rest()
        for follower in self.followers:
            follower.cancel()
        await settle()  # the host may look for alarms at this moment
        assert asyncio.all_tasks() == {asyncio.current_task()}, "a task without an owner"
        for transition in self.host.account.story:
            after = transition.after.value if transition.after else "absent"
            Play.seen[f"{after}: {transition.reason}"] += 1
        await self.host.close()

    async def _compare(self, id: str) -> None:
        """Calls settle, and are kept in the order in which they were sent. A follow-up takes its
        place once it was accepted, and may be tried again later."""
        sent = self.sent.get(id, [])
        calls = [(text, env) for text, env in sent if env.kind != "followup"]
        unsettled = [text for text, envelope in calls if envelope.stage is not Stage.SETTLED]
        assert not unsettled, f"8: {unsettled} never settled"
        left = {text for all in self.sent.values() for text, e in all if e.kind == "followup"}
        ran = Counter(word for word in self.world.ran if not word.startswith("for "))
        left |= self.keyed
        left |= {text for texts in self.reminded.values() for text in texts}
        again = [word for word, count in ran.items() if count > 1 and word not in left]
        assert not again, f"8: more than once: {again}"
        if not self.forced:
            cut = [text for text, envelope in calls if isinstance(envelope.error, Evicted)]
            assert not cut, f"{cut} was cut by a polite eviction"
        told = [
            word
            for text, env in calls
            if env.error is None and text not in self.keyed
            for word in text.split()
        ]
        kept = [word for word in await self.world.done(id) if not word.startswith("for ")]
        if id in self.deleting:
            self._check_deleted(calls, kept)
            await self._check_ended(sent)
        else:
            own = [word for word in kept if not word.startswith("job") and word not in left]
            assert own == self.before.get(id, []) + told, "8: what was told is not what was kept"
            await self._check_followups(sent, kept)
            await self._check_alarms(id, kept)
            self._check_repeats(calls, kept)

    def _check_repeats(self, calls: list[tuple[str, Envelope]], kept: list[str]) -> None:
        """However often one was sent: it has its effect once if anybody was told so, and never
        twice."""
        for text in self.keyed & {text for text, _ in calls}:
            told = any(env.error is None for said, env in calls if said == text)
            assert kept.count(text) <= 1, f"{text} has its effect twice: {kept}"
            assert not told or kept.count(text) == 1, f"{text} was told, and is not kept"
        assert self.host.repeats._under_way == {}, "a key is under way for ever"

    async def _check_ended(self, sent: list[tuple[str, Envelope]]) -> None:
        """Each that was accepted has ended. Its first envelope may have given its place to
        another, so only the store knows how."""
        for text, envelope in sent:
            if envelope.kept:
                found = await self.world.store.followup(envelope.id)
                assert found is not None, f"{text}: accepted, and not stored"
                assert found.state != "accepted", f"{text} was accepted and has not ended"

    async def _check_followups(self, sent: list[tuple[str, Envelope]], kept: list[str]) -> None:
        """Each that was accepted has ended; its effect is there once if it completed; and those
        that were tried once came in the order of their acceptance."""
        at_once = []
        for text, envelope in sent:
            if envelope.kind == "followup":
                found = await self.world.store.followup(envelope.id)
                assert envelope.kept == (found is not None), f"{text}: accepted, and not stored"
                state = found.state if found is not None else "refused"
                assert state != "accepted", f"{text} was accepted and has not ended"
                assert kept.count(text) == (state == "completed"), f"{text}, {state}: {kept}"
                if found is not None and envelope.stage is Stage.SETTLED and not envelope.error:
                    at_once.append((found.seq, text))
        in_order = [text for _, text in sorted(at_once)]
        assert [text for text in kept if text in in_order] == in_order, "out of order"

    async def _check_alarms(self, id: str, kept: list[str]) -> None:
        """One that was told as set has come and ended; one of a turn that failed never came."""
        stored = [*self.world.store._pending.values(), *self.world.store._ended.values()]
        for text, envelope in self.reminded.get(id, {}).items():
            came = [each for each in stored if read_message(each.message).alarm == text]
            assert len(came) == (envelope.error is None), f"the alarm {text} came {len(came)} times"
            states = [each.state for each in came]
            assert "accepted" not in states, f"the alarm {text} has not ended"
            assert kept.count(text) == states.count("completed"), f"{text}, {states}: {kept}"
        assert await self.world.store.alarms(self.world.key(id)) == []

    async def _check_log(self, id: str) -> None:
        """Each turn is logged from its first event to the one that ends it, without a hole; and
        whoever followed heard the whole of it, in its order."""
        if id in self.deleting:
            return
        chunks = await self.world.store.events(self.world.key(id), limit=1_000_000)
        logged = [event for chunk in chunks for event in read_events(chunk)]
        turns: dict[str, list[Event]] = {}
        for event in logged:
            turns.setdefault(event.turn_id, []).append(event)
        for turn_id, events in turns.items():
            _check_turn(events, whole="append" not in self.world.store.fail)
            assert self.host.turns._journal is not None
            assert not self.host.turns._journal.is_live(turn_id), f"{turn_id} is live for ever"
        for who, heard in self.heard:
            assert who != id or _names(heard) == _names(logged), "a follower missed something"
        for events in self.picked_up:
            whole = turns.get(events[0].turn_id)
            if whole is not None and "append" not in self.world.store.fail:
                assert _names(events) == _names(whole), "what was picked up is not the whole"

    def _check_deleted(self, sent: list[tuple[str, Envelope]], kept: list[str]) -> None:
        """Nothing is told as kept after something was refused because the agent is deleted."""
        refused = False
        for text, envelope in sent:
            refused |= isinstance(envelope.error, AgentDeleted)
            assert not refused or envelope.error is not None, f"{text} ran on a deleted agent"
        assert not refused or not kept, f"a deleted agent keeps {kept}"


def _names(events: list[Event]) -> list[tuple[str, int]]:
    return [(event.turn_id, event.seq) for event in events]


def _check_turn(events: list[Event], *, whole: bool) -> None:
    """`whole`: everything that was said could be logged; else its end may stand behind a gap."""
    events_or_gap = events if whole else events[:-1]
    assert [event.seq for event in events_or_gap] == list(range(1, len(events_or_gap) + 1)), "hole"
    ends = [isinstance(event.body, TERMINAL) for event in events]
    assert ends == [False] * (len(events) - 1) + [True], f"a turn that does not end once: {events}"


def any_caller(play: Play, chance: random.Random, number: int) -> Coroutine[Any, Any, None]:
    """One of all the callers there are, for one of three agents."""
    id, text = chance.choice("abc"), f"t{number}"
    kinds = [
        lambda: play.invoke(id, text, chance.choice([None, None, 0.0, 3.0])),
        lambda: play.invoke(id, text),
        lambda: play.followup(id, text),
        lambda: play.chat(id, f"{text}x {text}y", chance.choice(["cancel", "continue"])),
        lambda: play.session(id, chance.choice([0.0, 7.0])),
        lambda: play.job(id, f"job{number}"),
        lambda: play.ask(id, *chance.sample("abc", 2)),
        lambda: play.evict(id, chance.choice(["if_idle", "graceful", "force"])),
        lambda: play.cancel(id, chance.choice(["turn", "queue", "all"])),
        lambda: play.pin(id),
        lambda: play.unpin(id),
        lambda: play.resize(chance.choice([1, 2])),
        lambda: play.remind(id, text),
        lambda: play.pick_up(id, f"{text}x {text}y"),
        lambda: play.delete(id),
        lambda: play.drain(),
    ]
    weights = [3, 3, 3, 3, 2, 2, 2, 3, 1, 1, 1, 1, 2, 2, 1, 1]
    [kind] = chance.choices(kinds, weights)
    return kind()
