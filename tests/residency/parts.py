"""What a small world is made of: its setting, its callers and its runtimes."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

from innkeeper_server.identity import AgentKey
from innkeeper_server.residency import Account
from innkeeper_server.slots import Claim, Lease, LeaseKind, Ticket

Move = tuple[Any, ...]

IDLE, PATIENCE, HOLD, PIN, SOON = 60.0, 8.0, 3.0, 20.0, 1.0
SLOW = PATIENCE / 4  # after that an eviction is not relied on


@dataclass(frozen=True)
class Setting:
    """What there is in a world, and what can happen in it.

    `asks`: the agents that are asked for, in any order, one letter for each request. A letter may
    be followed by `!` (the caller has a deadline of its own, SOON) or by `*` (a nested call).
    """

    capacity: int
    asks: tuple[str, ...]
    ticks: int = 2  # how often the clock may go on, each time to the next deadline
    failures: bool = True  # starts, checkpoints and stops may fail
    cancels: bool = True
    evictions: bool = False  # an operator's, of all three kinds
    pins: int = 0
    jobs: int = 0  # that agents spawn, from their start on
    resizes: int = 0
    drains: bool = False
    again: str = ""  # agents whose callers ask again and again
    rarities: bool = False  # what is seldom: late timers, evictions given up, defects of the host
    account: type[Account] = Account
    split_fence: bool = False  # a fault of the world: it looks first and fences later
    leavers: bool = False  # a fault of the world: a caller that goes away takes its lease along


@dataclass(slots=True)
class Work:
    """One request, and what became of it."""

    agent: AgentKey
    kind: LeaseKind = LeaseKind.REQUEST
    limit: float = inf  # the caller's own, seconds
    ttl: float = inf
    ticket: Ticket | None = None
    lease: Lease | None = None  # of a job, which needs no ticket
    asked: float = 0.0
    runtime: int | None = None  # the one that works on it
    until: float = inf
    settled: bool = False
    leaves: bool = False  # its lease went away with its caller


@dataclass(slots=True)
class Life:
    """One runtime that physically exists, and how far it has come."""

    agent: AgentKey
    stage: str = "loading"  # resident, stopping, zombie
    claim: Claim | None = None  # of the eviction that is under way
    claimed_at: float = inf
    looked: Claim | None = None  # the fault: it was found free to go, a while ago
    idle_since: float = 0.0
    idle_rank: int = 0
    held_until: float = -inf
    leaving: bool = False


def asked(ask: str) -> Work:
    """The request that a letter of `Setting.asks` stands for."""
    agent = AgentKey("t", "x", ask[0])
    if ask.endswith("*"):
        return Work(agent, LeaseKind.CALL)
    return Work(agent, limit=SOON) if ask.endswith("!") else Work(agent)
