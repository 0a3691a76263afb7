"""Python values to payloads and back."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper_client import Blob
from innkeeper_client.values import MAX_DEPTH, from_payload, to_payload, to_value

texts = st.text(st.characters(exclude_categories=["Cs"]))
numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | texts
documents = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=20
)


@given(documents | st.binary())
def test_every_value_comes_back_equal(value: Any) -> None:
    wire = to_payload(value).SerializeToString()
    back = from_payload(type(to_payload(None)).FromString(wire))
    assert back == value


@pytest.mark.parametrize(("sent", "kind"), [(3, int), (3.0, int), (3.5, float), (1e300, float)])
def test_integral_numbers_come_back_as_int_where_that_is_exact(sent: float, kind: type) -> None:
    back = from_payload(to_payload([sent]))[0]
    assert back == sent
    assert type(back) is kind


def test_true_is_not_one() -> None:
    assert from_payload(to_payload([True, 1])) == [True, 1]
    assert from_payload(to_payload([True]))[0] is True


def test_bytes_know_their_type() -> None:
    blob = from_payload(to_payload(Blob(b"\x89PNG", "image/png")))
    assert (blob, blob.content_type) == (b"\x89PNG", "image/png")
    assert from_payload(to_payload(bytearray(b"x"))).content_type == "application/octet-stream"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": [1, {2}]}, r"value\.a\[1\]: set"),
        ({"a": {3: "x"}}, r"value\.a: the key 3"),
        ([math.nan], r"value\[0\]: nan"),
        ([math.inf], r"value\[0\]: inf"),
        ({"big": 2**53 + 1}, r"value\.big: 9007199254740993 is too large"),
        (object(), "object is not a JSON value"),
        ([b"bytes inside"], r"value\[0\]: bytes"),
    ],
)
def test_what_cannot_travel_is_named(value: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        to_payload(value)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"x": value}
    return value


def test_the_deepest_value_that_is_sent_can_be_read_inside_a_frame() -> None:
    invoke = agent_pb.InvokeRequest(input=to_payload(nested(MAX_DEPTH)))
    frames = agent_pb.SessionRequest(frames=[agent_pb.ClientFrame(invoke=invoke)])
    back = agent_pb.SessionRequest.FromString(frames.SerializeToString())
    assert from_payload(back.frames[0].invoke.input) == nested(MAX_DEPTH)


def test_deeper_values_are_refused_here() -> None:
    with pytest.raises(ValueError, match="nested deeper than 30"):
        to_value(nested(MAX_DEPTH + 1))
