"""State as bytes: what goes in comes back, what would not is refused, and nothing is shared."""

import json
import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, TypeVar

import pytest
from agents_kit import KEY, NoHost, carried_out, made
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, computed_field

from innkeeper_server import Agent
from innkeeper_server.errors import InvalidRequest, StartFailed
from innkeeper_server.registry import Registry
from innkeeper_server.state import state_type


class Tally(BaseModel):
    count: Annotated[int, Field(ge=0)] = 0
    names: list[str] = []


@dataclass
class Ledger:
    entries: dict[str, float] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)


class Renamed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    inside: int = Field(1, validation_alias="in", serialization_alias="out")
    _cache: dict[str, int] = PrivateAttr(default_factory=dict)

    @computed_field
    def double(self) -> int:
        return 2 * self.inside


T = TypeVar("T")


class Box(BaseModel, Generic[T]):
    things: list[T] = []


class TallyAgent(Agent[Tally]):
    pass


class LedgerAgent(Agent[Ledger]):
    pass


class RenamedAgent(Agent[Renamed]):
    pass


class BoxAgent(Agent[Box[int]]):
    pass


class MapAgent(Agent[dict[str, int]]):
    pass


class DictAgent(Agent[dict[str, Any]]):
    pass


class BareAgent(Agent):  # type: ignore[type-arg,unused-ignore]
    pass


class StatelessAgent(Agent[None]):
    pass


S = TypeVar("S")


class Base(Agent[S]):
    pass


class Middle(Base[S], Generic[S]):
    pass


class Leaf(Middle[Tally]):
    pass


class Mixed(BareAgent, Leaf):
    pass


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (TallyAgent, Tally),
        (BareAgent, dict),
        (StatelessAgent, type(None)),
        (Base, dict),
        (Leaf, Tally),
        (Mixed, Tally),
        (MapAgent, dict[str, int]),
    ],
)
def test_the_state_type_is_what_the_nearest_ancestor_says(source: Any, kind: Any) -> None:
    assert state_type(source) == kind


@pytest.mark.parametrize(
    ("source", "bytes_"),
    [
        (TallyAgent, b'{"count":3,"names":["Ada"]}'),
        (LedgerAgent, b'{"entries":{"b":1.5,"a":2.0},"seen":["x"]}'),
        (RenamedAgent, b'{"inside":7}'),
        (BoxAgent, b'{"things":[1,2]}'),
        (MapAgent, b'{"b":1,"a":2}'),
        (DictAgent, b'{"b":[1,2.5,null],"a":{"\xc3\xbc":true}}'),
        (BareAgent, b'{"a":1}'),
    ],
)
def test_stored_bytes_come_back_as_the_same_bytes(source: Any, bytes_: bytes) -> None:
    type = Registry().register(source)
    instance = type.create(KEY, NoHost(), bytes_)
    assert type.dump(instance) == bytes_
    again = type.create(KEY, NoHost(), type.dump(instance))
    assert again.state == instance.state
    assert again.state is not instance.state


def test_agents_share_no_part_of_their_first_state() -> None:
    for source in (TallyAgent, LedgerAgent, BareAgent, MapAgent):
        type = Registry().register(source)
        one, other = (type.create(KEY, NoHost(), None) for _ in range(2))
        assert one.state is not other.state
        parts = vars(one.state) if hasattr(one.state, "__dict__") else {}
        assert all(
            value is not vars(other.state)[name] or not isinstance(value, list | dict | set)
            for name, value in parts.items()
        )


def test_a_state_that_did_not_change_gives_the_bytes_that_are_known() -> None:
    type, instance = made(LedgerAgent)
    instance.state.seen |= {f"guest {n}" for n in range(50)}
    written = type.dump(instance)
    assert written is not None
    turned = json.loads(written)
    turned["seen"].reverse()
    committed = json.dumps(turned).encode()  # as another process would have written the set
    type.restore(instance, committed)
    assert type.dump(instance, committed) is committed
    instance.state.seen.add("one more")
    changed = type.dump(instance, committed)
    assert changed is not None
    assert changed != committed


def test_restore_puts_back_the_committed_state_or_the_first_one() -> None:
    type, instance = made(TallyAgent)
    instance.state.count = 5
    type.restore(instance, b'{"count":2}')
    assert instance.state == Tally(count=2)
    type.restore(instance, None)
    assert instance.state == Tally()


def test_a_stateless_agent_has_no_bytes_and_ignores_any() -> None:
    type, instance = made(StatelessAgent)
    assert type.dump(instance) is None
    assert not type.stateful
    assert type.state_schema is None
    assert type.create(KEY, NoHost(), b"{}").state is None


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"seen": {"x"}}, "set is not JSON serializable"),
        ({"pairs": [[1], (1, 2)]}, r"state\['pairs'\]\[1\] is no JSON value"),
        ({1: "one"}, "state is no JSON value"),
        ({"price": math.nan}, "not JSON compliant"),
        ({"half": "\ud83d"}, "surrogates"),
        ([1], "is a list, not a dict"),
    ],
)
def test_a_dict_state_refuses_what_would_come_back_as_something_else(
    fault: Any, words: str
) -> None:
    type, instance = made(BareAgent)
    instance.state = fault
    with pytest.raises(TypeError, match=words):
        type.dump(instance)


def test_a_circle_in_a_dict_state_is_refused() -> None:
    type, instance = made(BareAgent)
    instance.state["me"] = instance.state
    with pytest.raises(TypeError, match="JSON values only"):
        type.dump(instance)


class Meter(BaseModel):
    level: float = 0.0


class MeterAgent(Agent[Meter]):
    pass


def test_a_typed_state_that_could_not_be_loaded_again_is_refused() -> None:
    type, instance = made(TallyAgent)
    instance.state.count = "three"
    with pytest.raises(TypeError, match="cannot become JSON"):
        type.dump(instance)
    instance.state.count = -1  # assignments are not checked, and nothing but a load finds this
    with pytest.raises(TypeError, match=r"would not come back: state\.count"):
        type.dump(instance)
    instance.state = {"count": 1}
    with pytest.raises(TypeError, match="is a dict, not a Tally"):
        type.dump(instance)
    meters, meter = made(MeterAgent)
    meter.state.level = math.nan
    with pytest.raises(TypeError, match=r"would not come back: state\.level"):
        meters.dump(meter)


def test_stored_bytes_that_do_not_fit_fail_the_start_without_showing_them() -> None:
    type = Registry().register(TallyAgent)
    for stored in (b'{"count":"secret"}', b"{", b"[]", b"\xff"):
        with pytest.raises(StartFailed, match="stored state of thing/a") as caught:
            type.create(KEY, NoHost(), stored)
        assert "secret" not in str(caught.value)
    dicts = Registry().register(BareAgent)
    for stored in (b"{", b"[]", b"\xff"):
        with pytest.raises(StartFailed):
            dicts.create(KEY, NoHost(), stored)


def test_the_state_schema_speaks_of_field_names_as_stored() -> None:
    schema = Registry().register(RenamedAgent).state_schema
    assert schema is not None
    assert list(schema["properties"]) == ["inside"]
    assert Registry().register(BareAgent).state_schema is None


async def test_an_update_replaces_the_whole_state_by_a_copy_of_what_was_given() -> None:
    type, instance = made(TallyAgent)
    instance.state.count = 9
    given: dict[str, Any] = {"names": ["Ada"]}
    work = type.bind_update(given)
    given["names"].append("Bob")
    assert (work.kind, work.handler) == ("update", "state")
    assert (await carried_out(work, instance))[0] is None
    assert instance.state == Tally(count=0, names=["Ada"])
    dicts, other = made(BareAgent)
    await carried_out(dicts.bind_update({"a": [1]}), other)
    assert other.state == {"a": [1]}


@pytest.mark.parametrize(
    ("source", "state", "field"),
    [
        (TallyAgent, {"count": "secret"}, "state.count"),
        (TallyAgent, [], "state"),
        (TallyAgent, None, "state"),
        (BareAgent, ["secret"], "state"),
        (StatelessAgent, {}, "state"),
        (RenamedAgent, {"in": 3}, "state.in"),
    ],
)
def test_an_update_that_does_not_fit_is_refused_by_field(
    source: Any, state: Any, field: str
) -> None:
    type = Registry().register(source)
    with pytest.raises(InvalidRequest) as caught:
        type.bind_update(state)
    assert [each for each, _ in caught.value.violations] == [field]
    assert "secret" not in str(caught.value)


class Needy(BaseModel):
    name: str


class NeedyAgent(Agent[Needy]):
    pass


class Opaque:
    pass


class OpaqueAgent(Agent[Opaque]):
    pass


@dataclass
class Holder:
    handle: Any = field(default_factory=object)


class HolderAgent(Agent[Holder]):
    pass


@pytest.mark.parametrize("source", [NeedyAgent, OpaqueAgent, HolderAgent])
def test_a_state_that_cannot_begin_or_be_kept_is_refused_at_registration(source: Any) -> None:
    with pytest.raises(ValueError, match="must be JSON, and be made without arguments"):
        Registry().register(source)
