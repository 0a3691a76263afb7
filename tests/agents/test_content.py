"""What may travel, and as what."""

import datetime
import enum
import math
from dataclasses import dataclass
from typing import Any

import pytest
from google.protobuf import json_format, struct_pb2
from pydantic import BaseModel

from innkeeper_server.content import MAX_DEPTH, Blob, as_content, jsonable


class Colour(enum.StrEnum):
    RED = "red"


class Room(BaseModel):
    number: int
    colour: Colour


@dataclass
class Bill:
    cents: int


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (None, None),
        (True, True),
        (7, 7),
        (0.5, 0.5),
        ("Zimmer für Ada", "Zimmer für Ada"),
        ([1, (2, 3)], [1, [2, 3]]),
        ({1: "one"}, {"1": "one"}),
        (Room(number=7, colour=Colour.RED), {"number": 7, "colour": "red"}),
        (Bill(250), {"cents": 250}),
        (datetime.date(2026, 5, 1), "2026-05-01"),
        (b"\xff\x00", "_wA="),
        (2**53, 2**53),
    ],
)
def test_what_json_has_a_form_for_becomes_plain_json(value: object, plain: object) -> None:
    assert jsonable(value) == plain
    assert type(jsonable(value)) is type(plain)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (object(), "object"),
        ([{"a": lambda: 0}], "function"),
        (math.nan, "nan"),
        ({"price": [math.inf]}, "inf"),
        (2**53 + 1, "2\\*\\*53"),
        ("half a \ud83d", "no Unicode at character 7"),
        ({"\udc00": 1}, "surrogates not allowed"),
        (ValueError("x"), "ValueError"),
    ],
)
def test_what_cannot_travel_is_refused_by_name(value: object, named: str) -> None:
    with pytest.raises(TypeError, match=named):
        jsonable(value)


def test_a_circle_is_refused() -> None:
    circle: list[object] = []
    circle.append(circle)
    with pytest.raises(TypeError, match="list cannot travel"):
        jsonable(circle)


def _nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = {"a": value}
    return value


def test_the_deepest_value_that_may_travel_can_be_parsed_by_the_other_side() -> None:
    deepest: Any = jsonable(_nested(MAX_DEPTH))
    message = struct_pb2.Value()
    json_format.ParseDict(deepest, message)
    frames = struct_pb2.Value(list_value=struct_pb2.ListValue(values=[message]))  # two levels more
    frames = struct_pb2.Value(list_value=struct_pb2.ListValue(values=[frames]))
    assert struct_pb2.Value.FromString(frames.SerializeToString()) == frames
    with pytest.raises(TypeError, match="levels"):
        jsonable(_nested(MAX_DEPTH + 1))


def test_what_travels_is_a_copy() -> None:
    notes = [["towels"]]
    sent = jsonable(notes)
    notes[0].append("soap")
    assert sent == [["towels"]]


def test_bytes_travel_as_a_blob_and_a_blob_as_it_is() -> None:
    picture = Blob(b"\x89PNG", "image/png")
    assert as_content(picture) is picture
    assert as_content(bytearray(b"raw")) == Blob(b"raw", "application/octet-stream")
    assert as_content({"n": 1}) == {"n": 1}
