"""A search through every state of a small world, and what is asked of each.

Owns what makes two states the same, the breadth-first search, and the way to rest. A state is
reached by replaying its moves from the beginning, which is cheaper than copying a world.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf

import truths
from parts import Move, Setting
from world import World

from innkeeper_server.identity import AgentKey
from innkeeper_server.slots import Claim, Lease, Slot, Ticket

Path = tuple[Move, ...]
Names = dict[AgentKey, int]


@dataclass
class Search:
    """What a search has seen. `states` counts states that differ by more than names."""

    states: int = 0
    moves: int = 0
    deepest: int = 0
    violation: str = ""
    path: Path = ()

    def __str__(self) -> str:
        moves = (" ".join(map(str, move)) for move in self.path)
        steps = "\n".join(f"  {number}. {move}" for number, move in enumerate(moves, 1))
        return f"{self.violation}\n{steps}"


def replayed(setting: Setting, path: Path, *, checked: bool = False) -> World:
    """The world at the end of a path."""
    world = World(setting)
    for move in path:
        world.play(move, checked=checked)
    return world


def explore(
    setting: Setting,
    *,
    most_states: int = 1_000_000,
    rests: Callable[[int], bool] = lambda number: True,
) -> Search:
    """Breadth first through every state, until the first violation: its path is as short as any.

    `rests` chooses, by number, from which states the way to rest is tried.
    """
    search, names = Search(), namings(setting)
    seen = {key(World(setting), naming) for naming in names}
    frontier: deque[Path] = deque([()])
    while frontier and search.states < most_states:
        path = frontier.popleft()
        search.states += 1
        search.deepest = max(search.deepest, len(path))
        step: Path = ()
        try:
            world = replayed(setting, path)
            moves = list(world.moves())
            if rests(search.states):
                come_to_rest(world)
            for move in moves:
                step = (move,)
                search.moves += 1
                world = replayed(setting, path)
                world.play(move)
                truths.check_dead_names(world)
                if key(world, names[0]) not in seen:
                    seen.update(key(world, naming) for naming in names)
                    frontier.append((*path, move))
        except (AssertionError, KeyError, AttributeError) as fault:
            search.violation = str(fault) if isinstance(fault, AssertionError) else repr(fault)
            search.path = (*path, *step)
            break
    return search


def namings(setting: Setting) -> list[Names]:
    """The ways to name agents that make no difference: those that are asked for alike."""
    asks: dict[str, list[str]] = {}
    for ask in setting.asks:
        asks.setdefault(ask[0], []).append(ask[1:] + ("+" if ask[0] in setting.again else ""))
    agents = [AgentKey("t", "x", name) for name in sorted(asks)]
    order = [sorted(asks[agent.id]) for agent in agents]
    return [
        dict(zip(agents, numbers, strict=True))
        for numbers in itertools.permutations(range(len(agents)))
        if [order[number] for number in numbers] == order
    ]


# -- what makes two states the same ---------------------------------------------------------------


def key(world: World, names: Names) -> object:
    """Everything that can matter later: all that the account holds and what the ghost knows, with
    times relative to now, and tokens and numbers by their order alone."""
    account, now = world.account, world.now

    def slot_key(slot: Slot) -> object:
        life = world.lives[slot.runtime_id]
        claim = slot.claim
        return (
            names[slot.agent],
            slot.phase,
            slot.late,
            slot.leaving,
            tuple((lease.kind, lease.until - now) for lease in slot.leases or ()),
            claim and (claim.reason, claim.firm, claim.force),
            life.looked is not None and (life.looked is claim, life.looked.force),
            slot.runtime_id in account.held and account.held[slot.runtime_id][0] - now,
        )

    def due_key(due: float, item: Ticket | Lease | Claim) -> object:
        if isinstance(item, Lease):
            return due - now, item.kind, item.slot and names[item.slot.agent]
        return due - now, type(item), names[item.agent]

    def ticket_key(ticket: Ticket) -> object:
        return names[ticket.agent], ticket.kind, ticket.patience - now, ticket.deadline - now

    waiting = sorted(account.tickets(), key=_seq)
    idle = [slot for slot in account.slots.values() if slot.leases is None]
    dues = sorted(entry for entry in account.deadlines._entries)
    return (
        tuple(sorted((slot_key(slot) for slot in account.slots.values()), key=_first)),
        tuple((names[slot.agent], slot.idle_since - now) for slot in sorted(idle, key=_idle_seq)),
        tuple(map(ticket_key, waiting)),
        tuple(names[slot.agent] for slot in account._for_line.values()),
        tuple(names[slot.agent] for slot in account._while_line.values()),
        tuple(due_key(due, item) for due, _, item in dues if account._still_counts(due, item)),
        tuple(
            sorted(
                (
                    names[work.agent],
                    work.kind.value,
                    work.limit,
                    work.ticket is None,
                    work.runtime is None,
                    work.settled,
                    work.leaves,
                )
                for work in world.works
            )
        ),
        (account.capacity, account.draining, world.ticks, world.pins, world.jobs, world.resizes),
    )


def _seq(ticket: Ticket) -> int:
    return ticket.seq


def _idle_seq(slot: Slot) -> int:
    return slot.idle_seq


def _first(values: object) -> int:
    return values[0]  # type: ignore[index,no-any-return]


# -- the way to rest ------------------------------------------------------------------------------


def come_to_rest(world: World) -> None:
    """Let everything that was begun end well, and ask for nothing more: every waiting caller must
    be served unless its own time is over, and in the end nothing may be left."""
    if world.account.draining:
        world.play(("undrain",))
    for _ in range(300):
        move = next(_good_moves(world), None)
        if move is None:
            break
        if move == ("tick",):
            _nobody_waits_for_nothing(world)
        world.play(move)
    else:
        raise truths.Violation("9: it never comes to rest")
    account = world.account
    truths.must(not world.lives, f"at rest: still there are {list(world.lives.values())}")
    left = (account.slots, account.wanted, account.returning, account.held)
    kept = (account._for_line, account._while_line, list(account.idle))
    truths.must(not any(left + kept), f"at rest: {left + kept} are left")
    truths.must(account.waiting == 0 == account.late, "at rest: something is still counted")
    truths.must(account.next_deadline() == inf, "at rest: it still waits for a time")


def _good_moves(world: World) -> Iterator[Move]:
    for runtime, life in world.lives.items():
        if life.stage == "loading":
            yield ("loaded", runtime)
        elif life.stage in ("stopping", "zombie"):
            yield ("stopped", runtime)
        elif life.looked is not None:
            yield ("fence", runtime)
        elif life.claim is not None:
            yield ("look" if world.setting.split_fence else "commit", runtime)
    for index, work in enumerate(world.works):
        if work.runtime is not None:
            yield ("finish", index)
    if world.account.next_deadline() < inf:
        yield ("tick",)


def _nobody_waits_for_nothing(world: World) -> None:
    """All that could be done without the clock is done: who waits still, waits for somebody who is
    left alone because its checkpoint failed."""
    alone = any(life.held_until > world.now for life in world.lives.values())
    waiting = [work.agent for work in world.works if truths.is_waiting(work)]
    truths.must(alone or not waiting, f"11: {waiting} wait and nothing moves")
