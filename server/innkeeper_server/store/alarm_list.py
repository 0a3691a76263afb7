"""Alarms in memory: each agent's, by their names.

Owns what the store in memory keeps of what agents set.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from dataclasses import replace

from innkeeper_server.identity import AgentKey
from innkeeper_server.store.protocol import Alarm, AlarmChanges, Alarms

__all__ = ["AlarmList"]


class AlarmList:
    """See the module. With each alarm goes the follow-up of its last time, if it had one."""

    def __init__(self) -> None:
        self._of: dict[AgentKey, dict[str, tuple[Alarm, str]]] = {}  # no empty dicts

    def count(self, key: AgentKey, changes: AlarmChanges) -> int:
        """How many the agent would have after these changes."""
        names = set(self._of.get(key, ()))
        for name, alarm in changes.items():
            (names.discard if alarm is None else names.add)(name)
        return len(names)

    def change(self, key: AgentKey, changes: AlarmChanges) -> None:
        for name, alarm in changes.items():
            if alarm is None:
                self._drop(key, name)
            else:
                alarms = self._of.setdefault(key, {})
                _, last = alarms.get(name, (alarm, ""))
                alarms[name] = (alarm, last)

    def of(self, key: AgentKey) -> Alarms:
        return sorted((alarm for alarm, _ in self._of.get(key, {}).values()), key=_order)

    def due(self, types: Collection[str], before: float, limit: int) -> Alarms:
        found = (
            alarm
            for key, alarms in self._of.items()
            if key.type in types
            for alarm, _ in alarms.values()
            if alarm.due <= before
        )
        return heapq.nsmallest(limit, found, key=_order)

    def fired(self, alarm: Alarm) -> tuple[Alarm, str] | None:
        """The alarm, and the follow-up of its last time or ""; None if it is not due then any
        more."""
        kept = self._of.get(alarm.key, {}).get(alarm.name)
        return kept if kept is not None and kept[0].due == alarm.due else None

    def move(self, alarm: Alarm, id: str, following: float | None) -> None:
        """It fired, as that follow-up."""
        if following is None:
            self._drop(alarm.key, alarm.name)
        else:
            self._of[alarm.key][alarm.name] = (replace(alarm, due=following), id)

    def forget(self, key: AgentKey) -> None:
        self._of.pop(key, None)

    def _drop(self, key: AgentKey, name: str) -> None:
        alarms = self._of.get(key, {})
        alarms.pop(name, None)
        if not alarms:
            self._of.pop(key, None)


def _order(alarm: Alarm) -> tuple[float, AgentKey, str]:
    return alarm.due, alarm.key, alarm.name
