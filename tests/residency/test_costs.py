"""What a decision costs, counted in lines that run: it must not depend on how many there are."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest
from inn import A, B, Inn, claim_in, load_in

from innkeeper_server.identity import AgentKey
from innkeeper_server.residency import Account
from innkeeper_server.slots import Evict, LeaseKind

FEW, MANY = 1_000, 100_000


def lines(work: Callable[[], object]) -> int:
    """How many lines of Python run."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def admit(account: Account, name: str) -> None:
    """One agent more: into a free slot, or into that of the longest idle one."""
    agent = AgentKey("t", "x", name)
    ticket, effects = account.request(agent, LeaseKind.REQUEST, 1.0)
    for effect in effects:
        if isinstance(effect, Evict):
            account.commit(effect.claim, 1.0)
            effects = account.stopped(effect.claim.agent, effect.claim.runtime_id, 1.0)
    account.loaded(agent, load_in(effects).runtime_id, 1.0)
    assert ticket.lease is not None
    account.release(ticket.lease, 1.0)


def crowd(size: int) -> Account:
    """A full account of idle agents."""
    account = Account(capacity=size, idle_timeout=1e6)
    for number in range(size):
        admit(account, f"n{number}")
    return account


def use_the_middle(account: Account, number: int) -> None:
    agent = AgentKey("t", "x", f"n{account.capacity // 2 + number}")
    lease = account.lease(agent, LeaseKind.REQUEST, "", 1.0)
    assert lease is not None
    account.release(lease, 1.0)


def evict_one(account: Account, number: int) -> None:
    admit(account, f"new {number}")


def change_ones_mind(account: Account, number: int) -> None:
    ticket, _ = account.request(AgentKey("t", "x", f"never {number}"), LeaseKind.REQUEST, 1.0)
    account.cancel(ticket, 1.0)


def fail_a_checkpoint(account: Account, number: int) -> None:
    head = account.idle.head
    assert head is not None
    claim, _ = account.evict(head.agent, 1.0)
    assert claim is not None
    account.restore(claim, 1.0)


def wait_for_the_clock(account: Account, number: int) -> None:
    account.tick(min(2.0, account.next_deadline()))


def wait_in_a_long_line(account: Account, number: int) -> None:
    """The one in front is served; the crowd that waits behind it is not touched."""
    admit(account, f"new {number}")


@pytest.fixture(scope="module")
def crowds() -> tuple[Account, Account]:
    return crowd(FEW), crowd(MANY)


@pytest.mark.parametrize(
    "work", [use_the_middle, evict_one, change_ones_mind, fail_a_checkpoint, wait_for_the_clock]
)
def test_a_decision_costs_the_same_beside_a_hundred_times_as_many(
    work: Callable[[Account, int], None], crowds: tuple[Account, Account]
) -> None:
    """The median of fifty is equal; and so, nearly, is their sum: nothing is put off."""
    few, many = ([lines(partial(work, account, n)) for n in range(50)] for account in crowds)
    assert statistics.median(few) == statistics.median(many)
    assert sum(many) < 1.2 * sum(few)


def test_a_long_line_costs_no_more_than_a_short_one() -> None:
    """Every slot is owned and many wait; one slot after another comes free."""

    def served(waiting: int) -> float:
        account = Account(capacity=50)
        for number in range(50):
            account.request(AgentKey("t", "x", f"n{number}"), LeaseKind.REQUEST, 0.0)
        for slot in list(account.slots.values()):
            account.loaded(slot.agent, slot.runtime_id, 0.0)
        for number in range(waiting):
            account.request(AgentKey("t", "y", f"n{number}"), LeaseKind.REQUEST, 0.0)

        def hand_over(number: int) -> None:
            slot = account.slots[AgentKey("t", "x", f"n{number}")]
            lease = next(iter(slot.leases or ()))
            claim = claim_in(account.release(lease, 1.0))
            account.commit(claim, 1.0)
            load = load_in(account.stopped(claim.agent, claim.runtime_id, 1.0))
            assert load.agent == AgentKey("t", "y", f"n{number}")

        return statistics.median(lines(lambda: hand_over(number)) for number in range(50))  # noqa: B023

    assert served(100) == served(9_000)


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
