"""What the account says to people: who stays and why, who waits and for what, why not.

Owns the words and the views for operators. It reads the account and changes nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from innkeeper_server.errors import (
    CapacityExhausted,
    DeadlineExceeded,
    InnkeeperError,
    StartTimeout,
    StillStopping,
)
from innkeeper_server.identity import AgentKey
from innkeeper_server.slots import Claim, LeaseKind, Phase, Slot, Ticket, Transition

if TYPE_CHECKING:
    from innkeeper_server.residency import Account

_NAMED_OWNERS = 5  # per kind, in a view
_NAMED_BLOCKERS = 5  # in a refusal, which must fit into gRPC metadata
_NAME_CHARS = 80

DRAINING = "the host is draining and takes nothing new"

_NOUNS = {
    LeaseKind.REQUEST: "call",
    LeaseKind.CONNECTION: "connection",
    LeaseKind.ENVELOPE: "accepted piece of work",
    LeaseKind.CALL: "nested call",
    LeaseKind.TIMER: "timer",
    LeaseKind.JOB: "background job",
    LeaseKind.PIN: "pin",
}


@dataclass(frozen=True, slots=True)
class Owners:
    """The leases of one kind on one runtime; `oldest` is the age of the oldest in seconds."""

    kind: LeaseKind
    count: int
    oldest: float
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SlotView:
    """One slot at one instant. Times are seconds on the account's clock."""

    agent: AgentKey
    runtime_id: int
    phase: Phase
    owners: tuple[Owners, ...]
    blockers: tuple[str, ...]
    idle_for: float | None
    resident_for: float
    claim: Claim | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an agent stays or leaves. `slot` is None if it is not resident."""

    slot: SlotView | None
    evictable: bool
    eviction_position: int
    idle_deadline: float | None
    waits_for: str
    story: tuple[Transition, ...]
    summary: str


@dataclass(frozen=True, slots=True)
class TicketView:
    """One waiting caller."""

    agent: AgentKey
    waited: float
    waits_for: str


@dataclass(frozen=True, slots=True)
class Totals:
    """The account in numbers, and its oldest waiting tickets."""

    capacity: int
    used: int
    by_phase: dict[Phase, int]
    idle: int
    waiting: int
    draining: bool
    loaded_total: int
    evicted_total: int
    refused_total: int
    reconciled_total: int
    overrun_total: int
    tickets: tuple[TicketView, ...]


def blockers(account: Account, slot: Slot, now: float) -> tuple[str, ...]:
    """Why this runtime cannot be evicted now; empty if it can."""
    if slot.phase is Phase.LOADING:
        return (f"it is starting, for {_seconds(now - slot.since)}",)
    if slot.phase in (Phase.STOPPING, Phase.ZOMBIE):
        return (f"it is {slot.phase.value} already, for {_seconds(now - slot.since)}",)
    held = account.held.get(slot.runtime_id)
    if held is not None:
        return (f"its checkpoint failed; next try in {_seconds(held[0] - now)}",)
    return tuple(_worded(owners) for owners in owners_of(slot, now))


def owners_of(slot: Slot, now: float) -> tuple[Owners, ...]:
    """The leases of a slot, by kind."""
    by_kind: dict[LeaseKind, list[str]] = {}
    oldest: dict[LeaseKind, float] = {}
    for lease in slot.leases or ():
        oldest.setdefault(lease.kind, now - lease.since)
        by_kind.setdefault(lease.kind, []).append(lease.owner)
    return tuple(
        Owners(kind, len(names), oldest[kind], tuple(filter(None, names[:_NAMED_OWNERS])))
        for kind, names in by_kind.items()
    )


def view(account: Account, slot: Slot, now: float) -> SlotView:
    """A slot as operators see it."""
    assert slot.phase is not None
    idle = slot.leases is None and slot.phase in (Phase.RESIDENT, Phase.CLAIMED)
    return SlotView(
        agent=slot.agent,
        runtime_id=slot.runtime_id,
        phase=slot.phase,
        owners=owners_of(slot, now),
        blockers=blockers(account, slot, now),
        idle_for=now - slot.idle_since if idle else None,
        resident_for=now - slot.loaded_at,
        claim=slot.claim,
    )


def explain(account: Account, agent: AgentKey, now: float) -> Explanation:
    """Everything there is to say about one agent's residency."""
    slot = account.slots.get(agent)
    story = tuple(t for t in account.story if t.agent == agent)[-20:]
    waits_for = _waits_for(account, agent, slot, now)
    if slot is None:
        summary = f"{agent} is not resident" + (f"; {waits_for}" if waits_for else "")
        return Explanation(None, False, 0, None, waits_for, story, summary)
    shown = view(account, slot, now)
    position = _position(account, slot)
    idle_deadline = slot.idle_since + account.idle_timeout if position else None
    summary = _summary(account, slot, shown, position, now)
    return Explanation(shown, position > 0, position, idle_deadline, waits_for, story, summary)


def totals(account: Account, now: float) -> Totals:
    """The account in numbers."""
    oldest = sorted(account.tickets(), key=lambda ticket: ticket.seq)[:100]
    return Totals(
        capacity=account.capacity,
        used=len(account.slots),
        by_phase=dict(account.count),
        idle=len(account.idle) + len(account.held),
        waiting=account.waiting,
        draining=account.draining,
        loaded_total=account.loaded_total,
        evicted_total=account.evicted_total,
        refused_total=account.refused_total,
        reconciled_total=account.reconciled_total,
        overrun_total=account.overrun_total,
        tickets=tuple(
            TicketView(
                ticket.agent,
                now - ticket.since,
                _waits_for(account, ticket.agent, account.slots.get(ticket.agent), now),
            )
            for ticket in oldest
        ),
    )


def refusal(account: Account, ticket: Ticket, now: float) -> InnkeeperError:
    """The error that a ticket ends with at this instant."""
    slot = account.slots.get(ticket.agent)
    waited = _seconds(now - ticket.since)
    if slot is None:
        text, metadata = _capacity(account, waited, now)
        if ticket.deadline <= now:
            return DeadlineExceeded(f"the caller's deadline passed: {text}", metadata=metadata)
        return CapacityExhausted(text, metadata=metadata)
    assert slot.phase is not None
    state = f"{ticket.agent} is {slot.phase.value}, for {_seconds(now - slot.since)}"
    metadata = {"agent": _short(str(ticket.agent)), "slot_state": slot.phase.value}
    if slot.phase is Phase.LOADING:
        return StartTimeout(f"{state}; waited {waited}", metadata=metadata)
    if slot.leaving:
        state = f"{ticket.agent} is leaving and waits for its owners"
    return StillStopping(f"{state}; waited {waited}", metadata=metadata)


def too_many_waiting(account: Account) -> str:
    """Why a caller cannot even wait."""
    return f"{account.waiting} callers wait for residency already, which is the limit"


def _capacity(account: Account, waited: str, now: float) -> tuple[str, dict[str, str]]:
    used = len(account.slots)
    phases = ", ".join(f"{n} {phase.value}" for phase, n in account.count.items() if n)
    named = [f"{_short(str(slot.agent))}: {why}" for slot, why in _holders(account, now)]
    text = (
        f"no slot came free in {waited}: capacity {account.capacity}, used {used} ({phases}), "
        f"{account.waiting} waiting; held by {'; '.join(named)}"
    )
    if used > len(named):
        text += f"; and {used - len(named)} more"
    metadata = {
        "limit": "capacity",
        "capacity": str(account.capacity),
        "used": str(used),
        "waiting": str(account.waiting),
    }
    metadata.update({f"blocker_{n}": name for n, name in enumerate(named, 1)})
    return text, metadata


def _holders(account: Account, now: float) -> Iterator[tuple[Slot, str]]:
    for slot in itertools.islice(account.slots.values(), _NAMED_BLOCKERS):
        yield slot, "; ".join(blockers(account, slot, now)) or _unowned(slot, now)


def _unowned(slot: Slot, now: float) -> str:
    if slot.phase is Phase.CLAIMED:
        return f"it is being evicted, for {_seconds(now - slot.since)}"
    return "it is idle, and would have been evicted next"


def _waits_for(account: Account, agent: AgentKey, slot: Slot | None, now: float) -> str:
    if slot is None:
        if agent not in account.wanted:
            return ""
        own = next(iter(account.wanted[agent]))
        ahead = sum(1 for tickets in account.wanted.values() if next(iter(tickets)) < own)
        return f"callers wait for a slot; {ahead} other agents were wanted before"
    if not slot.waiting:
        return ""
    if slot.phase is Phase.LOADING:
        return "callers wait for it to start"
    if slot.phase is Phase.RESIDENT:
        return "callers wait for its next life: it leaves once its owners have"
    return f"callers wait for its next life: this one is {slot.phase.value if slot.phase else ''}"


def _position(account: Account, slot: Slot) -> int:
    if slot.phase is not Phase.RESIDENT or slot.leases or slot.runtime_id in account.held:
        return 0
    return next(n for n, other in enumerate(account.idle, 1) if other is slot)


def _summary(account: Account, slot: Slot, shown: SlotView, position: int, now: float) -> str:
    if position:
        leaves = max(0.0, slot.idle_since + account.idle_timeout - now)
        return (
            f"{slot.agent} is idle for {_seconds(now - slot.idle_since)}; it can be evicted "
            f"(number {position} in line) and leaves by itself in {_seconds(leaves)}"
        )
    if slot.phase is Phase.CLAIMED and slot.claim is not None:
        return f"{slot.agent} is being evicted: {slot.claim.reason.value}"
    return f"{slot.agent} cannot be evicted: {'; '.join(shown.blockers)}"


def _worded(owners: Owners) -> str:
    noun = _NOUNS[owners.kind]
    count = f"{owners.count} {noun}{'s' if owners.count > 1 else ''}"
    by = ", ".join(_short(name) for name in owners.names[:2])
    named = f" ({by}{', …' if owners.count > 2 else ''})" if by else ""
    return f"{count}{named}, oldest {_seconds(owners.oldest)}"


def _short(text: str) -> str:
    return text if len(text) <= _NAME_CHARS else text[: _NAME_CHARS - 1] + "…"


def _seconds(value: float) -> str:
    return f"{max(value, 0.0):.1f} s"
