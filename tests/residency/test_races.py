"""Races that have brought others down, as numbered steps, each with both of its halves.

The first seed: a busy agent was taken for idle. The second: an agent left the account before it
left memory. Both at the level of the account; `tests/host` has them with real tasks.
"""

from __future__ import annotations

from math import inf

import pytest
from inn import A, B, C, D, Inn, claim_in, granted, load_in, refused

from innkeeper_server import explain
from innkeeper_server.errors import CapacityExhausted, StartFailed
from innkeeper_server.identity import AgentKey
from innkeeper_server.slots import (
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


@pytest.mark.parametrize("kind", LeaseKind)
def test_seed_one_who_is_owned_survives_and_leaves_once_released(kind: LeaseKind) -> None:
    """1. Somebody owns a, in whatever way. 2. The clock goes far beyond the idle time, and another
    caller wants the slot. 3. a is still there. 4. The owner lets go: now a goes."""
    inn = Inn()
    inn.idle(A)
    lease = inn.account.lease(A, kind, "somebody", 1.0)
    assert lease is not None
    assert inn.account.next_deadline() == inf
    assert inn.account.tick(1000.0) == []
    assert inn.account.evict(A, 1000.0) == (None, [])
    inn.ask(B, 1000.0)
    assert isinstance(refused(inn.account.tick(1010.0)), CapacityExhausted)
    assert inn.phase(A) is Phase.RESIDENT
    assert inn.account.release(lease, 1020.0) == []
    assert inn.account.tick(1079.9) == []
    assert claim_in(inn.account.tick(1080.0)).agent == A


def test_seed_one_queued_work_owns_its_agent_from_before_it_starts() -> None:
    """1. Three calls wait for a's start. 2. a is loaded. 3. At that very instant another caller
    wants its slot. 4. Each of the three is done first; only after the last one does a go."""
    inn = Inn()
    tickets = [inn.ask(A)[0] for _ in range(3)]
    inn.ask(B)
    assert granted(inn.account.loaded(A, inn.account.slots[A].runtime_id, 1.0)) == tickets
    for ticket in tickets[:-1]:
        assert ticket.lease is not None
        assert inn.account.release(ticket.lease, 2.0) == []
    assert tickets[-1].lease is not None
    assert claim_in(inn.account.release(tickets[-1].lease, 3.0)).agent == A


def test_seed_one_the_lease_outlives_the_caller() -> None:
    """1. A caller starts work and goes away. 2. The work goes on, as accepted work. 3. It owns the
    agent until it is done."""
    inn = Inn()
    lease = inn.owned(A)
    lease.kind = LeaseKind.ENVELOPE  # how a host notes it
    assert inn.account.tick(1000.0) == []
    assert "accepted piece of work" in explain.explain(inn.account, A, 1000.0).summary
    inn.account.release(lease, 1001.0)
    assert claim_in(inn.account.tick(1061.0)).agent == A


PAUSES = ["claimed", "checkpoint failed", "fenced", "zombie", "stopped"]


@pytest.mark.parametrize("pause", PAUSES)
@pytest.mark.parametrize("wanted", [False, True], ids=["idle", "wanted"])
def test_seed_two_a_follow_up_meets_an_eviction_that_is_paused(pause: str, wanted: bool) -> None:
    """1. a's eviction begins: its time is over, or b wants the slot. 2. It pauses. 3. A follow-up
    for a arrives. 4. The eviction goes on. The account equals what exists at every step; the
    follow-up runs once; b is served; and nobody is refused."""
    inn = Inn()
    exists = {inn.idle(A)}
    inn.account.live = lambda: exists
    runs: list[Ticket] = []

    def carry_out(effects: list[Effect], now: float) -> None:
        for effect in effects:
            assert not isinstance(effect, Refuse | Discard), effect
            if isinstance(effect, Load):
                exists.add(effect.runtime_id)
                assert len(exists) == 1
                carry_out(inn.account.loaded(effect.agent, effect.runtime_id, now), now)
            elif isinstance(effect, Grant):
                runs.append(effect.ticket)
                carry_out(inn.account.release(effect.lease, now), now)
            elif isinstance(effect, Evict) and effect.claim.token != claim.token:
                exists.discard(effect.claim.runtime_id)
                carry_out(inn.gone(effect.claim, now), now)
        assert inn.account.reconcile(exists, now) == ([], [])
        inn.account.check()

    other, effects = inn.ask(B, 1.0) if wanted else (None, inn.account.tick(60.0))
    claim = claim_in(effects)
    now = 1.0 if wanted else 60.0
    followup: Ticket | None = None
    for step in PAUSES:
        if step == "checkpoint failed" and pause != step:
            continue
        if step == "checkpoint failed":
            carry_out(inn.account.restore(claim, now, hold=True), now)
        elif step == "fenced":
            fenced, effects = inn.account.commit(claim, now)
            carry_out(effects, now)
            if not fenced:
                break
        elif step == "zombie":
            carry_out(inn.account.overrun(A, claim.runtime_id, now), now)
        elif step == "stopped":
            exists.discard(claim.runtime_id)
            carry_out(inn.account.stopped(A, claim.runtime_id, now), now)
        if step == pause:
            followup, effects = inn.ask(A, now)
            carry_out(effects, now)
    carry_out(inn.account.tick(now + 6.0), now + 6.0)  # the held one is tried again
    assert runs.count(followup) == 1  # type: ignore[arg-type]
    assert other is None or runs.count(other) == 1
    assert inn.account.refused_total == inn.account.reconciled_total == 0
    ticket, effects = inn.ask(C, now + 7.0)
    carry_out(effects, now + 7.0)
    assert ticket in runs


def test_seed_two_a_limit_is_reported_only_when_every_resident_is_owned() -> None:
    """1. Both slots are owned: d is refused, with both owners named. 2. One is let go: the next
    caller gets its slot at the first attempt."""
    inn = Inn(capacity=2)
    lease = inn.owned(A)
    inn.owned(B)
    inn.ask(D, 0.0)
    told = str(refused(inn.account.tick(10.0)))
    assert "x/a: 1 call" in told
    assert "x/b: 1 call" in told
    inn.account.release(lease, 11.0)
    _, effects = inn.ask(C, 12.0)
    assert load_in(inn.gone(claim_in(effects), 12.0)).agent == C


def test_late_news_of_an_old_life_does_not_touch_the_new_one() -> None:
    """1. a's first life stops. 2. Its second one starts. 3. The first is reported stopped again."""
    inn = Inn()
    first = inn.idle(A)
    inn.gone(claim_in(inn.account.tick(60.0)), 60.0)
    second = inn.idle(A, 61.0)
    assert inn.account.stopped(A, first, 62.0) == []
    assert inn.account.slots[A].runtime_id == second


def test_an_old_claim_means_nothing_while_a_new_one_stands() -> None:
    """1. a is claimed. 2. Work revokes that, and ends. 3. a is claimed again. 4. The first eviction
    comes to its fence: it must not pass; the second one may."""
    inn = Inn()
    inn.idle(A)
    first = claim_in(inn.account.tick(60.0))
    ticket, _ = inn.ask(A, 61.0)
    assert ticket.lease is not None
    inn.account.release(ticket.lease, 61.0)
    second = claim_in(inn.account.tick(121.0))
    assert inn.account.commit(first, 122.0) == (False, [])
    assert inn.account.restore(first, 122.0) == []
    assert inn.account.commit(second, 123.0)[0]


def test_a_grant_that_meets_a_caller_who_left_serves_the_next_one() -> None:
    """1. b waits for a's slot and is granted it. 2. Its caller has left meanwhile. 3. The grant
    comes back, and c, who waits behind, gets the slot."""
    inn = Inn()
    inn.owned(A)
    left, _ = inn.ask(A)
    lease = next(iter(inn.account.slots[A].leases or ()))
    waiting, _ = inn.ask(C, 1.0)
    inn.account.release(lease, 2.0)
    claim = claim_in(inn.account.cancel(left, 3.0))
    load = load_in(inn.gone(claim, 4.0))
    assert granted(inn.account.loaded(C, load.runtime_id, 5.0)) == [waiting]


def test_a_failing_start_fails_all_who_joined_and_the_next_attempt_is_a_new_one() -> None:
    """1. Five callers join a start. 2. It fails: five equal errors, and nothing is used. 3. The
    sixth caller starts a new life."""
    inn = Inn()
    _, effects = inn.ask(A)
    first = load_in(effects).runtime_id
    for _ in range(4):
        inn.ask(A)
    error = StartFailed("no")
    effects = inn.account.load_failed(A, first, error, 1.0)
    assert [effect.error for effect in effects if isinstance(effect, Refuse)] == [error] * 5
    assert (inn.account.slots, inn.account.waiting) == ({}, 0)
    assert load_in(inn.ask(A, 2.0)[1]).runtime_id != first


def test_one_agent_more_than_slots_in_turn_costs_one_eviction_each_and_serves_everybody() -> None:
    """Thrash: each caller is served before its agent can be chosen again, in order of asking."""
    inn = Inn(capacity=3)
    agents = [AgentKey("t", "x", f"n{n}") for n in range(4)]
    served = 0
    for now in range(100):
        ticket, effects = inn.ask(agents[now % 4], float(now))
        for effect in effects:
            if isinstance(effect, Evict):
                effects = inn.gone(effect.claim, float(now))
        for effect in effects:
            if isinstance(effect, Load):
                inn.account.loaded(effect.agent, effect.runtime_id, float(now))
        assert ticket.lease is not None
        assert inn.account.release(ticket.lease, float(now)) == []
        served += 1
    assert served == 100
    assert inn.account.evicted_total == 97


def test_owned_agents_are_not_pushed_out_by_others_who_come_and_go() -> None:
    """1. a is owned throughout. 2. A hundred others pass through the other slot."""
    inn = Inn(capacity=2)
    lease = inn.owned(A)
    for number in range(100):
        agent = AgentKey("t", "x", f"n{number}")
        _, effects = inn.ask(agent, float(number))
        for effect in effects:
            if isinstance(effect, Evict):
                assert effect.claim.agent != A
                effects = inn.gone(effect.claim, float(number))
        inn.account.loaded(agent, load_in(effects).runtime_id, float(number))
        inn.account.release(next(iter(inn.account.slots[agent].leases or ())), float(number))
    assert lease.slot is inn.account.slots[A]
