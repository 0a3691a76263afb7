"""A small world around the account, and a search through all its states.

Owns the other side of the account's contract: it carries out effects one move at a time, in every
order, knows by itself which runtimes physically exist and which of them have work, and checks
after each move that the account says the same. A state is reached by replaying its moves from the
beginning, which is cheaper than copying, and is told from others by what could matter later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf

from innkeeper_server.errors import CapacityExhausted, Draining, StartFailed
from innkeeper_server.identity import AgentKey
from innkeeper_server.residency import Account
from innkeeper_server.slots import (
    Claim,
    Discard,
    Effect,
    Evict,
    Grant,
    LeaseKind,
    Load,
    Phase,
    Refuse,
    Ticket,
)

Move = tuple[str, *tuple[object, ...]]

IDLE, PATIENCE, HOLD = 60.0, 10.0, 4.0


@dataclass(frozen=True)
class Setting:
    """What there is in a world, and what can happen in it."""

    capacity: int
    requests: tuple[str, ...]  # the agents that are asked for, in any order, each once
    ticks: int = 2  # how often the clock may jump to the next deadline
    failures: bool = True  # loads, checkpoints and stops may fail
    cancels: bool = True
    operator: bool = False  # evictions of all three kinds, pins, another capacity
    drains: bool = False
    account: type[Account] = Account
    leaver_loses_lease: bool = False  # a planted fault of the world itself


@dataclass
class Work:
    """A request and what became of it."""

    agent: AgentKey
    ticket: Ticket | None = None
    working: int | None = None  # the runtime that does it
    lease_gone: bool = False  # the fault: its caller took the lease along
    over: bool = False


class Violation(AssertionError):
    """The account and the world disagree."""


@dataclass
class World:
    """See the module."""

    setting: Setting
    now: float = 0.0
    ticks: int = 0
    exists: dict[int, AgentKey] = field(default_factory=dict)
    loading: set[int] = field(default_factory=set)
    claims: dict[int, Claim] = field(default_factory=dict)  # evictions before their fence
    stopping: set[int] = field(default_factory=set)
    zombies: set[int] = field(default_factory=set)
    gone: list[tuple[AgentKey, int, Claim | None]] = field(default_factory=list)
    refusals: list[Refuse] = field(default_factory=list)
    pinned: bool = False
    resized: bool = False
    drained: bool = False

    def __post_init__(self) -> None:
        self.account = self.setting.account(
            capacity=self.setting.capacity,
            idle_timeout=IDLE,
            admission_timeout=PATIENCE,
            hold_time=HOLD,
            story_length=12,
        )
        self.account.live = self.exists.keys
        self.most = self.setting.capacity
        self.work = [Work(AgentKey("t", "x", name)) for name in self.setting.requests]

    # -- moves ----------------------------------------------------------------------------------

    def moves(self) -> Iterator[Move]:
        """Everything that can happen now."""
        yield from self._callers()
        yield from self._processes()
        if self.setting.operator:
            yield from self._operators()
        if self.setting.drains:
            yield ("undrain",) if self.account.draining else ("drain",)
        if self.ticks < self.setting.ticks and self.account.next_deadline() < inf:
            yield ("tick",)
        for index in range(len(self.gone)):
            yield ("stale", index)

    def _callers(self) -> Iterator[Move]:
        for index, work in enumerate(self.work):
            if work.ticket is None:
                if not any(w.ticket is None and w.agent == work.agent for w in self.work[:index]):
                    yield ("request", index)
            elif not work.over:
                if work.working is not None:
                    yield ("finish", index)
                    if self.setting.leaver_loses_lease and not work.lease_gone:
                        yield ("leave", index)
                if self.setting.cancels:
                    yield ("cancel", index)

    def _processes(self) -> Iterator[Move]:
        for runtime in sorted(self.loading):
            yield ("loaded", runtime)
            if self.setting.failures:
                yield ("load failed", runtime)
                yield ("load stuck", runtime)
        for runtime in sorted(self.claims):
            yield ("commit", runtime)
            if self.setting.failures:
                yield ("checkpoint fails", runtime)
        for runtime in sorted(self.stopping):
            yield ("stopped", runtime)
            if self.setting.failures:
                yield ("overrun", runtime)
        for runtime in sorted(self.zombies):
            yield ("ended", runtime)

    def _operators(self) -> Iterator[Move]:
        for agent in sorted(self.account.slots):
            for mode in ("if idle", "graceful", "force"):
                yield ("evict", agent, mode)
            if self.account.slots[agent].leaving:
                yield ("stay", agent)
            if not self.pinned:
                yield ("pin", agent)
        if not self.resized:
            yield ("resize", self.setting.capacity + 1)
            if self.setting.capacity > 1:
                yield ("resize", self.setting.capacity - 1)

    def play(self, move: Move) -> None:
        """Make one move, carry out what follows, and check everything."""
        name, *rest = move
        before = self.key() if name == "stale" else None
        self._carry_out(getattr(self, "_" + name.replace(" ", "_"))(*rest))
        self._check()
        if before is not None and before != self.key():
            raise Violation("10: a stale report changed something")

    def _request(self, index: int) -> list[Effect]:
        work = self.work[index]
        work.ticket, effects = self.account.request(
            work.agent, LeaseKind.REQUEST, self.now, owner=str(index), visitor=work
        )
        return effects

    def _finish(self, index: int) -> list[Effect]:
        work = self.work[index]
        work.over, work.working = True, None
        assert work.ticket is not None
        assert work.ticket.lease is not None
        return self.account.release(work.ticket.lease, self.now)

    def _leave(self, index: int) -> list[Effect]:
        work = self.work[index]
        work.lease_gone = True
        assert work.ticket is not None
        assert work.ticket.lease is not None
        return self.account.release(work.ticket.lease, self.now)

    def _cancel(self, index: int) -> list[Effect]:
        work = self.work[index]
        work.over, work.working = True, None
        assert work.ticket is not None
        return self.account.cancel(work.ticket, self.now)

    def _loaded(self, runtime: int) -> list[Effect]:
        self.loading.remove(runtime)
        return self.account.loaded(self.exists[runtime], runtime, self.now)

    def _load_failed(self, runtime: int) -> list[Effect]:
        self.loading.remove(runtime)
        agent = self.exists.pop(runtime)
        self.gone = [(agent, runtime, None)]
        return self.account.load_failed(agent, runtime, StartFailed("no"), self.now)

    def _load_stuck(self, runtime: int) -> list[Effect]:
        self.loading.remove(runtime)
        self.zombies.add(runtime)
        agent = self.exists[runtime]
        return self.account.load_failed(agent, runtime, StartFailed("no"), self.now, ended=False)

    def _commit(self, runtime: int) -> list[Effect]:
        claim = self.claims.pop(runtime)
        fenced, effects = self.account.commit(claim, self.now)
        if fenced:
            self.stopping.add(runtime)
            for work in self.work:
                if work.working == runtime:
                    assert work.ticket is not None
                    if not claim.force and work.ticket.ttl == inf:
                        raise Violation(f"work on {claim.agent} was cut by a polite eviction")
                    work.over, work.working = True, None
        return effects

    def _checkpoint_fails(self, runtime: int) -> list[Effect]:
        return self.account.restore(self.claims.pop(runtime), self.now, hold=True)

    def _stopped(self, runtime: int) -> list[Effect]:
        self.stopping.remove(runtime)
        return self._end(runtime)

    def _overrun(self, runtime: int) -> list[Effect]:
        self.stopping.remove(runtime)
        self.zombies.add(runtime)
        return self.account.overrun(self.exists[runtime], runtime, self.now)

    def _ended(self, runtime: int) -> list[Effect]:
        self.zombies.remove(runtime)
        return self._end(runtime)

    def _end(self, runtime: int) -> list[Effect]:
        agent = self.exists.pop(runtime)
        slot = self.account.slots.get(agent)
        self.gone = [(agent, runtime, slot.claim if slot else None)]
        return self.account.stopped(agent, runtime, self.now)

    def _tick(self) -> list[Effect]:
        self.ticks += 1
        self.now = max(self.now, self.account.next_deadline())
        return self.account.tick(self.now)

    def _stale(self, index: int) -> list[Effect]:
        """Late news of a life that is over."""
        agent, runtime, claim = self.gone[index]
        account, now = self.account, self.now
        effects = account.stopped(agent, runtime, now) + account.overrun(agent, runtime, now)
        effects += account.load_failed(agent, runtime, StartFailed("late"), now)
        if claim is not None:
            effects += account.restore(claim, now) + account.commit(claim, now)[1]
        if effects:
            raise Violation(f"10: a stale report had effects: {effects}")
        return []

    def _evict(self, agent: AgentKey, mode: str) -> list[Effect]:
        return self.account.evict(
            agent, self.now, graceful=mode == "graceful", force=mode == "force"
        )[1]

    def _stay(self, agent: AgentKey) -> list[Effect]:
        return self.account.stay(agent, self.account.slots[agent].runtime_id, self.now)

    def _pin(self, agent: AgentKey) -> list[Effect]:
        self.pinned = True
        pin = Work(agent)
        self.work.append(pin)
        pin.ticket, effects = self.account.request(
            agent, LeaseKind.PIN, self.now, ttl=20.0, visitor=pin
        )
        return effects

    def _resize(self, capacity: int) -> list[Effect]:
        self.resized = True
        self.most = max(self.most, capacity)
        return self.account.set_capacity(capacity, self.now)

    def _drain(self) -> list[Effect]:
        self.drained = True
        return self.account.drain(self.now)

    def _undrain(self) -> list[Effect]:
        return self.account.undrain(self.now)

    # -- effects --------------------------------------------------------------------------------

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Load):
                self._check_order(effect)
                self.exists[effect.runtime_id] = effect.agent
                self.loading.add(effect.runtime_id)
            elif isinstance(effect, Evict):
                self.claims[effect.claim.runtime_id] = effect.claim
            elif isinstance(effect, Grant):
                work = effect.ticket.visitor
                assert isinstance(work, Work)
                assert effect.lease.slot is not None
                if effect.lease.slot.runtime_id in self.stopping | self.zombies | self.loading:
                    raise Violation("7: work was let in to a runtime that takes none")
                work.working = effect.lease.slot.runtime_id
            elif isinstance(effect, Refuse):
                self._check_refusal(effect)
                work = effect.ticket.visitor
                assert isinstance(work, Work)
                work.over = True
                self.refusals.append(effect)
            elif isinstance(effect, Discard):
                raise Violation("3: a runtime without a slot")

    def _check_order(self, load: Load) -> None:
        slot = self.account.slots.get(load.agent)
        if slot is None or not slot.waiting:
            return
        oldest = min(slot.waiting)
        passed = [min(tickets) for tickets in self.account.wanted.values() if min(tickets) < oldest]
        if passed:
            raise Violation("a newcomer passed an older ticket")

    def _check_refusal(self, refusal: Refuse) -> None:
        if isinstance(refusal.error, CapacityExhausted):
            if len(self.exists) < min(self.account.capacity, self.setting.capacity):
                raise Violation("12: refused for a limit that was not there")
            if "held by" not in refusal.error.message:
                raise Violation("12: a refusal without a holder")
        elif isinstance(refusal.error, Draining) and not self.account.draining:
            raise Violation("12: refused by a drain that is not")

    # -- what must hold -------------------------------------------------------------------------

    def _check(self) -> None:
        account = self.account
        account.check()
        if len(self.exists) > self.most:
            raise Violation(f"2: {len(self.exists)} runtimes exist, capacity {self.most}")
        agents = list(self.exists.values())
        if len(set(agents)) < len(agents):
            raise Violation("4: two lives of one agent")
        charged = {slot.runtime_id: slot.agent for slot in account.slots.values()}
        if charged != self.exists:
            raise Violation(f"3: charged {charged}, existing {self.exists}")
        for phase, known in ((Phase.STOPPING, self.stopping), (Phase.ZOMBIE, self.zombies)):
            if known != {s.runtime_id for s in account.slots.values() if s.phase is phase}:
                raise Violation(f"3: the world sees other {phase.value} runtimes")
        owned = {s.agent: len(s.leases or ()) for s in account.slots.values() if s.leases}
        working: dict[AgentKey, int] = {}
        for work in self.work:
            expired_pin = work.ticket is not None and work.ticket.ttl < inf
            if work.working is not None and not work.lease_gone and not expired_pin:
                working[work.agent] = working.get(work.agent, 0) + 1
        pins = {
            s.agent: sum(lease.kind is LeaseKind.PIN for lease in s.leases or ())
            for s in account.slots.values()
        }
        if {a: n - pins[a] for a, n in owned.items() if n > pins[a]} != working:
            raise Violation(f"6: leases {owned}, work {working}")

    def key(self) -> object:
        """What tells this state from others: everything that can matter later."""
        account, now = self.account, self.now
        slots = tuple(
            (
                agent,
                slot.phase,
                tuple(sorted((lease.kind.value, lease.until - now) for lease in slot.leases or ())),
                slot.leaving,
                None if slot.claim is None else (slot.claim.reason, slot.claim.firm),
                tuple((t.agent, t.patience - now) for t in (slot.waiting or {}).values()),
                slot.runtime_id in self.claims,
                # the claim that an eviction under way holds may be an older one
                slot.claim is not None and self.claims.get(slot.runtime_id) == slot.claim,
            )
            for agent, slot in sorted(account.slots.items())
        )
        first = {agent: min(tickets) for agent, tickets in account.wanted.items()}
        return (
            slots,
            tuple((slot.agent, now - slot.idle_since) for slot in account.idle),
            tuple(sorted((slot.agent, until - now) for until, slot in account.held.values())),
            tuple(
                (agent, tuple(t.patience - now for t in account.wanted[agent].values()))
                for agent in sorted(first, key=first.__getitem__)
            ),
            tuple(
                sorted(
                    (w.agent, w.ticket is None, w.working is None, w.over, w.lease_gone)
                    for w in self.work
                )
            ),
            self.ticks,
            account.capacity,
            account.draining,
            self.pinned,
            self.resized,
        )

    # -- liveness -------------------------------------------------------------------------------

    def complete(self) -> None:
        """Let everything that was begun end well; then nothing may be left.

        No new requests, no failures: every waiting ticket must be served, unless its patience ran
        out; and when the idle time is over everybody must be gone.
        """
        self.account.undrain(self.now)
        for _ in range(200):
            move = next(self._good_moves(), None)
            if move is None:
                break
            self.play(move)
        else:
            raise Violation("9: it never comes to rest")
        if self.account.waiting:
            raise Violation("11: somebody waits and nothing moves")
        if self.account.slots or self.exists:
            raise Violation(f"at rest: still resident {list(self.account.slots)}")

    def _good_moves(self) -> Iterator[Move]:
        for runtime in sorted(self.loading):
            yield ("loaded", runtime)
        for runtime in sorted(self.claims):
            yield ("commit", runtime)
        for runtime in sorted(self.stopping):
            yield ("stopped", runtime)
        for runtime in sorted(self.zombies):
            yield ("ended", runtime)
        for index, work in enumerate(self.work):
            if work.ticket is not None and work.working is not None:
                yield ("finish", index)
        for agent in sorted(self.account.slots):
            if self.account.slots[agent].leaving:
                yield ("stay", agent)
        if self.account.next_deadline() < inf:
            yield ("tick",)


@dataclass
class Search:
    """What a search has seen."""

    states: int = 0
    moves: int = 0
    deepest: int = 0
    violation: str = ""
    path: tuple[Move, ...] = ()


def replayed(setting: Setting, path: tuple[Move, ...]) -> World:
    """The world at the end of a path."""
    world = World(setting)
    for move in path:
        world.play(move)
    return world


def explore(
    setting: Setting, *, most_states: int = 1_000_000, live: Callable[[int], bool] = lambda n: True
) -> Search:
    """Breadth first through every state; `live` chooses by number from which to test liveness.

    Ends at the first violation, whose path is then as short as any.
    """
    search = Search()
    seen = {World(setting).key()}
    frontier: deque[tuple[Move, ...]] = deque([()])
    while frontier and search.states < most_states:
        path = frontier.popleft()
        search.states += 1
        search.deepest = max(search.deepest, len(path))
        try:
            if live(search.states):
                replayed(setting, path).complete()
            step = ()
            for move in list(replayed(setting, path).moves()):
                step = (move,)
                search.moves += 1
                world = replayed(setting, path)
                world.play(move)
                key = world.key()
                if key not in seen:
                    seen.add(key)
                    frontier.append((*path, move))
            step = ()
        except (AssertionError, KeyError) as fault:
            search.violation = str(fault) or repr(fault)
            search.path = (*path, *step)
            return search
    return search
