"""Values on their way to messages and back: nothing changes, or it is said what cannot travel."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToJson
from google.protobuf.struct_pb2 import ListValue, Value
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from innkeeper.v1 import common_pb2 as common_pb
from innkeeper_server.content import MAX_DEPTH, Blob, JsonValue
from innkeeper_server.errors import Evicted, InvalidRequest, TooLarge
from innkeeper_server.events import Body, Cancelled, Completed, Custom, Event, Failed, Text
from innkeeper_server.identity import AgentKey
from innkeeper_server.rpc.convert import (
    agent_key,
    agent_ref,
    duration,
    from_duration,
    from_payload,
    from_timestamp,
    from_value,
    timestamp,
    to_event,
    to_payload,
    to_value,
)

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_json_survives_the_way_there_and_back(value: JsonValue) -> None:
    raw = to_value(value).SerializeToString()
    assert from_value(Value.FromString(raw), "x") == value


@given(json_values)
def test_what_is_written_is_json_to_everybody_else(value: JsonValue) -> None:
    assert json.loads(MessageToJson(to_value(value))) == value


@pytest.mark.parametrize(
    ("number", "kind"), [(3.0, int), (-0.0, int), (2.0**53, int), (2.0**54, float), (0.5, float)]
)
def test_whole_numbers_come_back_as_int_where_that_is_exact(number: float, kind: type) -> None:
    found = from_value(Value(number_value=number), "x")
    assert found == number
    assert type(found) is kind


@pytest.mark.parametrize("number", [2**53 + 1, -(10**400)])
def test_a_whole_number_that_no_double_holds_leaves_as_its_digits(number: int) -> None:
    assert from_value(to_value({"n": number}), "x") == {"n": str(number)}


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_does_not_have(number: float) -> None:
    assert to_value(number).string_value == str(number)
    with pytest.raises(InvalidRequest) as caught:
        from_value(Value(number_value=number), "input")
    assert caught.value.violations[0][0] == "input"


def test_depth_is_bounded_both_ways_and_what_fits_can_be_parsed() -> None:
    deep: Any = {}
    for _ in range(MAX_DEPTH - 1):
        deep = {"a": deep}
    event = to_event(Event(1, "t", 1, Custom("x", deep)))
    assert common_pb.Event.FromString(event.SerializeToString()) == event
    assert from_value(event.custom.data, "x") == deep
    with pytest.raises(TooLarge):
        to_value([deep])
    value = to_value(deep)
    with pytest.raises(InvalidRequest):
        from_value(Value(list_value=ListValue(values=[value])), "x")


@pytest.mark.parametrize("content", ["", "text", Blob(b"", "a/b"), Blob(b"\xff"), {"a": 1}, [], 0])
def test_payloads_keep_their_kind(content: Any) -> None:
    assert from_payload(to_payload(content), "x") == content


def test_nothing_is_nothing() -> None:
    assert to_payload(None) == common_pb.Payload()
    assert from_payload(common_pb.Payload(), "x") is None
    assert from_payload(common_pb.Payload(json=Value()), "x") is None
    assert from_payload(common_pb.Payload(data=b"x"), "x") == Blob(b"x")


def test_an_agent_is_checked_and_named() -> None:
    key = AgentKey("t", "counter", "ä b")
    assert agent_key(agent_ref(key), "t") == key
    assert agent_key(common_pb.AgentRef(id="a"), "t") == AgentKey("t", "", "a")
    for ref, field in (
        (common_pb.AgentRef(id="\x00"), "id"),
        (common_pb.AgentRef(type="?"), "type"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            agent_key(ref, "t", "whom")
        assert caught.value.violations[0][0] == f"whom.{field}"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (Text("a"), "text_delta"),
        (Custom("n", [1]), "custom"),
        (Completed("all"), "completed"),
        (Failed(Evicted("gone")), "failed"),
        (Cancelled("why"), "cancelled"),
    ],
)
def test_each_event_has_its_place_and_kind(body: Body, kind: str) -> None:
    event = to_event(Event(3, "turn", 4, body))
    assert event.WhichOneof("event") == kind
    assert event.cursor == common_pb.Cursor(epoch=3, turn_id="turn", seq=4)


@given(st.integers(-10_000_000_000, 10_000_000_000), st.integers(0, 999))
def test_moments_keep_their_milliseconds(seconds: int, millis: int) -> None:
    moment = timestamp(seconds + millis / 1000)
    assert 0 <= moment.nanos < 1_000_000_000
    assert abs(from_timestamp(moment, "x") - (seconds + millis / 1000)) < 1e-5


@given(st.floats(-1e15, 1e15))
def test_lengths_of_time_keep_their_microseconds(seconds: float) -> None:
    length = duration(seconds)
    assert length.seconds * length.nanos >= 0
    bounded = min(max(seconds, -315_576_000_000), 315_576_000_000)
    assert abs(from_duration(length, "x") - bounded) < 1e-4


@pytest.mark.parametrize("length", [math.inf, -math.inf])
def test_for_ever_is_ten_thousand_years(length: float) -> None:
    assert abs(from_duration(duration(length), "x")) == 315_576_000_000


@pytest.mark.parametrize(
    "moment", [Timestamp(seconds=2**62), Timestamp(nanos=-1), Timestamp(nanos=10**9)]
)
def test_a_moment_that_is_none_is_refused(moment: Timestamp) -> None:
    with pytest.raises(InvalidRequest):
        from_timestamp(moment, "x")


@pytest.mark.parametrize(
    "length", [Duration(seconds=2**62), Duration(seconds=1, nanos=-1), Duration(nanos=10**9)]
)
def test_a_length_of_time_that_is_none_is_refused(length: Duration) -> None:
    with pytest.raises(InvalidRequest):
        from_duration(length, "x")
