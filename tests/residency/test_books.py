"""What the account says of itself, and to whom it does not listen, by example."""

from __future__ import annotations

import pytest
from inn import A, B, C, Inn, claim_in, load_in, refused

from innkeeper_server import explain
from innkeeper_server.errors import StartFailed
from innkeeper_server.slots import TRANSITIONS, Discard, Evict, Load, Phase, Slot


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


def test_looking_touches_nobody() -> None:
    """Ten thousand looks at an idle agent, in every way there is: it leaves on time."""
    inn = Inn(capacity=2)
    inn.idle(A)
    for number in range(10_000):
        now = number / 200
        explain.explain(inn.account, A, now)
        explain.view(inn.account, inn.account.slots[A], now)
        explain.totals(inn.account, now)
        assert inn.account.next_deadline() == 60.0
    assert claim_in(inn.account.tick(60.0)).agent == A


def test_every_phase_can_be_explained() -> None:
    inn = Inn(capacity=2)
    said = []
    for step in range(7):
        if step == 1:
            inn.ask(A)
        elif step == 2:
            inn.account.loaded(A, inn.account.slots[A].runtime_id, 0.0)
        elif step == 3:
            lease = next(iter(inn.account.slots[A].leases or ()))
            inn.account.release(lease, 0.0)
        elif step == 4:
            claim = claim_in(inn.account.tick(60.0))
        elif step == 5:
            inn.account.commit(claim, 60.0)
            inn.ask(A, 60.0)
        elif step == 6:
            inn.account.overrun(A, claim.runtime_id, 60.0)
        shown = explain.explain(inn.account, A, 60.0)
        said.append((shown.summary, shown.waits_for))
        assert shown.evictable == (step == 3)
    assert said == [
        ("x/a is not resident", ""),
        ("x/a cannot be evicted: it is starting, for 60.0 s", "callers wait for it to start"),
        ("x/a cannot be evicted: 1 call, oldest 60.0 s", ""),
        (
            "x/a is idle for 60.0 s; it can be evicted (number 1 in line) and leaves by itself in "
            "0.0 s",
            "",
        ),
        ("x/a is being evicted: idle", ""),
        (
            "x/a cannot be evicted: it is stopping already, for 0.0 s",
            "callers wait for its next life: this one is stopping",
        ),
        (
            "x/a cannot be evicted: it is zombie already, for 0.0 s",
            "callers wait for its next life: this one is zombie",
        ),
    ]


def test_a_load_that_is_reported_twice_is_no_reason_to_end_the_runtime() -> None:
    inn = Inn()
    runtime = inn.idle(A)
    assert inn.account.loaded(A, runtime, 1.0) == []
    assert inn.account.loaded(A, 99, 1.0) == [Discard(99)]
    assert inn.account.loaded(B, 98, 1.0) == [Discard(98)]


def test_reports_about_unknown_runtimes_change_nothing() -> None:
    inn = Inn()
    inn.owned(A)
    before = repr(list(inn.account.slots.values()))
    for agent, number in ((A, 99), (B, 1)):
        assert inn.account.load_failed(agent, number, StartFailed("no"), 1.0) == []
        assert inn.account.overrun(agent, number, 1.0) == []
        assert inn.account.stopped(agent, number, 1.0) == []
        assert inn.account.stay(agent, number, 1.0) == []
    assert repr(list(inn.account.slots.values())) == before
    inn.account.check()


def test_reconciliation_kills_the_claim_on_a_runtime_that_does_not_exist() -> None:
    inn = Inn()
    inn.idle(A)
    claim = claim_in(inn.account.tick(60.0))
    defects, _ = inn.account.reconcile(set(), 61.0)
    assert defects == [f"x/a: its slot had no runtime {claim.runtime_id}"]
    assert inn.account.commit(claim, 62.0) == (False, [])
    assert inn.account.restore(claim, 62.0) == []
    inn.account.check()


def test_reconciliation_leaves_those_alone_that_are_starting() -> None:
    inn = Inn()
    _, effects = inn.ask(A)
    assert inn.account.reconcile(set(), 1.0) == ([], [])
    inn.account.loaded(A, load_in(effects).runtime_id, 2.0)
    inn.account.check()


def test_refusals_in_a_true_account_compare_it_only_once_a_second() -> None:
    """Comparing costs as much as there are residents; a storm of refusals must stay cheap."""
    inn = Inn(max_waiting=1)
    lease = inn.owned(A)
    assert lease.slot is not None
    exists = {lease.slot.runtime_id}
    compared = 0

    class Live(set[int]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            nonlocal compared
            compared += 1
            return super().__iter__()

    inn.account.live = lambda: Live(exists)
    inn.ask(B)
    for number in range(1000):
        refused(inn.ask(C, 1.0 + number / 1000)[1])
    assert compared == 1
    exists.clear()  # the numbers differ now: no refusal goes by without a comparison
    assert load_in(inn.ask(C, 1.9995)[1]).agent == B


def test_only_the_moves_of_the_table_are_made_and_each_of_them_is() -> None:
    inn = Inn()
    _, effects = inn.ask(A)
    inn.account.load_failed(A, load_in(effects).runtime_id, StartFailed("no"), 0.0)
    _, effects = inn.ask(A)
    runtime = load_in(effects).runtime_id
    inn.account.load_failed(A, runtime, StartFailed("no"), 0.0, ended=False)
    inn.account.stopped(A, runtime, 0.0)
    runtime = inn.idle(A)
    inn.account.restore(claim_in(inn.account.tick(60.0)), 60.0, hold=True)
    claim = claim_in(inn.account.tick(65.0))
    inn.account.commit(claim, 65.0)
    inn.account.overrun(A, runtime, 66.0)
    inn.account.stopped(A, runtime, 67.0)
    inn.idle(A, 67.0)
    inn.gone(claim_in(inn.account.tick(127.0)), 127.0)
    assert {(move.before, move.after) for move in inn.account.story} == TRANSITIONS
    slot = Slot(A, 1, 0.0)
    for before in (None, *Phase):
        for after in (None, *Phase):
            if (before, after) not in TRANSITIONS:
                slot.phase = before
                with pytest.raises(AssertionError):
                    inn.account._move(slot, after, "by mistake", 0.0)


def test_numbers_are_never_used_twice() -> None:
    inn = Inn(capacity=2)
    numbers: list[int] = []
    for now in range(50):
        ticket, effects = inn.ask((A, B, C)[now % 3], float(now))
        for effect in effects:
            if isinstance(effect, Evict):
                numbers.append(effect.claim.token)
                effects = inn.gone(effect.claim, float(now))
        numbers.append(ticket.seq)
        for effect in effects:
            if isinstance(effect, Load):
                numbers.append(effect.runtime_id)
                inn.account.loaded(effect.agent, effect.runtime_id, float(now))
        assert ticket.lease is not None
        inn.account.release(ticket.lease, float(now))
    assert len(set(numbers)) == len(numbers) > 100


def test_effects_that_were_handed_out_are_final() -> None:
    """Also where there were none: what a later call decides is not slipped into an earlier list."""
    inn = Inn(capacity=2)
    _, first = inn.ask(A)
    none = inn.account.tick(0.0)
    inn.ask(B)
    assert len(first) == 1
    assert none == []


def test_a_broken_account_says_which_invariant_and_what_led_there() -> None:
    inn = Inn()
    inn.idle(A)
    inn.account.count[Phase.RESIDENT] += 1
    with pytest.raises(AssertionError, match=r"1: miscounted Phase\.RESIDENT") as told:
        inn.account.check()
    assert "<x/a#2 resident>" in str(told.value)
    assert "loaded" in str(told.value)
