"""Whether the account is true: its invariants, and its comparison with the runtimes that exist.

Owns the checks that tests run after every step and that reconciliation runs in production. It
reads the account and changes nothing. Numbers refer to the invariants of the design.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from innkeeper_server.slots import Phase, Slot, TicketState

if TYPE_CHECKING:
    from innkeeper_server.residency import Account


def compare(account: Account, live: Collection[int]) -> tuple[list[Slot], list[int]]:
    """Slots whose runtime does not exist, and runtimes without a slot (invariant 3).

    A LOADING slot may not have its runtime yet.
    """
    charged = {slot.runtime_id: slot for slot in account.slots.values()}
    missing = [
        slot
        for runtime_id, slot in charged.items()
        if slot.phase is not Phase.LOADING and runtime_id not in live
    ]
    return missing, [runtime_id for runtime_id in live if runtime_id not in charged]


def check(account: Account) -> None:
    """Raise AssertionError, with the last moves, if an invariant is broken."""
    try:
        _check_slots(account)
        _check_idle(account)
        _check_tickets(account)
        _check_progress(account)
    except AssertionError as error:
        moves = "\n".join(f"  {move}" for move in list(account.story)[-12:])
        slots = "\n".join(f"  {slot}" for slot in account.slots.values())
        raise AssertionError(f"{error}\nslots:\n{slots}\nlast moves:\n{moves}") from None


def _check_slots(account: Account) -> None:
    phases = [slot.phase for slot in account.slots.values()]
    for phase in Phase:
        assert account.count[phase] == phases.count(phase), f"1: miscounted {phase}"
    ids = [slot.runtime_id for slot in account.slots.values()]
    assert len(set(ids)) == len(ids), "10: a runtime id was used twice"
    for agent, slot in account.slots.items():
        assert slot.agent == agent, "4: a slot under a foreign name"
        assert slot.leases is None or slot.leases, "6: an empty set of leases"
        if slot.leases:
            forced = slot.claim is not None and slot.claim.force
            owned = slot.phase in (Phase.LOADING, Phase.RESIDENT)
            assert owned or (slot.phase is Phase.CLAIMED and forced), f"6: leases on {slot}"
            assert all(lease.slot is slot for lease in slot.leases), "6: an ended lease is counted"
        if slot.phase is Phase.CLAIMED:
            assert slot.claim is not None, "3: CLAIMED without a claim"
        if slot.phase in (Phase.LOADING, Phase.RESIDENT):
            assert slot.claim is None, f"10: a claim outlived its phase on {slot}"
        if slot.late:
            assert slot.phase in (Phase.CLAIMED, Phase.STOPPING), f"late, and not going: {slot}"
        if slot.leaving:
            assert slot.phase is Phase.RESIDENT, f"{slot} is leaving and not resident"
            assert slot.leases, f"{slot} is leaving, yet nobody holds it"


def _check_idle(account: Account) -> None:
    line = list(account.idle)
    assert len(line) == len(account.idle) == len(set(line)), "5: the idle line is miscounted"
    held = [slot for _, slot in account.held.values()]
    unowned = {
        slot
        for slot in account.slots.values()
        if slot.phase is Phase.RESIDENT and slot.leases is None
    }
    assert unowned == {*line, *held}, "5: the idle line is not the unowned residents"
    assert len(unowned) == len(line) + len(held), "5: idle and held at once"
    order = [slot.idle_seq for slot in line]
    assert order == sorted(order), "5: the idle line is out of order"
    since = [slot.idle_since for slot in line]
    assert since == sorted(since), "5: the idle line is out of time"


def _check_tickets(account: Account) -> None:
    tickets = list(account.tickets())
    assert len(tickets) == account.waiting, "9: waiting tickets are miscounted"
    assert all(ticket.state is TicketState.WAITING for ticket in tickets), "9: a settled ticket"
    for agent, wanting in account.wanted.items():
        assert agent not in account.slots, f"9: {agent} has a slot and stands in line"
        assert list(wanting) == sorted(wanting), "9: tickets of one agent out of order"
    returning = {
        slot
        for slot in account.slots.values()
        if slot.waiting and slot.phase in (Phase.CLAIMED, Phase.STOPPING) and not slot.late
    }
    assert returning == account.returning, "9: a returning agent is forgotten"
    assert account.late == sum(slot.late for slot in account.slots.values()), "late ones miscounted"
    for token, slot in [*account._for_line.items(), *account._while_line.items()]:
        assert slot.phase is Phase.CLAIMED, f"10: a claim is kept that was committed: {slot}"
        assert slot.claim is not None, f"10: a claim is kept that was given up: {slot}"
        assert slot.claim.token == token, f"10: an older claim is kept for {slot}"
    for slot in account.slots.values():
        assert slot.waiting is None or slot.waiting, "9: an empty set of tickets"
        if slot.waiting:
            assert slot.phase is not Phase.RESIDENT or slot.leaving, f"9: nobody serves {slot}"


def _check_progress(account: Account) -> None:
    """11: whoever waits, waits for something that moves, or everybody in memory is owned."""
    assert not account._out, "effects were not handed out"
    assert account.due <= account.next_deadline(), "the host would sleep too long"
    if not account.wanted:
        return
    assert len(account.slots) >= account.capacity, "11: a free slot and a waiting ticket"
    if account.idle.head is not None:
        assert account._shortage() <= 0, "11: an idle runtime, a waiting ticket, and no claim"
