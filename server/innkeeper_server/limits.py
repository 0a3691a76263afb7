"""The bounds within which a host works. Owns their names, defaults and units."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """All times are seconds; all defaults are choices, to be changed by measurement."""

    capacity: int = 1000  # runtimes in memory at once
    idle_timeout: float = 300.0  # how long an agent stays that nobody owns
    admission_timeout: float = 10.0  # how long a caller waits for a slot
    max_waiting: int = 10_000  # callers waiting for residency
    mailbox_size: int = 1000  # envelopes waiting in one mailbox
    start_timeout: float = 30.0  # hydration and on_start together
    start_attempts: int = 3  # failed ones in a row, after which an agent is left alone for a while
    stop_timeout: float = 10.0  # each step of a deactivation
    drain_timeout: float = 30.0  # accepted work during a drain
    turn_timeout: float = 3600.0  # one turn
    reader_timeout: float = 5.0  # a producer's patience with a slow reader
    max_attempts: int = 3  # turns of one follow-up before it is put aside
    backlog: int = 1000  # follow-ups that are in memory at once; the others wait in the store
    receipt_retention: float = 86_400.0  # how long a receipt is kept after its follow-up ended
    event_log: bool = True  # what turns say is kept, and can be heard again
    events_kept: int = 10_000  # of each agent
    event_retention: float = 3600.0  # how long an event is kept
    max_state_bytes: int = 4 << 20  # one agent's state as JSON
