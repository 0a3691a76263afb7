"""What a decision of the account costs, by the number of residents: it should not matter.

CPU time of this process, in interleaved rounds; the figure is the median of the rounds' ratios.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from innkeeper_server.identity import AgentKey
from innkeeper_server.residency import Account
from innkeeper_server.slots import Evict, LeaseKind, Load

FEW, MANY = 1_000, 100_000
OPERATIONS = 20_000
ROUNDS = 7
BUDGET = 1.5


def compare() -> list[dict[str, Any]]:
    """For each operation: microseconds at FEW and at MANY residents, and the ratio."""
    few, many = _full(FEW), _full(MANY)
    rows = []
    for name, operation in (("lease + release", _lease), ("admission with eviction", _admit)):
        rounds = [(_cost(operation, few), _cost(operation, many)) for _ in range(ROUNDS)]
        ratios = [b / a for a, b in rounds]
        rows.append(
            {
                "operation": name,
                f"us_at_{FEW}": round(statistics.median(a for a, _ in rounds), 2),
                f"us_at_{MANY}": round(statistics.median(b for _, b in rounds), 2),
                "ratio": round(statistics.median(ratios), 3),
                "ratios": [round(ratio, 3) for ratio in sorted(ratios)],
                "budget": BUDGET,
            }
        )
    return rows


def _full(residents: int) -> Account:
    """An account whose slots are all taken by idle residents."""
    account = Account(capacity=residents, idle_timeout=1e9)
    for number in range(residents):
        _admit(account, number)
    return account


def _lease(account: Account, number: int) -> None:
    head = account.idle.head
    assert head is not None
    lease = account.lease(head.agent, LeaseKind.REQUEST, "", 0.0)
    assert lease is not None
    account.release(lease, 0.0)


def _admit(account: Account, number: int) -> None:
    """One agent more: a slot, or the eviction of the longest idle one first."""
    agent = AgentKey("default", "echo", f"{time.perf_counter_ns()}-{number}")
    ticket, effects = account.request(agent, LeaseKind.REQUEST, 0.0)
    for effect in effects:
        if isinstance(effect, Evict):
            account.commit(effect.claim, 0.0)
            effects = account.stopped(effect.claim.agent, effect.claim.runtime_id, 0.0)
    load = effects[-1]
    assert isinstance(load, Load)
    account.loaded(load.agent, load.runtime_id, 0.0)
    assert ticket.lease is not None
    account.release(ticket.lease, 0.0)


def _cost(operation: Callable[[Account, int], None], account: Account) -> float:
    begun = time.process_time()
    for number in range(OPERATIONS):
        operation(account, number)
    return (time.process_time() - begun) / OPERATIONS * 1e6
