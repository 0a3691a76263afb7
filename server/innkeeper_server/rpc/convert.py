"""Between the host's values and the messages that carry them, both ways.

Owns how each shape looks on the wire, and the checks without which a message has no meaning. JSON
knows one kind of number, a double: whole ones up to 2**53 come back as `int`, and a larger whole
number leaves as its digits in text, since a double would make another number of it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import NULL_VALUE, Value
from google.protobuf.timestamp_pb2 import Timestamp

from innkeeper.v1 import common_pb2 as common_pb
from innkeeper_server.content import MAX_DEPTH, Blob, Content, JsonValue
from innkeeper_server.errors import InvalidRequest, TooLarge
from innkeeper_server.events import Cancelled, Completed, Custom, Event, Failed, Gap, Text
from innkeeper_server.identity import AgentKey, check_id, check_type
from innkeeper_server.rpc.status import to_status

OCTETS = "application/octet-stream"

_EXACT = 2**53  # doubles hold every whole number up to here
_TIMESTAMPS = range(-62_135_596_800, 253_402_300_800)  # years 1 to 9999, in seconds
_DURATIONS = range(-315_576_000_000, 315_576_000_001)  # 10,000 years either way, in seconds
_NANOS = 1_000_000_000


# -- agents -------------------------------------------------------------------------------------


def agent_key(ref: common_pb.AgentRef, tenant: str, field: str = "agent") -> AgentKey:
    """Whom a reference means. The type may be empty. Raises InvalidRequest."""
    type = ref.type
    if type:
        check_type(type, f"{field}.type")
    return AgentKey(tenant, type, check_id(ref.id, f"{field}.id"))


def agent_ref(key: AgentKey) -> common_pb.AgentRef:
    """An agent as others may name it."""
    return common_pb.AgentRef(type=key.type, id=key.id)


# -- payloads -----------------------------------------------------------------------------------


def from_payload(payload: common_pb.Payload, field: str) -> Content:
    """What a payload holds. Raises InvalidRequest naming `field` for what is no JSON."""
    kind = payload.WhichOneof("content")
    if kind == "json":
        return _read(payload.json, field, MAX_DEPTH)
    if kind == "text":
        return payload.text
    if kind == "data":
        return Blob(payload.data, payload.content_type or OCTETS)
    return None


def to_payload(content: Content) -> common_pb.Payload:
    """A payload with `content`; text travels as text, and None as nothing."""
    payload = common_pb.Payload()
    if isinstance(content, str):
        payload.text = content
    elif isinstance(content, Blob):
        payload.data = content.data
        payload.content_type = content.content_type
    elif content is not None:
        _fill(payload.json, content, MAX_DEPTH)
    return payload


def from_value(value: Value, field: str) -> JsonValue:
    """The JSON value in Python. Raises InvalidRequest naming `field`: more than MAX_DEPTH levels,
    or a number that JSON does not have."""
    return _read(value, field, MAX_DEPTH)


def to_value(value: JsonValue) -> Value:
    """A JSON value as a message. Raises TooLarge for one with more than MAX_DEPTH levels, which
    the receiver's parser would refuse."""
    target = Value()
    _fill(target, value, MAX_DEPTH)
    return target


def _read(value: Value, field: str, levels: int) -> JsonValue:
    kind = value.WhichOneof("kind")
    if kind == "string_value":
        return value.string_value
    if kind == "number_value":
        return _number(value.number_value, field)
    if kind == "bool_value":
        return value.bool_value
    if kind == "struct_value":
        if levels == 0:
            raise _too_deep(field)
        fields = value.struct_value.fields  # its `items` would be read by way of Python
        return {name: _read(fields[name], field, levels - 1) for name in fields}
    if kind == "list_value":
        if levels == 0:
            raise _too_deep(field)
        return [_read(item, field, levels - 1) for item in value.list_value.values]
    return None


def _too_deep(field: str) -> InvalidRequest:
    return InvalidRequest.of(field, f"has more than {MAX_DEPTH} levels")


def _number(number: float, field: str) -> int | float:
    if number.is_integer():
        return int(number) if -_EXACT <= number <= _EXACT else number
    if not math.isfinite(number):
        raise InvalidRequest.of(field, f"holds {number}, which is no JSON number")
    return number


def _fill(target: Value, value: JsonValue, levels: int) -> None:
    if isinstance(value, str):
        target.string_value = value
    elif value is None:
        target.null_value = NULL_VALUE
    elif isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, int):
        if -_EXACT <= value <= _EXACT:
            target.number_value = value
        else:
            target.string_value = str(value)
    elif isinstance(value, float):
        if math.isfinite(value):
            target.number_value = value
        else:
            target.string_value = str(value)
    elif levels == 0:
        raise TooLarge(f"the value has more than {MAX_DEPTH} levels")
    elif isinstance(value, dict):
        target.struct_value.SetInParent()
        fields = target.struct_value.fields
        for name, item in value.items():
            _fill(fields[name], item, levels - 1)
    else:
        target.list_value.SetInParent()
        add = target.list_value.values.add
        for item in value:
            _fill(add(), item, levels - 1)


# -- events -------------------------------------------------------------------------------------


def to_event(event: Event) -> common_pb.Event:
    """One thing that a turn said."""
    message = common_pb.Event()
    cursor = message.cursor
    cursor.epoch, cursor.turn_id, cursor.seq = event.epoch, event.turn_id, event.seq
    body = event.body
    if isinstance(body, Text):
        message.text_delta = body.delta
    elif isinstance(body, Custom):
        message.custom.name = body.name
        _fill(message.custom.data, body.data, MAX_DEPTH)
    elif isinstance(body, Completed):
        message.completed.output.CopyFrom(to_payload(body.output))
    elif isinstance(body, Failed):
        message.failed.status.CopyFrom(to_status(body.error))
    elif isinstance(body, Gap):
        message.gap.missed = body.missed
    else:
        assert isinstance(body, Cancelled), f"an event of an unknown kind: {body!r}"
        message.cancelled.reason = body.reason
    return message


def from_cursor(cursor: common_pb.Cursor, field: str) -> tuple[str, int]:
    """The turn and the number of an event. Raises InvalidRequest naming `field`."""
    if not cursor.turn_id:
        raise InvalidRequest.of(f"{field}.turn_id", "is required")
    if cursor.seq < 0:
        raise InvalidRequest.of(f"{field}.seq", "must not be negative")
    return check_id(cursor.turn_id, f"{field}.turn_id"), cursor.seq


# -- time ---------------------------------------------------------------------------------------


def timestamp(unix: float) -> Timestamp:
    """A moment, from seconds since 1970."""
    seconds, rest = divmod(unix, 1)
    return Timestamp(seconds=int(seconds), nanos=int(rest * _NANOS))


def from_timestamp(moment: Timestamp, field: str) -> float:
    """A moment in seconds since 1970. Raises InvalidRequest naming `field`."""
    if moment.seconds not in _TIMESTAMPS or not 0 <= moment.nanos < _NANOS:
        raise InvalidRequest.of(field, "is no valid timestamp")
    return moment.seconds + moment.nanos / _NANOS


def on_loop_clock(unix: float, now: Callable[[], float] = time.time) -> float:
    """A moment of the world's clock on the loop's, in seconds."""
    return asyncio.get_running_loop().time() + unix - now()


def duration(seconds: float) -> Duration:
    """A length of time. Beyond 10,000 years it is that long."""
    bounded = min(max(seconds, float(_DURATIONS[0])), float(_DURATIONS[-1]))
    rest, whole = math.modf(bounded)
    return Duration(seconds=int(whole), nanos=int(rest * _NANOS))


def from_duration(length: Duration, field: str) -> float:
    """A length of time in seconds. Raises InvalidRequest naming `field`."""
    fits = length.seconds in _DURATIONS and -_NANOS < length.nanos < _NANOS
    if not fits or length.seconds * length.nanos < 0:
        raise InvalidRequest.of(field, "is no valid duration")
    return length.seconds + length.nanos / _NANOS
