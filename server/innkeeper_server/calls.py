"""Who waits for whom: the graph of nested calls, and the two waits that would never end.

Owns the edges "the active turn of A waits for B". A call is refused, at once and with the path,
if it would wait for its own caller (a cycle), or if with it every slot would be held by an agent
whose turn waits for a nested call (a capacity deadlock).

Only a new edge can complete either, so only new edges are judged. Pure and synchronous.
"""

from __future__ import annotations

from collections.abc import Mapping

from innkeeper_server.errors import CallCycle, CapacityDeadlock
from innkeeper_server.identity import AgentKey
from innkeeper_server.slots import Phase, Slot

_NAMED = 8  # agents named in an error, which must fit into gRPC metadata


class CallGraph:
    """The nested calls under way. An agent has one active turn, so it stands for its turn."""

    def __init__(self) -> None:
        self._calls: dict[AgentKey, dict[str, AgentKey]] = {}

    def begin(
        self,
        caller: AgentKey,
        call_id: str,
        callee: AgentKey,
        *,
        chain: tuple[AgentKey, ...],
        slots: Mapping[AgentKey, Slot],
        capacity: int,
    ) -> None:
        """Add an edge, or raise CallCycle or CapacityDeadlock and add none."""
        path = self._cycle(caller, callee, chain)
        if path:
            shown = " → ".join(map(str, _shortened(path)))
            raise CallCycle(f"the call would wait for itself: {shown}", metadata={"path": shown})
        self._calls.setdefault(caller, {})[call_id] = callee
        if self._deadlocked(slots, capacity):
            self.end(caller, call_id)
            raise self._deadlock(caller, callee, chain, slots)

    def end(self, caller: AgentKey, call_id: str) -> None:
        """Take an edge away; idempotent."""
        calls = self._calls.get(caller)
        if calls is not None and calls.pop(call_id, None) is not None and not calls:
            del self._calls[caller]

    def turn_ended(self, caller: AgentKey) -> None:
        """Nothing waits for the calls that an ended turn left behind."""
        self._calls.pop(caller, None)

    def callees(self, caller: AgentKey) -> list[AgentKey]:
        """For whom an agent waits now."""
        return list(self._calls.get(caller, {}).values())

    def _cycle(
        self, caller: AgentKey, callee: AgentKey, chain: tuple[AgentKey, ...]
    ) -> list[AgentKey]:
        if callee in chain:
            return [*chain[chain.index(callee) :], callee]
        back = self._path(callee, caller)
        return [caller, *back] if back else []

    def _path(self, start: AgentKey, goal: AgentKey) -> list[AgentKey]:
        """From start to goal along waiting calls, both included; empty if there is no way."""
        came_from: dict[AgentKey, AgentKey | None] = {start: None}
        frontier = [start]
        while frontier:
            agent = frontier.pop()
            if agent == goal:
                path = [agent]
                while (before := came_from[path[-1]]) is not None:
                    path.append(before)
                return path[::-1]
            for callee in self._calls.get(agent, {}).values():
                if callee not in came_from:
                    came_from[callee] = agent
                    frontier.append(callee)
        return []

    def _deadlocked(self, slots: Mapping[AgentKey, Slot], capacity: int) -> bool:
        """Every slot is held by an agent whose turn, or whose start, waits for a nested call.

        Then nobody can go on: each callee either needs a slot, or is such a resident itself.
        Whatever moves by itself (a load, an eviction, a turn that waits for nobody, an idle
        resident) may free a slot, and one of these is enough for the wait to end.
        """
        if len(slots) < capacity or len(self._calls) < len(slots):
            return False
        return all(
            slot.phase in (Phase.RESIDENT, Phase.LOADING) and agent in self._calls
            for agent, slot in slots.items()
        )

    def _deadlock(
        self,
        caller: AgentKey,
        callee: AgentKey,
        chain: tuple[AgentKey, ...],
        slots: Mapping[AgentKey, Slot],
    ) -> CapacityDeadlock:
        shown = " → ".join(map(str, _shortened([*(chain or (caller,)), callee])))
        holders = {
            f"holder_{n}": f"{agent} waits for {', '.join(map(str, self.callees(agent)[:2]))}"
            for n, agent in enumerate(list(slots)[:_NAMED], 1)
        }
        return CapacityDeadlock(
            f"all {len(slots)} slots are held by agents that wait for nested calls, "
            f"so {shown} could never run",
            metadata={"path": shown, "capacity": str(len(slots)), **holders},
        )


def _shortened(path: list[AgentKey]) -> list[AgentKey | str]:
    if len(path) <= _NAMED:
        return list(path)
    return [*path[: _NAMED - 2], "…", path[-1]]
