"""What callers and agents hand to each other, as Python values.

Owns the types that a payload can hold and the one rule for what may travel: everything that leaves
an agent becomes plain JSON, text or bytes here, as a fresh copy, or is refused by name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pydantic_core import to_jsonable_python

__all__ = ["MAX_DEPTH", "Blob", "Content", "JsonValue", "as_content", "jsonable"]

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]

# Protobuf parsers stop at 100 nested messages; one JSON object takes three, the frames around it
# five.
MAX_DEPTH = 30

# Numbers travel as doubles, which hold every whole number up to here and not all beyond.
_EXACT = 2**53


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes, and the media type that says what they are."""

    data: bytes
    content_type: str = "application/octet-stream"


Content = JsonValue | Blob  # None: nothing; str: plain text


def as_content(value: object) -> Content:
    """What a handler returned, as it travels. Raises TypeError naming what cannot."""
    if type(value) is str:
        if not value.isascii():
            _check_text(value)
        return value
    if isinstance(value, Blob):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return Blob(bytes(value))
    return jsonable(value)


def jsonable(value: object) -> JsonValue:
    """A fresh plain JSON value, equal to `value`; models, dataclasses, dates, enums and sets are
    turned into what JSON has for them, bytes into URL-safe base64 text.

    Raises TypeError naming what cannot travel: unknown types, circles, NaN and infinities, whole
    numbers beyond 2**53, text that is no Unicode, more than MAX_DEPTH levels.
    """
    try:
        plain: JsonValue = to_jsonable_python(value, bytes_mode="base64")
    except Exception as fault:  # a serializer of the author's may raise anything
        raise TypeError(f"{type(value).__name__} cannot travel as JSON: {fault}") from fault
    _check(plain, 0)
    return plain


def _check(value: JsonValue, depth: int) -> None:
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError(f"{value} cannot travel: JSON has no such number")
    elif isinstance(value, int):
        if not -_EXACT <= value <= _EXACT:
            raise TypeError("a whole number beyond 2**53 cannot travel exactly; send it as text")
    elif isinstance(value, list | dict):
        if depth == MAX_DEPTH:
            raise TypeError(f"a value with more than {MAX_DEPTH} levels cannot travel")
        for item in value.values() if isinstance(value, dict) else value:
            _check(item, depth + 1)


def _check_text(value: str) -> None:
    if value.isascii():
        return
    try:
        value.encode()
    except UnicodeEncodeError as fault:
        raise TypeError(f"the text is no Unicode at character {fault.start}") from None
