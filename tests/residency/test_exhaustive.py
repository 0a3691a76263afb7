"""Every state of small worlds, in every order; and the planted faults that the search must find."""

from __future__ import annotations

import faults
import pytest
from world import Search, Setting, World, explore

from innkeeper_server.identity import AgentKey
from innkeeper_server.residency import Account
from innkeeper_server.slots import Evict, LeaseKind, Load, TicketState

WORLDS = {
    "one slot, two agents, three requests": Setting(1, ("a", "b", "a")),
    "one slot, two agents, four requests": Setting(1, ("a", "b", "a", "b"), ticks=1),
    "two slots, three agents, three requests": Setting(2, ("a", "b", "c"), ticks=1),
    "one slot, operators": Setting(1, ("a", "b"), ticks=1, operator=True, failures=False),
    "one slot, drains": Setting(1, ("a", "b", "a"), ticks=1, drains=True, failures=False),
    "claims that nothing revokes": Setting(1, ("a", "b", "a"), account=faults.NonRevocable),
}


@pytest.mark.parametrize("name", WORLDS)
def test_no_order_of_moves_breaks_an_invariant(name: str, report: list[str]) -> None:
    """After every move the invariants hold, and from every state (in the largest worlds, from
    every fourth beyond the first thousand) all comes to rest."""
    search = explore(WORLDS[name], live=lambda state: state < 1000 or state % 4 == 0)
    report.append(
        f"account: {search.states} states, {search.moves} moves, {search.deepest} deep: {name}"
    )
    assert not search.violation, shown(search)
    assert search.states > 100


SMALL = (Setting(1, ("a", "b")), Setting(1, ("a", "b", "a")), Setting(2, ("a", "b", "c"), ticks=1))


@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_found(fault: type[Account], report: list[str]) -> None:
    found = None
    for small in SMALL:
        setting = Setting(small.capacity, small.requests, ticks=small.ticks, account=fault)
        found = explore(setting, most_states=3_000)
        if found.violation:
            break
    assert found is not None
    assert found.violation, f"{fault.__name__} was not found in {found.states} states"
    report.append(f"account: fault {fault.__name__} found after {len(found.path)} moves")


def test_a_lease_that_goes_with_its_caller_is_found(report: list[str]) -> None:
    """The first public failure: the work is still running, and nobody owns it."""
    found = explore(Setting(1, ("a", "b"), leaver_loses_lease=True))
    assert "was cut by a polite eviction" in found.violation
    report.append(f"account: fault of a caller's own lease found after {len(found.path)} moves")


def served_beside_newcomers(kind: type[Account], rounds: int = 50) -> bool:
    """Whether b, which needs a's slot, is ever served while calls to a keep coming: each arrives
    when a's eviction has begun, and ends before the next one comes."""
    account = kind(capacity=1)
    a, b = AgentKey("t", "x", "a"), AgentKey("t", "x", "b")
    _, effects = account.request(a, LeaseKind.REQUEST, 0.0)
    load = effects[0]
    assert isinstance(load, Load)
    account.loaded(a, load.runtime_id, 0.0)
    lease = next(iter(account.slots[a].leases or ()))
    ticket, _ = account.request(b, LeaseKind.REQUEST, 0.0)
    for round in range(rounds):
        now = round / 1000
        claims = [e.claim for e in account.release(lease, now) if isinstance(e, Evict)]
        newcomer, _ = account.request(a, LeaseKind.REQUEST, now)
        for claim in claims:
            if account.commit(claim, now)[0]:
                account.stopped(a, claim.runtime_id, now)
        if ticket.state is not TicketState.WAITING or b in account.slots:
            return True
        assert newcomer.lease is not None
        lease = newcomer.lease
    return False


def test_a_stream_of_newcomers_does_not_starve_the_line() -> None:
    assert served_beside_newcomers(Account)
    assert not served_beside_newcomers(faults.NewcomersStarveTheLine)


def test_the_search_tells_states_apart_by_what_can_matter() -> None:
    """A test of the search: two ways to the same state have one key, different states have two."""
    first, second = World(WORLDS["one slot, operators"]), World(WORLDS["one slot, operators"])
    first.play(("request", 0))
    second.play(("request", 1))
    assert first.key() != second.key()
    second.play(("cancel", 1))
    assert first.key() != second.key()


def shown(search: Search) -> str:
    """A violation with the way to it."""
    steps = "\n".join(f"  {n}. {move}" for n, move in enumerate(search.path, 1))
    return f"{search.violation}\n{steps}"
