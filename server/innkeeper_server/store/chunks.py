"""The log of events in memory: each agent's chunks, in a deque.

Owns what the store in memory keeps of what agents said.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import islice

from innkeeper_server.identity import AgentKey
from innkeeper_server.store.protocol import Chunk, Chunks

__all__ = ["EventLog"]


class EventLog:
    """The newest `kept` events of each agent, or a few more. `clock` is in seconds of Unix time."""

    def __init__(self, kept: int, clock: Callable[[], float]) -> None:
        self._kept = kept
        self._clock = clock
        # Never an empty deque; each chunk with the time when it was logged.
        self._logs: dict[AgentKey, deque[tuple[float, Chunk]]] = {}

    def append(self, key: AgentKey, chunk: Chunk) -> None:
        position = self.newest(key) + chunk.last - chunk.first + 1
        log = self._logs.setdefault(key, deque())
        log.append((self._clock(), replace(chunk, position=position)))
        while log[0][1].position <= position - self._kept:
            log.popleft()

    def end_broken_off(self, key: AgentKey, data: bytes) -> None:
        """The last event of a turn whose host ended before it did."""
        log = self._logs.get(key)
        if log is None or log[-1][1].ended:
            return
        before = log[-1][1]
        seq = before.last + 1
        self.append(key, Chunk(before.turn_id, before.epoch, seq, seq, data, ended=True))

    def events(self, key: AgentKey, turn_id: str, after: int, limit: int) -> Chunks:
        found = (
            chunk
            for _, chunk in self._logs.get(key, ())
            if chunk.position > after and turn_id in ("", chunk.turn_id)
        )
        return list(islice(found, limit))

    def place(self, key: AgentKey, turn_id: str, seq: int) -> int | None:
        for _, chunk in self._logs.get(key, ()):
            if chunk.turn_id == turn_id and chunk.first <= seq <= chunk.last:
                return chunk.position - (chunk.last - seq)
        return None

    def newest(self, key: AgentKey) -> int:
        log = self._logs.get(key)
        return 0 if log is None else log[-1][1].position

    def forget(self, key: AgentKey) -> None:
        self._logs.pop(key, None)

    def prune(self, before: float, limit: int) -> int:
        pruned = 0
        for log in self._logs.values():
            while len(log) > 1 and log[0][0] < before and pruned < limit:
                log.popleft()
                pruned += 1
        return pruned
