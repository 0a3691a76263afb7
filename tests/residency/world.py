"""A small world around the account: callers, starts, evictions, operators and a clock.

Owns the other side of the account's contract. It carries out effects, makes one move at a time in
any order, and keeps books of its own (the *ghost*): which runtimes physically exist and how far
each has come, who works on which, and since when. `truths.py` compares the two after every move.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

import truths
from parts import HOLD, IDLE, PATIENCE, PIN, SLOW, Life, Move, Setting, Work, asked

from innkeeper_server.errors import StartFailed
from innkeeper_server.identity import AgentKey
from innkeeper_server.slots import (
    Claim,
    Effect,
    Evict,
    Grant,
    Lease,
    LeaseKind,
    Load,
    Refuse,
)


@dataclass
class World:
    """See the module."""

    setting: Setting
    now: float = 0.0
    ticks: int = 0
    pins: int = 0
    jobs: int = 0
    resizes: int = 0
    lives: dict[int, Life] = field(default_factory=dict)
    rank: int = 0
    # Names that mean nothing any more: using them must change nothing.
    dead_lives: list[tuple[AgentKey, int]] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    refusals: list[Refuse] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.account = self.setting.account(
            capacity=self.setting.capacity,
            idle_timeout=IDLE,
            admission_timeout=PATIENCE,
            hold_time=HOLD,
            story_length=12,
        )
        self.account.live = self.lives.keys
        self.works = [asked(ask) for ask in self.setting.asks]

    # -- what can happen ------------------------------------------------------------------------

    def moves(self) -> Iterator[Move]:
        """Everything that can happen now."""
        yield from self._caller_moves()
        for runtime, life in self.lives.items():
            yield from self._life_moves(runtime, life)
        yield from self._operator_moves()
        if self.ticks < self.setting.ticks and self.account.next_deadline() < inf:
            yield ("tick",)
            if self.setting.rarities:
                yield ("oversleep",)
        if self.setting.rarities:
            yield from (("vanish", n) for n, life in self.lives.items() if life.stage != "loading")

    def _caller_moves(self) -> Iterator[Move]:
        unasked: set[tuple[AgentKey, LeaseKind, float]] = set()
        for index, work in enumerate(self.works):
            if work.kind is LeaseKind.JOB:
                if work.runtime is not None:
                    yield ("finish", index)
            elif work.ticket is None:
                same = (work.agent, work.kind, work.limit)
                if same not in unasked:  # requests that are alike come one after another
                    yield ("ask", index)
                unasked.add(same)
            elif work.runtime is not None:
                yield ("finish", index)
                if self.setting.cancels:
                    yield ("cancel", index)
                if self.setting.leavers and not work.leaves:
                    yield ("leave", index)
            elif not work.settled and self.setting.cancels:
                yield ("cancel", index)

    def _life_moves(self, runtime: int, life: Life) -> Iterator[Move]:
        failures = self.setting.failures
        if self.jobs < self.setting.jobs and life.stage in ("loading", "resident"):
            yield ("spawn", runtime)
        if life.stage == "loading":
            yield ("loaded", runtime)
            if failures:
                yield ("load fails", runtime)
                yield ("load hangs", runtime)
        elif life.looked is not None:
            yield ("fence", runtime)
        elif life.claim is not None and life.stage == "resident":
            yield ("look", runtime) if self.setting.split_fence else ("commit", runtime)
            if failures and not life.claim.force:
                yield ("checkpoint fails", runtime)
            if self.setting.rarities:
                yield ("give up", runtime)
        elif life.stage == "stopping":
            yield ("stopped", runtime)
            if failures:
                yield ("overrun", runtime)
        elif life.stage == "zombie":
            yield ("stopped", runtime)

    def _operator_moves(self) -> Iterator[Move]:
        setting = self.setting
        if setting.evictions:
            for runtime, life in self.lives.items():
                if life.stage == "resident":
                    for mode in ("if idle", "graceful", "force"):
                        yield ("evict", runtime, mode)
                    if life.leaving:
                        yield ("stay", runtime)
        if self.pins < setting.pins:
            for agent in dict.fromkeys(work.agent for work in self.works):
                yield ("pin", agent)
        if self.resizes < setting.resizes:
            for capacity in (self.account.capacity - 1, self.account.capacity + 1):
                if capacity:
                    yield ("resize", capacity)
        if setting.drains:
            yield ("undrain",) if self.account.draining else ("drain",)

    def play(self, move: Move, *, checked: bool = True) -> None:
        """Make one move and carry out what follows from it; then compare everything."""
        name, *rest = move
        lives = len(self.lives)
        effects = getattr(self, "_" + name.replace(" ", "_"))(*rest)
        self._carry_out(effects)
        for life in self.lives.values():
            slot = self.account.slots.get(life.agent)
            if life.stage == "resident" and (slot is None or slot.claim is not life.claim):
                life.claim = None  # given up; its eviction will find out
        if checked:
            truths.check(self, move, lives, effects)

    # -- callers --------------------------------------------------------------------------------

    def _ask(self, index: int) -> list[Effect]:
        work = self.works[index]
        work.asked = self.now
        work.ticket, effects = self.account.request(
            work.agent,
            work.kind,
            self.now,
            owner=f"caller {index}",
            deadline=self.now + work.limit,
            ttl=work.ttl,
            visitor=work,
        )
        return effects

    def _finish(self, index: int) -> list[Effect]:
        lease = _lease_of(self.works[index])
        self.let_go(self.works[index])
        return self.account.release(lease, self.now)

    def _cancel(self, index: int) -> list[Effect]:
        work = self.works[index]
        assert work.ticket is not None
        ticket = work.ticket
        self.let_go(work)
        return self.account.cancel(ticket, self.now)

    def _leave(self, index: int) -> list[Effect]:
        self.works[index].leaves = True
        return self.account.release(_lease_of(self.works[index]), self.now)

    def let_go(self, work: Work) -> None:
        """It is over; perhaps its caller asks again later."""
        runtime, work.runtime = work.runtime, None
        work.settled = True
        if runtime is not None:
            self._rest_if_idle(runtime)
        if work.agent.id in self.setting.again:
            work.ticket, work.settled = None, False

    # -- lives ----------------------------------------------------------------------------------

    def _spawn(self, runtime: int) -> list[Effect]:
        """Code of the agent begins a job, perhaps code that nobody knows of."""
        self.jobs += 1
        life = self.lives[runtime]
        lease, effects = self.account.join(
            life.agent, runtime, LeaseKind.JOB, f"job {self.jobs}", self.now
        )
        if lease is None:
            raise truths.Violation("6: a job without a lease")
        self.leases.append(lease)
        self.works.append(Work(life.agent, LeaseKind.JOB, lease=lease, runtime=runtime))
        life.held_until = -inf
        return effects

    def _loaded(self, runtime: int) -> list[Effect]:
        life = self.lives[runtime]
        life.stage = "resident"
        self._rest_if_idle(runtime)
        return self.account.loaded(life.agent, runtime, self.now)

    def _load_fails(self, runtime: int) -> list[Effect]:
        life = self._end(runtime)
        return self.account.load_failed(life.agent, runtime, StartFailed("no"), self.now)

    def _load_hangs(self, runtime: int) -> list[Effect]:
        life = self.lives[runtime]
        life.stage = "zombie"
        self._cut_works(runtime)
        return self.account.load_failed(
            life.agent, runtime, StartFailed("no"), self.now, ended=False
        )

    def _commit(self, runtime: int) -> list[Effect]:
        life = self.lives[runtime]
        assert life.claim is not None
        fenced, effects = self.account.commit(life.claim, self.now)
        if not fenced:
            raise truths.Violation("10: a claim that stands was not honoured")
        self._fenced(life, life.claim)
        return effects

    def _look(self, runtime: int) -> list[Effect]:
        life = self.lives[runtime]
        life.looked = life.claim
        return []

    def _fence(self, runtime: int) -> list[Effect]:
        """The fault: what was true when it looked is acted upon now."""
        life, account = self.lives[runtime], self.account
        assert life.looked is not None
        self._fenced(life, life.looked)
        claim = life.claim or account.evict(life.agent, self.now, force=True)[0]
        assert claim is not None
        life.claim = claim
        return account.commit(claim, self.now)[1]

    def _fenced(self, life: Life, claim: Claim) -> None:
        """Nothing goes in any more; what still ran is cut, and its caller told."""
        life.stage, life.looked = "stopping", None
        for work in self.works:
            if work.runtime is not None and self.lives[work.runtime] is life:
                if not claim.force:
                    raise truths.Violation(f"work on {life.agent} was cut by a polite eviction")
                work.runtime, work.settled = None, True

    def _checkpoint_fails(self, runtime: int) -> list[Effect]:
        life = self.lives[runtime]
        claim, life.claim = life.claim, None
        assert claim is not None
        life.held_until = self.now + HOLD
        return self.account.restore(claim, self.now, hold=True)

    def _give_up(self, runtime: int) -> list[Effect]:
        claim, self.lives[runtime].claim = self.lives[runtime].claim, None
        assert claim is not None
        return self.account.restore(claim, self.now)

    def _stopped(self, runtime: int) -> list[Effect]:
        life = self._end(runtime)
        return self.account.stopped(life.agent, runtime, self.now)

    def _overrun(self, runtime: int) -> list[Effect]:
        self.lives[runtime].stage = "zombie"
        return self.account.overrun(self.lives[runtime].agent, runtime, self.now)

    def _cut_works(self, runtime: int) -> None:
        for work in self.works:
            if work.runtime == runtime:
                work.runtime, work.settled = None, True

    def _end(self, runtime: int) -> Life:
        self._cut_works(runtime)
        life = self.lives.pop(runtime)
        self.dead_lives.append((life.agent, runtime))
        return life

    def _vanish(self, runtime: int) -> list[Effect]:
        """A defect of the host: a life has ended, and nobody told the account."""
        life = self._end(runtime)
        defects, effects = self.account.reconcile(self.lives.keys(), self.now)
        if defects != [f"{life.agent}: its slot had no runtime {runtime}"]:
            raise truths.Violation(f"3: reconciliation found {defects}")
        return effects

    def workers(self, runtime: int) -> list[Work]:
        """Who keeps this runtime."""
        return [work for work in self.works if work.runtime == runtime]

    def is_late(self, life: Life) -> bool:
        """Whether the eviction that is under way takes so long that nobody counts on it."""
        going = life.stage == "stopping" or (life.stage == "resident" and life.claim is not None)
        return going and life.claimed_at + SLOW <= self.now

    def _rest_if_idle(self, runtime: int) -> None:
        if not self.workers(runtime):
            life = self.lives[runtime]
            self.rank += 1
            life.idle_since, life.idle_rank, life.held_until = self.now, self.rank, -inf

    # -- time and operators ---------------------------------------------------------------------

    def _oversleep(self) -> list[Effect]:
        self.now += 2 * IDLE
        return self._tick()

    def _tick(self) -> list[Effect]:
        self.ticks += 1
        if self.account.next_deadline() > self.now:
            self.now = self.account.next_deadline()
        for work in self.works:
            if work.runtime is not None and work.until <= self.now:
                self.let_go(work)  # a pin whose time is over
        return self.account.tick(self.now)

    def _evict(self, runtime: int, mode: str) -> list[Effect]:
        life = self.lives[runtime]
        claim, effects = self.account.evict(
            life.agent, self.now, graceful=mode == "graceful", force=mode == "force"
        )
        if mode == "graceful" and claim is None and life.claim is None:
            life.leaving = True
        return effects

    def _stay(self, runtime: int) -> list[Effect]:
        self.lives[runtime].leaving = False
        return self.account.stay(self.lives[runtime].agent, runtime, self.now)

    def _pin(self, agent: AgentKey) -> list[Effect]:
        self.pins += 1
        self.works.append(Work(agent, LeaseKind.PIN, ttl=PIN))
        return self._ask(len(self.works) - 1)

    def _resize(self, capacity: int) -> list[Effect]:
        self.resizes += 1
        return self.account.set_capacity(capacity, self.now)

    def _drain(self) -> list[Effect]:
        return self.account.drain(self.now)

    def _undrain(self) -> list[Effect]:
        return self.account.undrain(self.now)

    # -- effects --------------------------------------------------------------------------------

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Load):
                self.lives[effect.runtime_id] = Life(effect.agent)
            elif isinstance(effect, Evict):
                self.claims.append(effect.claim)
                life = self.lives[effect.claim.runtime_id]
                if life.claim is None or not (effect.claim.force and self.is_late(life)):
                    life.claimed_at = self.now
                life.claim, life.leaving, life.held_until = effect.claim, False, -inf
            elif isinstance(effect, Grant):
                self._granted(effect)
            elif isinstance(effect, Refuse):
                self.let_go(effect.ticket.visitor)  # type: ignore[arg-type]
            else:
                raise truths.Violation("3: a runtime without a slot")

    def _granted(self, grant: Grant) -> None:
        work, slot = grant.ticket.visitor, grant.lease.slot
        assert isinstance(work, Work)
        assert slot is not None
        self.leases.append(grant.lease)
        life = self.lives.get(slot.runtime_id)
        if life is None or life.stage != "resident":
            raise truths.Violation("7: work was let in to a runtime that takes none")
        if work.runtime is not None or work.settled:
            raise truths.Violation("8: granted twice")
        life.leaving = False
        life.held_until = -inf
        work.runtime = slot.runtime_id
        work.until = self.now + work.ttl


def _lease_of(work: Work) -> Lease:
    if work.lease is not None:
        return work.lease
    assert work.ticket is not None
    assert work.ticket.lease is not None
    return work.ticket.lease
