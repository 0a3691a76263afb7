"""The same world as in the exhaustive search, larger, walked at random by Hypothesis."""

from __future__ import annotations

import faults
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from world import Setting, World

from innkeeper_server.residency import Account

WALKS = settings(
    max_examples=800,
    stateful_step_count=60,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@st.composite
def worlds(draw: st.DrawFn) -> Setting:
    return Setting(
        capacity=draw(st.integers(1, 4)),
        requests=tuple(draw(st.lists(st.sampled_from("abcde"), min_size=4, max_size=16))),
        ticks=30,
        operator=draw(st.booleans()),
        drains=draw(st.booleans()),
    )


class Walk(RuleBasedStateMachine):
    """One rule: make any of the moves that are possible. The world checks itself after each."""

    account: type[Account] = Account
    walks = moves = 0

    @initialize(setting=worlds())
    def begin(self, setting: Setting) -> None:
        drawn = {name: getattr(setting, name) for name in ("capacity", "requests", "operator")}
        self.world = World(
            Setting(**drawn, ticks=30, drains=setting.drains, account=type(self).account)
        )
        type(self).walks += 1

    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        moves = list(self.world.moves())
        if moves:
            self.world.play(moves[data.draw(st.integers(0, len(moves) - 1))])
            type(self).moves += 1

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.complete()


def test_random_walks_through_larger_worlds_break_nothing(report: list[str]) -> None:
    run_state_machine_as_test(Walk, settings=WALKS)
    report.append(f"account: {Walk.walks} random walks, {Walk.moves} moves")
    assert Walk.walks >= 800
    assert Walk.moves > 10 * Walk.walks


def test_a_walk_finds_what_is_wrong() -> None:
    """A test of the test: a planted fault does not survive the walks."""

    class Faulty(Walk):
        account = faults.StoppingIsFree

    with pytest.raises(AssertionError, match="runtimes exist, capacity"):
        run_state_machine_as_test(Faulty, settings=WALKS)
