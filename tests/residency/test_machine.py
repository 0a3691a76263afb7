"""The same world as in the exhaustive search, larger, with rarer things, walked by Hypothesis."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import faults
import pytest
import truths
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from parts import Move, Setting
from search import come_to_rest
from world import World

from innkeeper_server.residency import Account

ASKS = st.sampled_from([agent + how for agent in "abcde" for how in ("", "", "!", "*")])
SETTINGS = st.builds(
    Setting,
    capacity=st.integers(1, 4),
    asks=st.lists(ASKS, min_size=6, max_size=16).map(tuple),
    ticks=st.just(30),
    evictions=st.booleans(),
    pins=st.integers(0, 2),
    jobs=st.integers(0, 3),
    resizes=st.integers(0, 3),
    drains=st.booleans(),
    rarities=st.booleans(),
)
BOUNDS = settings(
    max_examples=250,
    stateful_step_count=60,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)

LIKELY = ("ask", "finish", "loaded", "commit", "stopped", "undrain", "evict", "stay")


class Walk(RuleBasedStateMachine):
    """One walk; in the end everything comes to rest. `made` counts what all walks have done."""

    account: type[Account] = Account
    made: ClassVar[Counter[str]] = Counter()

    @initialize(setting=SETTINGS)
    def begin(self, setting: Setting) -> None:
        self.world = World(Setting(**{**vars(setting), "account": self.account}))

    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        """Choose what kind of move, and then which: else kinds of many moves crowd out the rest.
        What work consists of is likelier than what goes wrong, so that walks lead somewhere."""
        kinds: dict[str, list[Move]] = {}
        for move in self.world.moves():
            kinds.setdefault(str(move[0]), []).append(move)
        if not kinds:
            return
        likely = [kind for kind in LIKELY if kind in kinds]
        kind = data.draw(st.sampled_from(sorted(kinds) + 3 * likely))
        self.world.play(data.draw(st.sampled_from(kinds[kind])))
        truths.check_dead_names(self.world)
        self.made[kind] += 1

    def teardown(self) -> None:
        if hasattr(self, "world"):
            come_to_rest(self.world)


def test_random_walks_through_larger_worlds_break_nothing(report: list[str]) -> None:
    Walk.made = Counter()
    run_state_machine_as_test(Walk, settings=BOUNDS)
    report.append(f"account: {sum(Walk.made.values())} random moves of {len(Walk.made)} kinds")
    assert len(Walk.made) == 21, Walk.made


def test_a_walk_finds_what_is_wrong() -> None:
    """A test of the test."""
    wrong = type("Wrong", (Walk,), {"account": faults.StoppingIsFree})
    with pytest.raises(AssertionError, match="runtimes exist, capacity"):
        run_state_machine_as_test(wrong, settings=settings(BOUNDS, phases=[Phase.generate]))
