"""Who goes: victims, claims, slow and failing evictions, operators, drains, by example."""

from __future__ import annotations

import pytest
from inn import A, B, C, D, Inn, claim_in, granted, load_in, refused

from innkeeper_server import explain
from innkeeper_server.errors import CapacityExhausted, Draining, StartFailed, StillStopping
from innkeeper_server.identity import AgentKey
from innkeeper_server.slots import ClaimReason, Evict, LeaseKind, Load, Phase


def test_the_victim_is_the_one_that_has_been_idle_for_longest() -> None:
    inn = Inn(capacity=3)
    for now, agent in enumerate((A, B, C)):
        inn.idle(agent, float(now))
    inn.account.release(inn.owned(A, 3.0), 3.0)
    _, effects = inn.ask(D, 4.0)
    assert claim_in(effects).agent == B
    assert claim_in(effects).reason is ClaimReason.ADMISSION


def test_a_restored_runtime_stands_at_its_old_place_in_line() -> None:
    inn = Inn(capacity=3)
    for now, agent in enumerate((A, B, C)):
        inn.idle(agent, float(now))
    claim, _ = inn.account.evict(B, 3.0)
    assert claim is not None
    inn.account.restore(claim, 4.0)
    assert [slot.agent for slot in inn.account.idle] == [A, B, C]
    assert explain.explain(inn.account, B, 5.0).eviction_position == 2


def test_a_runtime_whose_checkpoint_failed_is_left_alone_and_the_next_is_tried() -> None:
    inn = Inn(capacity=2, hold_time=5.0)
    inn.idle(A, 0.0)
    inn.idle(B, 1.0)
    _, effects = inn.ask(C, 2.0)
    effects = inn.account.restore(claim_in(effects), 3.0, hold=True)
    assert claim_in(effects).agent == B
    inn.account.tick(5.5)  # b's eviction is slow by now
    assert inn.account.next_deadline() == 8.0
    assert explain.explain(inn.account, A, 6.0).slot.blockers == (  # type: ignore[union-attr]
        "its checkpoint failed; next try in 2.0 s",
    )
    assert claim_in(inn.account.tick(8.0)).agent == A


def test_a_zombie_is_charged_until_it_really_ends_and_nobody_lives_beside_it() -> None:
    inn = Inn()
    runtime = inn.idle(A)
    _, effects = inn.ask(B, 1.0)
    inn.account.commit(claim_in(effects), 1.0)
    assert inn.account.overrun(A, runtime, 2.0) == []
    second, effects = inn.ask(A, 3.0)
    assert (second.lease, effects) == (None, [])
    error = refused(inn.account.tick(11.0))
    assert isinstance(error, CapacityExhausted)
    assert "x/a: it is zombie already" in error.message
    assert isinstance(refused(inn.account.tick(13.0)), StillStopping)
    inn.account.stopped(A, runtime, 20.0)
    assert inn.account.slots == {}
    assert inn.account.overrun_total == 1


def test_a_pin_ends_by_itself() -> None:
    inn = Inn()
    inn.idle(A)
    inn.account.request(A, LeaseKind.PIN, 0.0, ttl=500.0)
    assert inn.account.next_deadline() == 500.0
    inn.account.tick(500.0)
    assert inn.account.next_deadline() == 560.0
    assert claim_in(inn.account.tick(560.0)).reason is ClaimReason.IDLE


def test_a_graceful_eviction_waits_for_owners_and_keeps_newcomers_for_the_next_life() -> None:
    inn = Inn()
    lease = inn.owned(A)
    assert inn.account.evict(A, 1.0, graceful=True) == (None, [])
    newcomer, effects = inn.ask(A, 2.0)
    assert (newcomer.lease, effects) == (None, [])
    claim = claim_in(inn.account.release(lease, 3.0))
    assert claim.firm
    inn.account.commit(claim, 3.0)
    assert [type(e) for e in inn.account.stopped(A, claim.runtime_id, 4.0)] == [Load]


def test_a_graceful_eviction_that_is_given_up_lets_newcomers_in() -> None:
    inn = Inn()
    lease = inn.owned(A)
    assert lease.slot is not None
    inn.account.evict(A, 1.0, graceful=True)
    newcomer, _ = inn.ask(A, 2.0)
    inn.account.stay(A, lease.slot.runtime_id, 3.0)
    assert newcomer.lease is not None
    inn.account.check()


def test_a_forced_eviction_ends_every_lease_and_their_releases_do_nothing() -> None:
    inn = Inn()
    lease = inn.owned(A)
    claim, _ = inn.account.evict(A, 1.0, force=True)
    assert claim is not None
    assert inn.account.commit(claim, 1.0)[0]
    assert lease.slot is None
    assert inn.account.release(lease, 2.0) == []
    inn.account.stopped(A, claim.runtime_id, 3.0)
    inn.account.check()


def test_a_smaller_capacity_sends_idle_agents_away_and_owned_ones_when_free() -> None:
    inn = Inn(capacity=3)
    inn.idle(A)
    lease = inn.owned(B)
    inn.owned(C)
    claim = claim_in(inn.account.set_capacity(1, 1.0))
    assert (claim.agent, claim.reason) == (A, ClaimReason.CAPACITY)
    inn.account.commit(claim, 1.0)
    inn.account.stopped(A, claim.runtime_id, 1.0)
    assert claim_in(inn.account.release(lease, 2.0)).agent == B
    inn.account.check()


def test_a_drain_refuses_the_new_and_the_waiting_and_lets_nested_calls_in() -> None:
    inn = Inn(capacity=2)
    inn.idle(A)
    inn.owned(B)
    waiting, _ = inn.ask(C)
    effects = inn.account.drain(1.0)
    assert isinstance(refused(effects), Draining)
    assert waiting.state.value == "refused"
    assert isinstance(refused(inn.ask(A, 2.0)[1]), Draining)
    ticket, _ = inn.account.request(B, LeaseKind.CALL, 3.0)
    assert ticket.lease is not None
    inn.account.undrain(4.0)
    assert inn.ask(B, 5.0)[0].lease is not None


def test_many_idle_deadlines_at_once_are_taken_in_portions() -> None:
    inn = Inn(capacity=10, max_claims=3)
    agents = [AgentKey("t", "x", f"n{n}") for n in range(10)]
    for agent in agents:
        inn.idle(agent)
    effects = inn.account.tick(60.0)
    assert [e.claim.agent for e in effects if isinstance(e, Evict)] == agents[:3]
    assert inn.account.next_deadline() == 62.5  # when those are slow
    claim = effects[0].claim  # type: ignore[union-attr]
    inn.account.commit(claim, 60.0)
    assert claim_in(inn.account.stopped(agents[0], claim.runtime_id, 61.0)).agent == agents[3]


def test_a_slow_eviction_is_not_counted_on_and_the_next_victim_is_tried() -> None:
    """1. c needs a slot; a is claimed. 2. a's checkpoint hangs. 3. After a quarter of c's patience
    b is claimed too. 4. b's slot goes to c, and a, which nobody needs any more, stays."""
    inn = Inn(capacity=2)
    inn.full(A, B)
    _, effects = inn.ask(C, 2.0)
    stuck = claim_in(effects)
    assert inn.account.next_deadline() == 4.5
    second = claim_in(inn.account.tick(4.5))
    assert second.agent == B
    assert load_in(inn.gone(second, 5.0)).agent == C
    assert inn.phase(A) is Phase.RESIDENT
    assert inn.account.commit(stuck, 6.0) == (False, [])
    inn.account.check()


def test_a_slow_eviction_that_ends_after_all_spares_the_second_victim() -> None:
    inn = Inn(capacity=2)
    inn.full(A, B)
    _, effects = inn.ask(C, 2.0)
    inn.account.tick(4.5)
    assert inn.phase(B) is Phase.CLAIMED
    assert load_in(inn.gone(claim_in(effects), 5.0)).agent == C
    assert inn.phase(B) is Phase.RESIDENT


def test_no_caller_is_refused_for_hung_stops_while_somebody_could_go() -> None:
    """Each of three victims hangs past its fence; the fourth one goes in time."""
    inn = Inn(capacity=4)
    agents = [AgentKey("t", "x", f"n{n}") for n in range(4)]
    inn.full(*agents)
    ticket, effects = inn.ask(A, 10.0)
    for now in (12.5, 15.0, 17.5):
        inn.account.commit(claim_in(effects), now - 1.0)
        effects = inn.account.tick(now)
    assert claim_in(effects).agent == agents[3]
    load = load_in(inn.gone(claim_in(effects), 18.0))
    assert granted(inn.account.loaded(A, load.runtime_id, 19.0)) == [ticket]


def test_a_force_takes_the_place_of_a_polite_claim_which_is_dead() -> None:
    inn = Inn()
    inn.idle(A)
    polite = claim_in(inn.account.tick(60.0))
    forced, effects = inn.account.evict(A, 61.0, force=True)
    assert forced is not None
    assert claim_in(effects) is forced
    assert inn.account.commit(polite, 62.0) == (False, [])
    newcomer, _ = inn.ask(A, 62.0)
    assert newcomer.lease is None
    assert inn.account.evict(A, 63.0, force=True) == (None, [])
    assert load_in(inn.gone(forced, 64.0)).agent == A


@pytest.mark.parametrize("how", [{}, {"graceful": True}, {"force": True}])
def test_who_is_starting_or_stopping_cannot_be_claimed(how: dict[str, bool]) -> None:
    inn = Inn()
    inn.ask(A)
    assert inn.account.evict(A, 1.0, **how) == (None, [])
    assert inn.account.evict(B, 1.0, **how) == (None, [])
    inn.account.loaded(A, inn.account.slots[A].runtime_id, 1.0)
    claim, _ = inn.account.evict(A, 2.0, force=True)
    assert claim is not None
    inn.account.commit(claim, 2.0)
    assert inn.account.evict(A, 3.0, **how) == (None, [])


def test_an_owned_agent_is_not_evicted_politely() -> None:
    inn = Inn()
    lease = inn.owned(A)
    assert inn.account.evict(A, 1.0) == (None, [])
    assert explain.blockers(inn.account, inn.account.slots[A], 1.0) == ("1 call, oldest 1.0 s",)
    inn.account.release(lease, 2.0)
    assert explain.blockers(inn.account, inn.account.slots[A], 2.0) == ()
    claim, _ = inn.account.evict(A, 3.0)
    assert claim is not None
    assert not claim.firm


def test_a_forced_eviction_that_is_given_up_leaves_its_owners_alone() -> None:
    inn = Inn()
    lease = inn.owned(A)
    claim, _ = inn.account.evict(A, 1.0, force=True)
    assert claim is not None
    inn.account.restore(claim, 2.0)
    assert lease.slot is inn.account.slots[A]
    inn.account.check()


def test_a_held_runtime_takes_work_and_is_a_candidate_again_once_that_is_over() -> None:
    inn = Inn()
    inn.idle(A)
    inn.account.restore(claim_in(inn.account.tick(60.0)), 61.0, hold=True)
    ticket, _ = inn.ask(A, 62.0)
    assert ticket.lease is not None
    inn.account.release(ticket.lease, 63.0)
    assert [slot.agent for slot in inn.account.idle] == [A]
    assert not inn.account.held
    inn.account.check()


def test_a_pin_that_is_taken_back_early_leaves_no_deadline_behind() -> None:
    inn = Inn()
    inn.idle(A)
    ticket, _ = inn.account.request(A, LeaseKind.PIN, 1.0, ttl=500.0)
    assert ticket.lease is not None
    inn.account.release(ticket.lease, 2.0)
    assert inn.account.next_deadline() == 62.0


def test_the_last_pin_of_an_agent_that_is_leaving_ends_and_it_goes() -> None:
    inn = Inn()
    inn.idle(A)
    inn.account.request(A, LeaseKind.PIN, 1.0, ttl=5.0)
    inn.account.evict(A, 2.0, graceful=True)
    claim = claim_in(inn.account.tick(6.0))
    assert (claim.reason, claim.firm) == (ClaimReason.OPERATOR, True)


def test_a_start_that_failed_counts_as_no_eviction() -> None:
    inn = Inn()
    _, effects = inn.ask(A)
    runtime = load_in(effects).runtime_id
    inn.account.load_failed(A, runtime, StartFailed("no"), 1.0, ended=False)
    assert inn.phase(A) is Phase.ZOMBIE
    inn.account.stopped(A, runtime, 2.0)
    assert (inn.account.loaded_total, inn.account.evicted_total) == (0, 0)


def test_a_drain_empties_the_host_and_lets_accepted_work_finish() -> None:
    inn = Inn(capacity=2)
    inn.idle(A)
    lease = inn.owned(B)
    first = claim_in(inn.account.drain(1.0))
    assert (first.agent, first.reason) == (A, ClaimReason.DRAIN)
    nested, _ = inn.account.request(A, LeaseKind.CALL, 2.0)  # from the work on b
    assert nested.lease is not None
    assert claim_in(inn.account.release(nested.lease, 3.0)).agent == A
    assert claim_in(inn.account.release(lease, 4.0)).agent == B
    inn.account.undrain(5.0)
    ticket, _ = inn.ask(B, 6.0)
    assert ticket.lease is not None
    inn.account.check()
