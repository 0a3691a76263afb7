"""Every state of small worlds, reached in every order of moves."""

from __future__ import annotations

import faults
import pytest
from parts import Move, Setting
from search import explore, key, namings, replayed
from world import World

WORLDS = {
    "one slot, two agents, three requests": Setting(1, ("a", "b", "a"), ticks=3),
    "one slot, two agents, four requests": Setting(1, ("a", "b", "a", "b")),
    "two slots, three agents": Setting(2, ("a", "b", "c")),
    "two slots, three agents, four requests": Setting(2, ("a", "b", "c", "a"), 1, failures=False),
    "callers with deadlines of their own": Setting(1, ("a", "b!"), ticks=3),
    "claims that no newcomer revokes": Setting(1, ("a", "b", "a"), account=faults.NonRevocable),
    "one slot, an operator's evictions": Setting(1, ("a", "b"), evictions=True),
    "evictions of an agent with two owners": Setting(
        1, ("a", "a", "b"), ticks=1, evictions=True, failures=False
    ),
    "two slots, an operator's evictions": Setting(
        2, ("a", "b"), ticks=1, evictions=True, failures=False
    ),
    "pins": Setting(1, ("a", "b"), pins=1, failures=False),
    "jobs": Setting(1, ("a", "b"), ticks=1, jobs=1),
    "jobs and an operator's evictions": Setting(
        1, ("a", "b"), ticks=1, jobs=1, evictions=True, cancels=False
    ),
    "a capacity that changes": Setting(2, ("a", "b", "c"), ticks=1, resizes=1, failures=False),
    "drains and nested calls": Setting(1, ("a", "b", "a*"), ticks=1, drains=True),
}


@pytest.mark.parametrize("name", WORLDS)
def test_no_order_of_moves_breaks_an_invariant(name: str, report: list[str]) -> None:
    """After every move the account agrees with the world and dead names mean nothing; and from
    every state (beyond the first thousand, from every eighth) everything comes to rest."""
    search = explore(WORLDS[name], rests=lambda state: state < 1000 or state % 8 == 0)
    report.append(
        f"account: {search.states} states, {search.moves} moves, {search.deepest} deep: {name}"
    )
    assert not search.violation, str(search)
    assert search.states > 100


def test_states_that_are_held_to_be_the_same_have_the_same_future() -> None:
    """A test of the search: whichever way a state was reached, the same can happen next."""
    setting = Setting(1, ("a", "b", "a"), ticks=1)
    futures: dict[object, frozenset[object]] = {}
    ways: dict[object, int] = {}
    frontier: list[tuple[Move, ...]] = [()]
    while frontier:
        path = frontier.pop(0)
        world = replayed(setting, path)
        here, names = key(world, namings(setting)[0]), namings(setting)[0]
        future: set[object] = set()
        for move in list(world.moves()):
            after = replayed(setting, (*path, move))
            future.add((move[0], key(after, names)))
            if here not in futures:
                frontier.append((*path, move))
        assert futures.setdefault(here, frozenset(future)) == future
        ways[here] = ways.get(here, 0) + 1
    assert sum(ways.values()) > 2 * len(futures) > 800


def test_states_that_differ_in_who_waits_for_longer_are_told_apart() -> None:
    """A test of the search."""
    setting = Setting(1, ("a", "b", "c"))
    names = namings(setting)[0]
    worlds = [World(setting), World(setting)]
    for world, order in zip(worlds, ((0, 1, 2), (0, 2, 1)), strict=True):
        for index in order:
            world.play(("ask", index))
    assert key(worlds[0], names) != key(worlds[1], names)
    assert len(namings(setting)) == 6
