"""What must be true of the account and its world, after every move and at rest.

Owns the comparison of the account with the ghost's own books. Numbers refer to the invariants of
the design. Nothing here asks the account's methods for an opinion about itself, except `check`.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from innkeeper_server.errors import (
    CapacityExhausted,
    DeadlineExceeded,
    Draining,
    StartFailed,
    StartTimeout,
    StillStopping,
)
from innkeeper_server.identity import AgentKey
from innkeeper_server.slots import (
    ClaimReason,
    Discard,
    Effect,
    Evict,
    LeaseKind,
    Load,
    Phase,
    Refuse,
)

if TYPE_CHECKING:
    from parts import Life, Move, Work
    from world import World

INNER = (LeaseKind.CALL, LeaseKind.JOB, LeaseKind.ENVELOPE)
STAGES = {
    "loading": Phase.LOADING,
    "resident": Phase.RESIDENT,
    "stopping": Phase.STOPPING,
    "zombie": Phase.ZOMBIE,
}


class Violation(AssertionError):
    """The account and the world disagree."""


def must(condition: object, what: str) -> None:
    """Raise a Violation unless the condition holds."""
    if not condition:
        raise Violation(what)


def check(world: World, move: Move, lives_before: int, effects: list[Effect]) -> None:
    """Compare everything after a move."""
    world.account.check()
    _check_existence(world, lives_before)
    _check_owners(world)
    _check_idle(world)
    _check_progress(world)
    _check_order(world, effects)
    _check_victims(world, effects)
    _check_deadline(world)
    for effect in effects:
        if isinstance(effect, Refuse):
            _check_refusal(world, effect, move)


# -- what exists ----------------------------------------------------------------------------------


def _check_existence(world: World, lives_before: int) -> None:
    account, lives = world.account, world.lives
    must(
        len(lives) <= max(account.capacity, lives_before),
        f"2: {len(lives)} runtimes exist, capacity {account.capacity}",
    )
    agents = [life.agent for life in lives.values()]
    must(len(set(agents)) == len(agents), "4: two lives of one agent")
    charged = {slot.runtime_id: slot.agent for slot in account.slots.values()}
    existing = {runtime: life.agent for runtime, life in lives.items()}
    must(charged == existing, f"3: charged {charged}, existing {existing}")
    for life in lives.values():
        slot = account.slots[life.agent]
        phase = STAGES[life.stage]
        if phase is Phase.RESIDENT and life.claim is not None:
            phase = Phase.CLAIMED
        must(slot.phase is phase, f"3: {slot} is {phase.value} in the world")
        must(slot.leaving == life.leaving, f"3: {slot} is leaving in one book only")
        must(slot.late == world.is_late(life), f"3: {slot} is late in one book only")


def _check_owners(world: World) -> None:
    """6: who works has a lease, and nobody else; 9: who waits has a ticket, and nobody else."""
    for runtime, life in world.lives.items():
        working = sorted(w.kind.value for w in world.workers(runtime) if not w.leaves)
        leases = world.account.slots[life.agent].leases or ()
        held = sorted(lease.kind.value for lease in leases)
        must(working == held, f"6: {life.agent} is leased {held}, and works for {working}")
        claim = life.claim
        if working and claim is not None and life.stage == "resident":
            must(claim.force, f"6: {life.agent} was claimed while somebody owned it")
    waiting = {id(w.ticket) for w in world.works if is_waiting(w)}
    tickets = {id(ticket) for ticket in world.account.tickets()}
    must(waiting == tickets, f"9: {len(waiting)} callers wait, {len(tickets)} tickets stand")


def _check_idle(world: World) -> None:
    """5: the idle line is who is resident, unclaimed, unowned, and not left alone."""
    lives = world.lives
    idle = sorted((life for life in lives.values() if is_evictable(world, life)), key=_rank)
    line = [slot.agent for slot in world.account.idle]
    must([life.agent for life in idle] == line, f"5: idle {idle}, in line {line}")
    for slot, life in zip(world.account.idle, idle, strict=True):
        must(slot.idle_since == life.idle_since, f"5: {slot} is idle since another time")


# -- what moves -----------------------------------------------------------------------------------


def lacking(world: World) -> int:
    """How many slots are wanted beyond those that are free or on their way; nobody counts on an
    eviction that takes long."""
    going = [life for life in world.lives.values() if _is_going(world, life)]
    living = {life.agent for life in world.lives.values()}
    wanted = {work.agent for work in world.works if is_waiting(work)}
    returning = wanted & {life.agent for life in going}
    return len(wanted - living) + len(returning) + len(living) - world.account.capacity - len(going)


def _check_progress(world: World) -> None:
    """11: whoever waits, waits for something that moves, or everybody is owned; and nobody is sent
    away whose slot nobody needs."""
    living = {life.agent: life for life in world.lives.values()}
    wanted = {work.agent for work in world.works if is_waiting(work)}
    in_line = wanted - living.keys()
    lack = lacking(world)
    if in_line:
        must(len(living) >= world.account.capacity, "11: a free slot, and somebody in line")
    if lack > 0:
        idle = [life for life in living.values() if is_evictable(world, life)]
        must(not idle, f"11: somebody is in line, {idle} could go, and nothing moves")
    for agent in wanted & living.keys():
        life = living[agent]
        enters = life.stage == "resident" and life.claim is None and not life.leaving
        must(not enters, f"9: {agent} is there, and its callers wait")
        if life.claim is not None and life.stage == "resident" and not life.claim.firm:
            must(in_line or lack > 0, f"11: {agent} is sent away, and nobody stands before its own")
    if not in_line:
        _check_needless(world, wanted, lack)


def _check_needless(world: World, wanted: set[AgentKey], lack: int) -> None:
    made_for = (ClaimReason.ADMISSION, ClaimReason.CAPACITY)
    claimed = [
        life
        for life in world.lives.values()
        if life.stage == "resident" and life.claim is not None and life.claim.reason in made_for
    ]
    counted = [life for life in claimed if not world.is_late(life)]
    for life in claimed:
        spare = 1 if life in counted and life.agent not in wanted else 0
        second = counted and life not in counted  # goes on in case that the other one is slow too
        must(second or lack + spare > 0, f"{life.agent} is sent away, and nobody needs its slot")


def _check_order(world: World, effects: list[Effect]) -> None:
    """A newcomer that needs a slot never passes an older ticket that needs one."""
    wanting: dict[AgentKey, int] = {}
    for work in world.works:
        if is_waiting(work) and work.ticket is not None:
            first = wanting.get(work.agent, work.ticket.seq)
            wanting[work.agent] = min(first, work.ticket.seq)
    living = {life.agent for life in world.lives.values()}
    for effect in effects:
        if isinstance(effect, Load) and effect.agent in wanting:
            passed = [a for a in wanting.keys() - living if wanting[a] < wanting[effect.agent]]
            must(not passed, f"{effect.agent} passed {passed}, which stood before it")


def _check_victims(world: World, effects: list[Effect]) -> None:
    """Who goes is who has been idle for longest; and for its idleness, only after its time."""
    idle = [life.idle_rank for life in world.lives.values() if is_evictable(world, life)]
    for effect in effects:
        if not isinstance(effect, Evict):
            continue
        life, reason = world.lives[effect.claim.runtime_id], effect.claim.reason
        if life.claim is not effect.claim:
            continue  # given up in the same move
        if reason is ClaimReason.IDLE:
            must(world.account.idle_timeout + life.idle_since <= world.now, f"{life} went too soon")
        if reason is not ClaimReason.OPERATOR:
            must(all(life.idle_rank < rank for rank in idle), f"{life} went before its turn")


def _check_deadline(world: World) -> None:
    """The host sleeps until exactly the next time at which something may have to be done."""
    dues = [inf]
    for work in world.works:
        if is_waiting(work):
            life = life_of(world, work.agent)
            is_loading = life is not None and life.stage == "loading"
            patience = work.asked + world.account.admission_timeout
            own = work.asked + work.limit
            dues.append(own if is_loading and patience <= world.now else min(patience, own))
        elif work.runtime is not None:
            dues.append(work.until)
    for life in world.lives.values():
        if life.held_until > world.now:
            dues.append(life.held_until)
        elif is_evictable(world, life):
            dues.append(life.idle_since + world.account.idle_timeout)
        if _is_going(world, life):
            dues.append(life.claimed_at + world.account.slow_after)
    said = world.account.next_deadline()
    must(said == min(dues), f"the next deadline is {min(dues)}, not {said}")


# -- refusals -------------------------------------------------------------------------------------


def _check_refusal(world: World, refusal: Refuse, move: Move) -> None:
    """12: every refusal is true at the instant it is made, and names a cause."""
    ticket, error, account = refusal.ticket, refusal.error, world.account
    life = life_of(world, ticket.agent)
    waited = world.now >= min(ticket.patience, ticket.deadline)
    if isinstance(error, CapacityExhausted | DeadlineExceeded):
        must(waited, "12: refused too soon")
        is_own = isinstance(error, DeadlineExceeded)
        must(is_own == (ticket.deadline <= world.now), "12: somebody else's time was over")
        must(life is None, f"12: {ticket.agent} has a slot, and was refused for want of one")
        must(len(world.lives) >= account.capacity, "12: refused for a limit that was not there")
        _check_holders(world, error.metadata)
    elif isinstance(error, StartTimeout):
        must(life and life.stage == "loading" and ticket.deadline <= world.now, "12: not starting")
    elif isinstance(error, StillStopping):
        going = life and (life.leaving or life.stage in ("stopping", "zombie") or life.claim)
        given_up = move == ("tick",) and life and life.stage == "resident"  # for later refusals
        must((going or given_up) and waited, f"12: {life} is not going")
    elif isinstance(error, StartFailed):
        must(move[0] in ("load fails", "load hangs"), "12: no start has failed")
    else:
        must(isinstance(error, Draining), f"12: what is {error!r}?")
        must(account.draining and ticket.kind not in INNER, "12: refused by a drain that is not")


def _check_holders(world: World, metadata: Any) -> None:
    named = {k: v for k, v in metadata.items() if k.startswith("blocker_")}
    must(len(named) == len(world.lives), f"12: {len(world.lives)} hold slots, named are {named}")
    for text in named.values():
        name, why = text.split(": ", 1)
        life = life_of(world, AgentKey("t", *name.split("/")))
        must(life is not None, f"12: {name} holds nothing")
        assert life is not None
        true = {_describe(world, life)}
        if life.claim is None:
            true.add("it is being evicted")  # it was, until this refusal made that needless
        elif life.claimed_at == world.now:
            true.add("it is idle")  # it was, until later in this move
        if life.idle_since == world.now:
            true.add("pin")  # it was, until later in this move
        must(any(cause in why for cause in true), f"12: {why!r} is not true of {life}")


def _describe(world: World, life: Life) -> str:
    if life.stage == "loading":
        return "it is starting"
    if life.stage in ("stopping", "zombie"):
        return f"it is {life.stage} already"
    if life.held_until > world.now:
        return "its checkpoint failed"
    kinds = {work.kind for work in world.workers(_number(world, life))}
    if LeaseKind.PIN in kinds:
        return "pin"
    if LeaseKind.JOB in kinds:
        return "background job"
    if kinds:
        return "call"
    return "it is idle" if life.claim is None else "it is being evicted"


# -- small questions ------------------------------------------------------------------------------


def is_waiting(work: Work) -> bool:
    """Whether its caller stands somewhere."""
    return work.ticket is not None and work.runtime is None and not work.settled


def is_evictable(world: World, life: Life) -> bool:
    """Resident, unclaimed, unowned, and not left alone for a while."""
    if life.stage != "resident" or life.claim is not None or life.held_until > world.now:
        return False
    workers = world.workers(_number(world, life))
    return all(work.leaves for work in workers)


def life_of(world: World, agent: AgentKey) -> Life | None:
    """The life of an agent, if it has one."""
    return next((life for life in world.lives.values() if life.agent == agent), None)


def _is_going(world: World, life: Life) -> bool:
    going = life.stage == "stopping" or (life.stage == "resident" and life.claim is not None)
    return going and not world.is_late(life)


def _number(world: World, life: Life) -> int:
    return next(runtime for runtime, other in world.lives.items() if other is life)


def _rank(life: Life) -> int:
    return life.idle_rank


# -- dead names -----------------------------------------------------------------------------------


def check_dead_names(world: World) -> None:
    """10: whatever is said about lives, claims, leases and tickets that are over, or in the wrong
    stage, changes nothing; and nothing is left to do that a second look at the clock would find."""
    before = portrait(world)
    account, now = world.account, world.now
    for agent, runtime in world.dead_lives:
        must(account.loaded(agent, runtime, now) == [Discard(runtime)], "10: loaded, long gone")
        _say_nothing_new(world, agent, runtime, "absent")
    for runtime, life in world.lives.items():
        if life.stage != "loading":
            must(account.loaded(life.agent, runtime, now) == [], "10: loaded twice")
        _say_nothing_new(world, life.agent, runtime, life.stage)
    standing = {id(life.claim) for life in world.lives.values() if life.stage == "resident"}
    for claim in world.claims:
        if id(claim) not in standing:
            must(account.restore(claim, now) == [], f"10: {claim} is dead and was restored")
            must(account.commit(claim, now) == (False, []), f"10: {claim} is dead and commits")
    for lease in world.leases:
        if lease.slot is None:
            must(account.release(lease, now) == [], "10: a lease ended twice")
    for work in world.works:
        if work.settled and work.ticket is not None:
            must(account.cancel(work.ticket, now) == [], "10: a settled ticket was cancelled")
    must(account.tick(now) == [], "9: something was left undone")
    must(portrait(world) == before, "10: a dead name changed something")


def _say_nothing_new(world: World, agent: AgentKey, runtime: int, stage: str) -> None:
    account, now = world.account, world.now
    effects: list[Effect] = []
    if stage != "loading":
        effects += account.load_failed(agent, runtime, StartFailed("late"), now)
        effects += account.load_failed(agent, runtime, StartFailed("late"), now, ended=False)
    if stage not in ("stopping", "zombie"):
        effects += account.stopped(agent, runtime, now)
    if stage != "stopping":
        effects += account.overrun(agent, runtime, now)
    if stage != "resident":
        effects += account.stay(agent, runtime, now)
    if stage not in ("loading", "resident"):
        lease, more = account.join(agent, runtime, LeaseKind.JOB, "late", now)
        must(lease is None, f"6: a life that is {stage} was leased")
        effects += more
    must(not effects, f"10: a report about a life that is {stage} had effects {effects}")


def portrait(world: World) -> object:
    """Everything that the account holds, so that two moments can be compared."""
    account = world.account
    slots = [
        tuple(
            tuple(value) if isinstance(value, dict) else value
            for value in (getattr(slot, name) for name in slot.__slots__)
        )
        for slot in account.slots.values()
    ]
    plain: dict[str, object] = {
        name: value if not isinstance(value, dict) else list(value.items())
        for name, value in vars(account).items()
        if isinstance(value, int | float | str | dict | set | bool)
    }
    del plain["due"]  # it may be early; `check` asks that it is not late
    plain["wanted"] = [(agent, list(tickets)) for agent, tickets in account.wanted.items()]
    plain["returning"] = set(account.returning)
    plain["_out"] = list(account._out)
    due = [e for e in account.deadlines._entries if account._still_counts(e[0], e[2])]
    line = [e for e in account.line._entries if account._stands_in_line(e[0], e[2])]
    tickets = [(w.ticket.state, w.ticket.lease) for w in world.works if w.ticket is not None]
    ends = [lease.slot for lease in world.leases]
    return slots, list(account.idle), plain, due, line, tickets, ends, list(account.story)
