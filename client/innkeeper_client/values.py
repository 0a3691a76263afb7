"""What travels to and from an agent, as Python values.

Owns the conversion between Python and `Payload`: None, text, bytes, and JSON values. JSON has one
kind of number on the wire; integral ones come back as `int`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from google.protobuf import struct_pb2

from innkeeper.v1 import common_pb2 as common_pb

OCTETS = "application/octet-stream"

# Deeper values would pass here and be refused by the receiver's parser, which allows 100 nested
# messages; one level of JSON takes up to three.
MAX_DEPTH = 30
# Numbers travel as doubles: beyond this an integer would arrive as another one.
_EXACT = 2**53


class Blob(bytes):
    """Bytes that know their media type, as `content_type`."""

    content_type: str

    def __new__(cls, data: bytes, content_type: str = OCTETS) -> Blob:
        blob = super().__new__(cls, data)
        blob.content_type = content_type
        return blob


def to_payload(value: object) -> common_pb.Payload:
    """Pack a value. TypeError or ValueError names the part that cannot travel."""
    if value is None:
        return common_pb.Payload()
    if isinstance(value, str):
        return common_pb.Payload(text=value)
    if isinstance(value, Blob):
        return common_pb.Payload(data=bytes(value), content_type=value.content_type)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return common_pb.Payload(data=bytes(value))
    return common_pb.Payload(json=to_value(value))


def from_payload(payload: common_pb.Payload) -> Any:
    """Unpack: None, str, Blob (which is bytes), or a JSON value."""
    match payload.WhichOneof("content"):
        case "json":
            return from_value(payload.json)
        case "text":
            return payload.text
        case "data":
            return Blob(payload.data, payload.content_type or OCTETS)
    return None


def to_value(value: object, path: str = "value") -> struct_pb2.Value:
    """A JSON value as `google.protobuf.Value`; TypeError or ValueError names the part at fault."""
    target = struct_pb2.Value()
    _fill(target, value, path, MAX_DEPTH)
    return target


def _fill(target: struct_pb2.Value, value: object, path: str, depth: int) -> None:
    if depth < 0:
        raise ValueError(f"{path}: nested deeper than {MAX_DEPTH} levels")
    if value is None:
        target.null_value = struct_pb2.NULL_VALUE
    elif isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, (int, float)):
        target.number_value = _number(value, path)
    elif isinstance(value, str):
        target.string_value = value
    elif isinstance(value, Mapping):
        _fill_struct(target.struct_value, value, path, depth)
    elif isinstance(value, (list, tuple)):
        target.list_value.SetInParent()
        for index, item in enumerate(value):
            _fill(target.list_value.values.add(), item, f"{path}[{index}]", depth - 1)
    else:
        raise TypeError(f"{path}: {type(value).__name__} is not a JSON value")


def _fill_struct(
    target: struct_pb2.Struct, value: Mapping[Any, object], path: str, depth: int
) -> None:
    target.SetInParent()
    for name, item in value.items():
        if not isinstance(name, str):
            raise TypeError(f"{path}: the key {name!r} is not a string")
        _fill(target.fields[name], item, f"{path}.{name}", depth - 1)


def _number(value: int | float, path: str) -> float:
    if isinstance(value, int) and abs(value) > _EXACT:
        raise ValueError(f"{path}: {value} is too large to travel exactly; send it as text")
    if not math.isfinite(value):
        raise ValueError(f"{path}: {value} is not a JSON number")
    return float(value)


def from_value(value: struct_pb2.Value) -> Any:
    """The Python form of a JSON value; unset reads as None."""
    match value.WhichOneof("kind"):
        case "number_value":
            number = value.number_value
            exact = number.is_integer() and abs(number) <= _EXACT
            return int(number) if exact else number
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "struct_value":
            return from_struct(value.struct_value)
        case "list_value":
            return [from_value(item) for item in value.list_value.values]
    return None


def from_struct(struct: struct_pb2.Struct) -> dict[str, Any]:
    """The Python form of a JSON object, its members by name: the wire keeps no order."""
    return {name: from_value(struct.fields[name]) for name in sorted(struct.fields)}
