"""A kit for examples: an account with short ways to the states that they begin in.

Times are seconds, given as arguments.
"""

from __future__ import annotations

from innkeeper_server.identity import AgentKey
from innkeeper_server.residency import Account
from innkeeper_server.slots import (
    Claim,
    Effect,
    Evict,
    Grant,
    Lease,
    LeaseKind,
    Load,
    Phase,
    Refuse,
    Ticket,
)

A, B, C, D = (AgentKey("t", "x", name) for name in "abcd")


class Inn:
    """An account with short ways to the states that the examples begin in."""

    def __init__(self, capacity: int = 1, **settings: float) -> None:
        chosen: dict[str, float] = {"idle_timeout": 60.0, "admission_timeout": 10.0, **settings}
        self.account = Account(capacity=capacity, **chosen)  # type: ignore[arg-type]

    def ask(self, agent: AgentKey, now: float = 0.0, **how: float) -> tuple[Ticket, list[Effect]]:
        ticket, effects = self.account.request(agent, LeaseKind.REQUEST, now, **how)  # type: ignore[arg-type]
        self.account.check()
        return ticket, effects

    def owned(self, agent: AgentKey, now: float = 0.0) -> Lease:
        """Have an agent resident, with one lease."""
        ticket, effects = self.ask(agent, now)
        if ticket.lease is None:
            load = effects[-1]
            assert isinstance(load, Load)
            self.account.loaded(agent, load.runtime_id, now)
        assert ticket.lease is not None
        self.account.check()
        return ticket.lease

    def idle(self, agent: AgentKey, now: float = 0.0) -> int:
        """Have an agent resident that nobody owns; return its runtime's number."""
        lease = self.owned(agent, now)
        assert lease.slot is not None
        runtime = lease.slot.runtime_id
        self.account.release(lease, now)
        self.account.check()
        return runtime

    def full(self, *idle: AgentKey) -> None:
        """Have these agents resident, idle in this order, one second apart."""
        for now, agent in enumerate(idle):
            self.idle(agent, float(now))

    def gone(self, claim: Claim, now: float) -> list[Effect]:
        """Carry an eviction out to its end."""
        fenced, effects = self.account.commit(claim, now)
        assert fenced
        effects += self.account.stopped(claim.agent, claim.runtime_id, now)
        self.account.check()
        return effects

    def phase(self, agent: AgentKey) -> Phase | None:
        slot = self.account.slots.get(agent)
        return slot.phase if slot else None


def claim_in(effects: list[Effect]) -> Claim:
    (claim,) = (effect.claim for effect in effects if isinstance(effect, Evict))
    return claim


def refused(effects: list[Effect]) -> Exception:
    (error,) = (effect.error for effect in effects if isinstance(effect, Refuse))
    return error


def load_in(effects: list[Effect]) -> Load:
    (load,) = (effect for effect in effects if isinstance(effect, Load))
    return load


def granted(effects: list[Effect]) -> list[Ticket]:
    return [effect.ticket for effect in effects if isinstance(effect, Grant)]
