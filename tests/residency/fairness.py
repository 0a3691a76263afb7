"""Whether a caller can wait for ever although everything that was begun goes on.

Owns a search for fair cycles. Some agents are called again and again, by callers who come whenever
it hurts most; one patient caller wants an agent that has no slot. The states form a finite graph,
since time stands still. The patient caller starves if there is a way to go round in circles while
it waits, on which every start, eviction and piece of work that could always have gone on does go on
(weak fairness). Such a circle exists if and only if a strongly connected part of the graph has it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from parts import Move, Setting
from search import Path, key, replayed
from truths import is_waiting
from world import World

from innkeeper_server.identity import AgentKey

Label = tuple[str, AgentKey]  # a step that may not be put off for ever


@dataclass
class Graph:
    """The states in which the patient caller waits. `steps[s]` are the fair steps that are possible
    in s; `edges[s]` are moves, with the state they lead to and the fair step they are, if any."""

    paths: list[Path] = field(default_factory=list)
    steps: list[frozenset[Label]] = field(default_factory=list)
    edges: list[list[tuple[int, Move, Label | None]]] = field(default_factory=list)


def starvation(setting: Setting, patient: int) -> tuple[Graph, str]:
    """The graph in which request number `patient` waits, and a circle that starves it, or ""."""
    graph = _graph(setting, patient)
    for part in _strong_parts(graph):
        inside = set(part)
        inner = [edge for state in part for edge in graph.edges[state] if edge[0] in inside]
        if not inner:
            continue  # no circle
        done = {label for _, _, label in inner}
        always = frozenset.intersection(*(graph.steps[state] for state in part))
        if always <= done:
            return graph, _told(graph, part, inside)
    return graph, ""


def _graph(setting: Setting, patient: int) -> Graph:
    graph = Graph()
    numbers: dict[object, int] = {}
    waits: list[bool] = []
    frontier: deque[int] = deque()

    def number_of(world: World, path: Path) -> int:
        state = key(world, {work.agent: index for index, work in enumerate(world.works)})
        if state not in numbers:
            numbers[state] = len(numbers)
            graph.paths.append(path)
            waits.append(is_waiting(world.works[patient]))
            graph.steps.append(frozenset())
            graph.edges.append([])
            frontier.append(numbers[state])
        return numbers[state]

    number_of(World(setting), ())
    while frontier:
        state = frontier.popleft()
        path = graph.paths[state]
        world = replayed(setting, path)
        moves = list(world.moves())
        labels = {move: _label(world, move) for move in moves}
        graph.steps[state] = frozenset(label for label in labels.values() if label)
        for move in moves:
            world = replayed(setting, path)
            world.play(move, checked=False)
            target = number_of(world, (*path, move))
            if waits[state] and waits[target]:
                graph.edges[state].append((target, move, labels[move]))
    return graph


def _label(world: World, move: Move) -> Label | None:
    name, *rest = move
    if name == "finish":
        return name, world.works[rest[0]].agent
    if name in ("loaded", "commit", "stopped"):
        return name, world.lives[rest[0]].agent
    return None  # callers come as they please


def _strong_parts(graph: Graph) -> list[list[int]]:
    """The strongly connected parts (Tarjan's way, without recursion)."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    parts: list[list[int]] = []
    for root in range(len(graph.edges)):
        if root in order:
            continue
        work = [(root, iter(graph.edges[root]))]
        order[root] = low[root] = len(order)
        stack.append(root)
        on_stack.add(root)
        while work:
            state, edges = work[-1]
            for target, _, _ in edges:
                if target not in order:
                    order[target] = low[target] = len(order)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(graph.edges[target])))
                    break
                if target in on_stack:
                    low[state] = min(low[state], order[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[state])
                if low[state] == order[state]:
                    at = stack.index(state)
                    parts.append(stack[at:])
                    on_stack.difference_update(stack[at:])
                    del stack[at:]
    return parts


def _told(graph: Graph, part: list[int], inside: set[int]) -> str:
    first = min(part, key=lambda state: len(graph.paths[state]))
    way = "\n".join(f"  {' '.join(map(str, move))}" for move in graph.paths[first])
    moves = sorted({str(m[0]) for s in part for t, m, _ in graph.edges[s] if t in inside})
    return f"{way}\n  and then for ever, through {len(part)} states: {', '.join(moves)}"
