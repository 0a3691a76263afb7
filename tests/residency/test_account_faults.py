"""The search finds what is wrong: planted faults, each with the shortest way to it.

They stay in the suite: a search that finds nothing proves something only if it would have found
these.
"""

from __future__ import annotations

from dataclasses import replace

import faults
import pytest
from fairness import starvation
from parts import Setting
from search import explore

from innkeeper_server.residency import Account

PLAIN = Setting(1, ("a", "b"))
TWICE = Setting(1, ("a", "b", "a"))
WIDE = Setting(2, ("a", "b", "c"), ticks=1)
OPERATED = Setting(1, ("a", "a", "b"), ticks=1, evictions=True)
PINNED = Setting(1, ("a",), ticks=3, pins=1)

# Each with a world in which it shows, and what the search says about it.
FAULTS: list[tuple[type[Account], Setting, str]] = [
    (faults.IdleByTimestamp, PLAIN, "the next deadline is"),
    (faults.BusyIsClaimed, PLAIN, "claimed while somebody owned it"),
    (faults.IdleSinceTheCallBegan, PLAIN, "is idle since another time"),
    (faults.LoadedIsIdle, PLAIN, "nobody serves"),
    (faults.EndsTwice, TWICE, "a dead name changed something"),
    (faults.GrantNotGivenBack, PLAIN, "works for"),
    (faults.PinsForEver, PINNED, "the next deadline is"),
    (faults.ClaimLeavesAccount, PLAIN, "3: charged"),
    (faults.RemovalByName, PLAIN, "10: a report about a life"),
    (faults.ZombiesAreFree, PLAIN, "2: 2 runtimes exist"),
    (faults.ZombiesCountTwice, PLAIN, "1: miscounted"),
    (faults.HungStartsAreFree, PLAIN, "3: charged"),
    (faults.StoppingIsFree, PLAIN, "2: 2 runtimes exist"),
    (faults.RevokedClaimCommits, PLAIN, "is dead and"),
    (faults.AnyTokenWillDo, PLAIN, "is dead and"),
    (faults.AwaitBeforeFence, TWICE, "claimed while somebody owned it"),
    (faults.RestoreWithoutPump, TWICE, "effects were not handed out"),
    (faults.NonRevocableWithoutPump, TWICE, "effects were not handed out"),
    (faults.HoldForgotten, WIDE, "5: idle"),
    (faults.HeldForEver, PLAIN, "the next deadline is"),
    (faults.NeedlessClaimsStand, PLAIN, "nobody needs its slot"),
    (faults.ForcedCallersStay, OPERATED, "6: leases on"),
    (faults.ForcedTwice, OPERATED, "in the world"),
    (faults.StaysShut, OPERATED, "nobody serves"),
    (faults.SlowEvictionsHoldUpTheLine, PLAIN, "late in one book only"),
    (faults.NewcomersFirst, TWICE, "which stood before it"),
    (faults.StoppedWithoutHandOver, PLAIN, "11: a free slot"),
    (faults.NextLifeForgotten, TWICE, "9: 1 callers wait"),
    (faults.StartingIsNoSlot, PLAIN, "12: not starting"),
]


@pytest.mark.parametrize(
    ("fault", "setting", "said"), FAULTS, ids=[fault.__name__ for fault, _, _ in FAULTS]
)
def test_a_wrong_account_is_found(
    fault: type[Account], setting: Setting, said: str, report: list[str]
) -> None:
    found = explore(replace(setting, account=fault), most_states=3_000)
    assert said in found.violation, str(found) or f"not found in {found.states} states"
    report.append(f"account: fault {fault.__name__} found after {len(found.path)} moves")


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("a fence that acts on an older look", replace(TWICE, split_fence=True, ticks=0)),
        ("a lease that goes with its caller", replace(PLAIN, leavers=True)),
    ],
)
def test_a_wrong_host_is_found(name: str, setting: Setting, report: list[str]) -> None:
    """Work is cut that somebody waited for: the first public failure, in two ways."""
    found = explore(setting)
    assert "was cut by a polite eviction" in found.violation, str(found)
    report.append(f"account: fault {name} found after {len(found.path)} moves")


def again(agents: str, patient: str = "c", account: type[Account] = Account) -> Setting:
    """One patient caller, beside others who come whenever it hurts most."""
    return Setting(
        max(1, min(2, len(agents))),
        (patient, *agents),
        ticks=0,
        failures=False,
        cancels=False,
        again=agents,
        account=account,
    )


@pytest.mark.parametrize("agents", ["a", "ab", "abd"])
def test_no_stream_of_newcomers_starves_a_caller(agents: str, report: list[str]) -> None:
    """There is no fair circle in which the patient caller waits for ever."""
    graph, circle = starvation(again(agents), patient=0)
    assert circle == ""
    assert len(graph.paths) > 10
    report.append(
        f"account: no starvation in {len(graph.paths)} states, newcomers for {', '.join(agents)}"
    )


@pytest.mark.parametrize(
    ("fault", "agents"), [(faults.NewcomersRevokeAlways, "a"), (faults.PromisesNothing, "ab")]
)
def test_an_account_that_starves_a_caller_is_found(
    fault: type[Account], agents: str, report: list[str]
) -> None:
    _, circle = starvation(again(agents, account=fault), patient=0)
    assert "and then for ever" in circle
    report.append(f"account: fault {fault.__name__} found: {circle.splitlines()[-1].strip()}")
