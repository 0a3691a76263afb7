"""Who comes: requests, leases, the line, and refusals, by example."""

from __future__ import annotations

from math import inf

import pytest
from inn import A, B, C, D, Inn, claim_in, granted, load_in, refused

from innkeeper_server import explain
from innkeeper_server.errors import (
    CapacityExhausted,
    DeadlineExceeded,
    StartFailed,
    StartTimeout,
    StillStopping,
    TooManyWaiting,
)
from innkeeper_server.identity import AgentKey
from innkeeper_server.slots import ClaimReason, Discard, Grant, LeaseKind, Load, Phase, Refuse


def test_a_free_slot_is_reserved_at_once_and_later_callers_join_the_load() -> None:
    inn = Inn()
    first, effects = inn.ask(A)
    (load,) = effects
    assert isinstance(load, Load)
    second, effects = inn.ask(A)
    assert effects == []
    granted = inn.account.loaded(A, load.runtime_id, 1.0)
    assert [effect.ticket for effect in granted if isinstance(effect, Grant)] == [first, second]
    assert len(granted) == 2


def test_a_resident_is_leased_in_the_same_call() -> None:
    inn = Inn()
    inn.idle(A)
    ticket, effects = inn.ask(A, 1.0)
    assert effects == [Grant(ticket, ticket.lease)]  # type: ignore[arg-type]
    assert inn.account.lease(A, LeaseKind.JOB, "", 2.0) is not None
    assert inn.account.lease(B, LeaseKind.JOB, "", 2.0) is None


def test_a_lease_ends_once_whoever_says_so_again() -> None:
    inn = Inn()
    one = inn.owned(A)
    two = inn.account.lease(A, LeaseKind.REQUEST, "", 0.0)
    assert two is not None
    inn.account.release(one, 1.0)
    inn.account.release(one, 2.0)
    assert list(inn.account.slots[A].leases or ()) == [two]
    inn.account.release(two, 3.0)
    inn.account.release(two, 4.0)
    assert inn.account.slots[A].idle_since == 3.0
    inn.account.check()


def test_a_slot_goes_to_the_oldest_ticket_in_the_call_that_frees_it() -> None:
    inn = Inn()
    lease = inn.owned(A)
    inn.ask(B, 1.0)
    inn.ask(C, 2.0)
    claim = claim_in(inn.account.release(lease, 3.0))
    fenced, effects = inn.account.commit(claim, 3.0)
    assert (fenced, effects) == (True, [])
    (load,) = inn.account.stopped(A, claim.runtime_id, 4.0)
    assert isinstance(load, Load)
    assert load.agent == B
    inn.account.check()


def test_work_that_meets_an_idle_claim_revokes_it_and_the_claim_is_dead() -> None:
    inn = Inn()
    inn.idle(A)
    claim = claim_in(inn.account.tick(60.0))
    assert claim.reason is ClaimReason.IDLE
    ticket, _ = inn.ask(A, 61.0)
    assert ticket.lease is not None
    assert inn.account.commit(claim, 62.0) == (False, [])
    assert inn.account.restore(claim, 62.0) == []
    assert inn.phase(A) is Phase.RESIDENT


def test_work_that_meets_a_needed_claim_waits_behind_it_and_runs_in_the_next_life() -> None:
    """b depends on this very victim: a's newcomer stands behind b."""
    inn = Inn()
    inn.idle(A)
    _, effects = inn.ask(B, 1.0)
    claim = claim_in(effects)
    newcomer, effects = inn.ask(A, 2.0)
    assert (newcomer.lease, effects) == (None, [])
    inn.account.commit(claim, 3.0)
    (load,) = inn.account.stopped(A, claim.runtime_id, 3.0)
    assert isinstance(load, Load)
    assert load.agent == B
    (granted,) = inn.account.loaded(B, load.runtime_id, 4.0)
    assert isinstance(granted, Grant)
    claim = claim_in(inn.account.release(granted.lease, 5.0))
    inn.account.commit(claim, 5.0)
    (load,) = inn.account.stopped(B, claim.runtime_id, 5.0)
    assert isinstance(load, Load)
    assert load.agent == A


def test_work_that_meets_a_needed_claim_revokes_it_where_another_can_take_its_place() -> None:
    inn = Inn(capacity=2)
    inn.idle(A, 0.0)
    inn.idle(B, 1.0)
    _, effects = inn.ask(C, 2.0)
    assert claim_in(effects).agent == A
    newcomer, effects = inn.ask(A, 3.0)
    assert newcomer.lease is not None
    assert claim_in(effects).agent == B


def test_a_cancelled_ticket_gives_back_its_grant_or_the_claim_made_for_it() -> None:
    inn = Inn()
    inn.idle(A)
    ticket, effects = inn.ask(B, 1.0)
    inn.account.cancel(ticket, 2.0)
    assert inn.phase(A) is Phase.RESIDENT
    assert inn.account.commit(claim_in(effects), 3.0) == (False, [])
    granted, _ = inn.ask(A, 4.0)
    inn.account.cancel(granted, 5.0)
    assert inn.account.slots[A].leases is None
    inn.account.check()


def test_a_failed_load_refuses_everybody_who_joined_with_one_cause_and_frees_the_slot() -> None:
    inn = Inn()
    _, (load,) = inn.ask(A)
    inn.ask(A)
    inn.ask(B)
    assert isinstance(load, Load)
    error = StartFailed("no")
    effects = inn.account.load_failed(A, load.runtime_id, error, 1.0)
    assert [e.error for e in effects if isinstance(e, Refuse)] == [error, error]
    assert [e.agent for e in effects if isinstance(e, Load)] == [B]
    assert inn.account.loaded(A, load.runtime_id, 2.0) == [Discard(load.runtime_id)]


@pytest.mark.parametrize(("deadline", "error"), [(inf, CapacityExhausted), (5.0, DeadlineExceeded)])
def test_a_refusal_comes_on_time_and_names_limit_counts_and_holders(
    deadline: float, error: type[Exception]
) -> None:
    inn = Inn()
    inn.owned(A)
    inn.ask(B, 1.0, deadline=deadline)
    due = min(deadline, 11.0)
    assert inn.account.next_deadline() == due
    assert inn.account.tick(due - 0.1) == []
    told = refused(inn.account.tick(due))
    assert type(told) is error
    assert "capacity 1, used 1 (1 resident)" in str(told)
    assert "held by x/a: 1 call, oldest" in str(told)
    inn.account.check()


def test_a_ticket_whose_agent_is_loading_waits_for_its_own_deadline_only() -> None:
    inn = Inn()
    inn.ask(A, 0.0, deadline=25.0)
    assert inn.account.tick(10.0) == []
    assert inn.account.next_deadline() == 25.0
    assert isinstance(refused(inn.account.tick(25.0)), StartTimeout)


def test_the_line_is_bounded() -> None:
    inn = Inn(max_waiting=2)
    inn.owned(A)
    inn.ask(B)
    inn.ask(C)
    _, effects = inn.ask(D)
    assert isinstance(refused(effects), TooManyWaiting)
    assert inn.account.waiting == 2


def test_work_that_was_accepted_before_waits_without_a_bound() -> None:
    inn = Inn(max_waiting=1, admission_timeout=10.0)
    lease = inn.owned(A)
    inn.ask(B)
    ticket, effects = inn.ask(C, accepted=True)
    assert effects == []
    refusals = inn.account.tick(11.0)
    assert [effect.ticket.agent for effect in refusals if isinstance(effect, Refuse)] == [B]
    assert inn.account.next_deadline() == inf
    claim = claim_in(inn.account.release(lease, 1e6))
    inn.account.commit(claim, 1e6)
    load = load_in(inn.account.stopped(A, claim.runtime_id, 1e6))
    assert load.agent == ticket.agent == C


def test_a_newcomer_for_the_promised_replacement_waits() -> None:
    """c lost one victim to a newcomer; it does not lose the next one, however many come."""
    inn = Inn(capacity=2)
    inn.full(A, B)
    _, effects = inn.ask(C, 2.0)
    assert claim_in(effects).agent == A
    first, effects = inn.ask(A, 3.0)
    assert first.lease is not None
    promised = claim_in(effects)
    assert (promised.agent, promised.firm) == (B, True)
    second, effects = inn.ask(B, 4.0)
    assert (second.lease, effects) == (None, [])
    assert load_in(inn.gone(promised, 5.0)).agent == C


def test_a_promise_ends_when_nobody_is_in_line_any_more() -> None:
    inn = Inn(capacity=2)
    inn.full(A, B)
    patient, _ = inn.ask(C, 2.0)
    inn.ask(A, 3.0)
    waiting, _ = inn.ask(B, 4.0)
    inn.account.cancel(patient, 5.0)
    assert waiting.lease is not None
    assert inn.phase(B) is Phase.RESIDENT
    inn.account.check()


def test_a_newcomer_is_let_in_when_the_caller_who_wanted_its_slot_leaves() -> None:
    inn = Inn()
    inn.idle(A)
    patient, effects = inn.ask(B, 1.0)
    newcomer, _ = inn.ask(A, 2.0)
    assert newcomer.lease is None
    assert granted(inn.account.cancel(patient, 3.0)) == [newcomer]
    assert inn.account.commit(claim_in(effects), 4.0) == (False, [])
    inn.account.check()


@pytest.mark.parametrize(
    ("capacity", "idle", "wanted", "enters"),
    [
        (1, "", "", True),  # nobody is in line
        (1, "", "c", False),  # c depends on this very slot
        (2, "b", "c", True),  # b can take its place
        (2, "b", "cd", False),  # b goes for c, and this one for d
        (3, "b", "c", True),  # there is a free slot for c
        (4, "b", "cd", True),
    ],
)
def test_work_revokes_a_claim_unless_older_tickets_then_lack_a_slot(
    capacity: int, idle: str, wanted: str, enters: bool
) -> None:
    inn = Inn(capacity=capacity)
    inn.full(A, *(AgentKey("t", "x", name) for name in idle))
    inn.account.evict(A, 5.0)  # politely: it is idle
    for name in wanted:
        inn.ask(AgentKey("t", "x", name), 6.0)
    newcomer, _ = inn.ask(A, 7.0)
    assert (newcomer.lease is not None) is enters
    inn.account.check()


def test_in_a_host_that_shrinks_no_newcomer_stands_in_the_way_of_older_tickets() -> None:
    inn = Inn(capacity=2)
    inn.full(A, B)
    inn.ask(C, 2.0)
    inn.account.set_capacity(1, 3.0)  # both have to go before c can come
    newcomer, _ = inn.ask(B, 4.0)
    assert newcomer.lease is None
    claims = [slot.claim for slot in inn.account.slots.values() if slot.claim]
    assert len(claims) == 2
    assert inn.gone(claims[0], 5.0) == []
    assert load_in(inn.gone(claims[1], 6.0)).agent == C


def test_a_greater_capacity_serves_the_line_in_the_same_call() -> None:
    inn = Inn()
    inn.owned(A)
    inn.ask(B, 1.0)
    inn.ask(C, 2.0)
    effects = inn.account.set_capacity(2, 3.0)
    assert load_in(effects).agent == B
    inn.account.check()


def test_work_that_was_handed_over_comes_before_what_arrived_meanwhile() -> None:
    """The next life serves by `order`, whatever the order in which tickets came."""
    inn = Inn()
    _, effects = inn.ask(A, 0.0, order=7)
    second, _ = inn.ask(A, 1.0, order=3)
    third, _ = inn.ask(A, 2.0)
    tickets = granted(inn.account.loaded(A, load_in(effects).runtime_id, 3.0))
    assert tickets[0] is second
    assert tickets[-1] is third


def test_a_start_that_nobody_waits_for_any_more_goes_on_and_is_idle() -> None:
    inn = Inn()
    ticket, effects = inn.ask(A)
    inn.account.cancel(ticket, 1.0)
    assert inn.account.loaded(A, load_in(effects).runtime_id, 2.0) == []
    assert inn.account.next_deadline() == 62.0
    inn.account.check()


def test_who_waits_for_the_next_life_too_long_is_told_what_it_waits_for() -> None:
    inn = Inn()
    inn.idle(A)
    claim, _ = inn.account.evict(A, 1.0, graceful=True)
    assert claim is not None
    inn.account.commit(claim, 1.0)
    inn.ask(A, 2.0)
    error = refused(inn.account.tick(12.0))
    assert isinstance(error, StillStopping)
    assert str(error) == "x/a is stopping, for 11.0 s; waited 10.0 s"


def test_a_refusal_says_of_each_holder_what_it_is_at() -> None:
    inn = Inn(capacity=5)
    e = AgentKey("t", "x", "e")
    inn.owned(A)
    forced, _ = inn.account.evict(A, 0.0, force=True)
    assert forced is not None
    inn.account.commit(forced, 0.0)
    inn.account.overrun(A, forced.runtime_id, 1.0)
    inn.idle(B)
    inn.account.evict(B, 1.0, graceful=True)
    inn.account.request(C, LeaseKind.PIN, 1.0, owner="ann", ttl=99.0)
    inn.account.loaded(C, inn.account.slots[C].runtime_id, 1.0)
    inn.idle(D, 1.0)
    failing, _ = inn.account.evict(D, 1.0)
    assert failing is not None
    inn.account.restore(failing, 8.0, hold=True)
    inn.ask(e, 1.0)
    inn.ask(AgentKey("t", "x", "f"), 1.0)
    told = str(refused(inn.account.tick(11.0)))
    assert "capacity 5, used 5 (1 loading, 2 resident, 1 claimed, 1 zombie), 2 waiting" in told
    assert "x/a: it is zombie already, for 10.0 s" in told
    assert "x/b: it is being evicted, for 10.0 s" in told
    assert "x/c: 1 pin (ann), oldest 10.0 s" in told
    assert "x/d: its checkpoint failed; next try in 2.0 s" in told
    assert "x/e: it is starting, for 10.0 s" in told


def test_callers_in_line_are_told_how_many_were_before_them() -> None:
    """Agents by their oldest ticket, also one that came into the line late with old tickets."""
    inn = Inn()
    inn.owned(A)
    inn.account.evict(A, 0.0, graceful=True)
    inn.ask(A, 1.0)  # for the next life
    inn.ask(B, 2.0)
    forced, _ = inn.account.evict(A, 3.0, force=True)
    assert forced is not None
    inn.account.set_capacity(0, 3.0)
    inn.gone(forced, 3.0)
    assert "0 other agents" in explain.explain(inn.account, A, 4.0).waits_for
    assert "1 other agents" in explain.explain(inn.account, B, 4.0).waits_for
