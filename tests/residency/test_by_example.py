"""What each operation of the account answers, by example. Times are seconds, given as arguments."""

from __future__ import annotations

from math import inf

import pytest

from innkeeper_server import explain
from innkeeper_server.errors import (
    CapacityExhausted,
    DeadlineExceeded,
    Draining,
    StartFailed,
    StartTimeout,
    StillStopping,
    TooManyWaiting,
)
from innkeeper_server.identity import AgentKey
from innkeeper_server.residency import Account
from innkeeper_server.slots import (
    Claim,
    ClaimReason,
    Discard,
    Effect,
    Evict,
    Grant,
    Lease,
    LeaseKind,
    Load,
    Phase,
    Refuse,
    Ticket,
)

A, B, C, D = (AgentKey("t", "x", name) for name in "abcd")


class Inn:
    """An account with short ways to the states that the examples begin in."""

    def __init__(self, capacity: int = 1, **settings: float) -> None:
        chosen: dict[str, float] = {"idle_timeout": 60.0, "admission_timeout": 10.0, **settings}
        self.account = Account(capacity=capacity, **chosen)  # type: ignore[arg-type]

    def ask(self, agent: AgentKey, now: float = 0.0, **how: float) -> tuple[Ticket, list[Effect]]:
        ticket, effects = self.account.request(agent, LeaseKind.REQUEST, now, **how)  # type: ignore[arg-type]
        self.account.check()
        return ticket, effects

    def owned(self, agent: AgentKey, now: float = 0.0) -> Lease:
        """Have an agent resident, with one lease."""
        ticket, effects = self.ask(agent, now)
        if ticket.lease is None:
            load = effects[-1]
            assert isinstance(load, Load)
            self.account.loaded(agent, load.runtime_id, now)
        assert ticket.lease is not None
        self.account.check()
        return ticket.lease

    def idle(self, agent: AgentKey, now: float = 0.0) -> int:
        """Have an agent resident that nobody owns; return its runtime's number."""
        lease = self.owned(agent, now)
        assert lease.slot is not None
        runtime = lease.slot.runtime_id
        self.account.release(lease, now)
        self.account.check()
        return runtime

    def phase(self, agent: AgentKey) -> Phase | None:
        slot = self.account.slots.get(agent)
        return slot.phase if slot else None


def claim_in(effects: list[Effect]) -> Claim:
    (claim,) = (effect.claim for effect in effects if isinstance(effect, Evict))
    return claim


def refused(effects: list[Effect]) -> Exception:
    (error,) = (effect.error for effect in effects if isinstance(effect, Refuse))
    return error


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


def test_the_victim_is_the_one_that_has_been_idle_for_longest() -> None:
    inn = Inn(capacity=3)
    for now, agent in enumerate((A, B, C)):
        inn.idle(agent, float(now))
    inn.account.release(inn.owned(A, 3.0), 3.0)
    _, effects = inn.ask(D, 4.0)
    assert claim_in(effects).agent == B
    assert claim_in(effects).reason is ClaimReason.ADMISSION


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


def test_reconciliation_mends_a_slot_without_a_runtime_before_it_would_cause_a_refusal() -> None:
    """The second public failure, planted: nobody ever told the account that a ended."""
    inn = Inn()
    lease = inn.owned(A)
    exists: set[int] = {lease.slot.runtime_id} if lease.slot else set()
    inn.account.live = lambda: exists
    inn.ask(B, 1.0)
    exists.clear()
    (load,) = inn.account.tick(11.0)
    assert isinstance(load, Load)
    assert load.agent == B
    assert inn.account.reconciled_total == 1
    assert inn.account.refused_total == 0
    inn.account.check()


def test_reconciliation_ends_a_runtime_without_a_slot_and_says_so() -> None:
    inn = Inn()
    runtime = inn.idle(A)
    defects, effects = inn.account.reconcile({runtime, 99}, 1.0)
    assert defects == ["runtime 99 had no slot"]
    assert effects == [Discard(99)]
    assert inn.account.reconcile({runtime}, 2.0) == ([], [])


def test_the_story_tells_every_move_with_its_reason() -> None:
    inn = Inn()
    runtime = inn.idle(A)
    claim = claim_in(inn.account.tick(60.0))
    inn.account.commit(claim, 61.0)
    inn.account.stopped(A, runtime, 62.0)
    story = explain.explain(inn.account, A, 63.0).story
    assert [(t.before, t.after, t.reason, t.at) for t in story] == [
        (None, Phase.LOADING, "wanted", 0.0),
        (Phase.LOADING, Phase.RESIDENT, "loaded", 0.0),
        (Phase.RESIDENT, Phase.CLAIMED, "claimed: idle", 60.0),
        (Phase.CLAIMED, Phase.STOPPING, "idle", 61.0),
        (Phase.STOPPING, None, "stopped", 62.0),
    ]


def test_cancelled_tickets_leave_nothing_behind_in_a_line_that_does_not_move() -> None:
    """A bound: a hundred thousand callers come and go while the only slot is owned."""
    inn = Inn()
    inn.owned(A)
    inn.ask(B)
    for number in range(100_000):
        ticket, _ = inn.account.request(AgentKey("t", "x", f"n{number}"), LeaseKind.REQUEST, 1.0)
        inn.account.cancel(ticket, 1.0)
    assert len(inn.account.line._entries) < 200
    assert len(inn.account.deadlines._entries) < 200
    assert list(inn.account.wanted) == [B]
    inn.account.check()


def test_the_core_awaits_nothing_and_reads_no_clock() -> None:
    """The core's walls: no await, no clock, no I/O, no randomness, and nothing of the host's."""
    import ast
    from pathlib import Path

    import innkeeper_server

    folder = Path(innkeeper_server.__file__).parent
    banned = {"asyncio", "time", "random", "logging", "grpc", "threading", "socket", "os"}
    for name in (
        "residency",
        "leaving",
        "moves",
        "waiting",
        "ledger",
        "slots",
        "explain",
        "audit",
        "calls",
    ):
        tree = ast.parse((folder / f"{name}.py").read_text())
        for node in ast.walk(tree):
            assert not isinstance(node, ast.Await | ast.AsyncFunctionDef | ast.AsyncFor), name
            if isinstance(node, ast.Import):
                assert not banned & {alias.name.split(".")[0] for alias in node.names}, name
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in banned, name
