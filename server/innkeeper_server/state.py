"""How an agent's state becomes JSON bytes and comes back.

Owns the codecs, one for each kind of state, and how a class's state type is found. The promise of
all of them: bytes that `dump` returns can be loaded again, a state that did not change gives the
same bytes, and what is loaded shares nothing with anybody.

Typed states are written and read by field name, whatever aliases they have.
"""

from __future__ import annotations

import json
from typing import Any, Protocol, TypeVar, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from innkeeper_server.agent import Agent
from innkeeper_server.arguments import invalid
from innkeeper_server.content import JsonValue
from innkeeper_server.errors import InvalidRequest

__all__ = ["StateCodec", "codec_for", "state_type"]

_FIELD = "state"


class StateCodec(Protocol):
    """One kind of state. `schema` is its JSON schema, None where there is none."""

    @property
    def stateful(self) -> bool: ...
    @property
    def schema(self) -> dict[str, Any] | None: ...

    def initial(self) -> Any:
        """The state of a new agent."""

    def dump(self, state: Any, known: bytes | None = None) -> bytes | None:
        """JSON bytes; `known` itself if the state is still what those bytes hold.

        Raises TypeError naming what would not come back from the store.
        """

    def load(self, data: bytes) -> Any:
        """The state that `dump` wrote; raises ValueError, without values, if it does not fit."""

    def parse(self, value: JsonValue) -> Any:
        """A state from a caller's JSON; raises InvalidRequest."""


class NoState:
    """For agents that keep nothing."""

    stateful = False
    schema = None

    def initial(self) -> None:
        return None

    def dump(self, state: Any, known: bytes | None = None) -> None:
        return None

    def load(self, data: bytes) -> None:
        return None

    def parse(self, value: JsonValue) -> None:
        raise InvalidRequest.of(_FIELD, "this type of agent keeps no state")


class DictState:
    """A dictionary of JSON values. Anything else (a set, a tuple, a date, a key that is no text)
    would come back as something else, and is refused when it would be committed."""

    stateful = True
    schema = None

    def initial(self) -> dict[str, Any]:
        return {}

    def dump(self, state: Any, known: bytes | None = None) -> bytes:
        if type(state) is not dict:
            raise TypeError(f"the state is a {type(state).__name__}, not a dict")
        try:
            text = json.dumps(state, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            data = text.encode()
            if data == known:
                return known
            kept = json.loads(text) == state
        except (TypeError, ValueError, RecursionError) as fault:
            raise TypeError(f"a dict state holds JSON values only: {fault}") from fault
        if not kept:
            where = _changed(state, json.loads(text), "state")
            raise TypeError(f"{where} is no JSON value and would not come back as it is")
        return data

    def load(self, data: bytes) -> dict[str, Any]:
        state = json.loads(data)
        if not isinstance(state, dict):
            raise ValueError("state: must be a JSON object")
        return state

    def parse(self, value: JsonValue) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise InvalidRequest.of(_FIELD, "must be a JSON object")
        return self.load(_to_bytes(value))


class TypedState:
    """A pydantic model, a dataclass, or another type that pydantic knows and that begins empty."""

    stateful = True

    def __init__(self, kind: Any) -> None:
        self._make = get_origin(kind) or kind
        self._adapter: TypeAdapter[Any] = TypeAdapter(kind)
        self._write = self._adapter.serializer.to_json  # looked up once: every turn needs it
        self._class = type(self._make())
        self.schema: dict[str, Any] | None = self._describe()
        # Sets have no order: the same one may be written in another after it was loaded.
        self._unordered = '"uniqueItems": true' in json.dumps(self.schema)

    def initial(self) -> Any:
        return self._make()

    def dump(self, state: Any, known: bytes | None = None) -> bytes:
        if type(state) is not self._class:
            raise TypeError(f"the state is a {type(state).__name__}, not a {self._class.__name__}")
        try:
            data = self._write(state, round_trip=True, by_alias=False, warnings="error")
        except Exception as fault:
            raise TypeError(f"the state cannot become JSON: {fault}") from fault
        if known is not None and (data == known or self._same(state, known)):
            return known
        # Nothing checks assignments to a state. Better that this turn fails than that the agent
        # can never start again.
        try:
            self.load(data)
        except ValueError as fault:
            raise TypeError(f"the state would not come back: {fault}") from None
        return data

    def load(self, data: bytes) -> Any:
        try:
            return self._adapter.validate_json(data, by_alias=False, by_name=True)
        except ValidationError as fault:
            raise ValueError(invalid(fault, _FIELD).message) from None

    def parse(self, value: JsonValue) -> Any:
        try:
            return self._adapter.validate_json(_to_bytes(value), by_alias=False, by_name=True)
        except ValidationError as fault:
            raise invalid(fault, _FIELD) from None

    def _same(self, state: Any, known: bytes) -> bool:
        return self._unordered and bool(self.load(known) == state)

    def _describe(self) -> dict[str, Any] | None:
        try:
            return self._adapter.json_schema(by_alias=False)
        except Exception:  # a type that JSON schema has no words for
            return None


def codec_for(agent_class: type[Agent[Any]]) -> StateCodec:
    """The codec for a class's state. Raises ValueError if no state could begin or be kept."""
    kind = state_type(agent_class)
    if kind is type(None):
        return NoState()
    if kind is dict or kind in (dict[str, Any], dict[str, object]):
        return DictState()
    name = f"the state of {agent_class.__name__}, {getattr(kind, '__name__', kind)},"
    try:
        codec = TypedState(kind)
        codec.dump(codec.initial())
    except Exception as fault:
        raise ValueError(f"{name} must be JSON, and be made without arguments: {fault}") from fault
    return codec


def state_type(agent_class: type[Any]) -> Any:
    """What stands in `Agent[...]` of the class or the ancestor that says it; dict if none does."""
    found = _argument(agent_class, {})
    return dict if found is None else found


def _argument(klass: Any, bound: dict[Any, Any]) -> Any:
    """What the bases of a class, whose type variables are `bound`, give to `Agent`; None if
    nothing."""
    for base in klass.__dict__.get("__orig_bases__", klass.__bases__):
        origin = get_origin(base) or base
        if not (isinstance(origin, type) and issubclass(origin, Agent)):
            continue
        given = [bound.get(each, each) for each in get_args(base)]
        if origin is not Agent:
            given = [
                _argument(
                    origin, dict(zip(getattr(origin, "__parameters__", ()), given, strict=False))
                )
            ]
        if given and given[0] is not None and not isinstance(given[0], TypeVar):
            return given[0]
    return None


def _to_bytes(value: JsonValue) -> bytes:
    return json.dumps(value).encode()


def _changed(before: Any, after: Any, where: str) -> str:
    """Where a value and its copy by JSON part."""
    if type(before) is dict and type(after) is dict and list(before) == list(after):
        for name in before:
            if before[name] != after[name]:
                return _changed(before[name], after[name], f"{where}[{name!r}]")
    if type(before) is list and type(after) is list and len(before) == len(after):
        for place, (old, new) in enumerate(zip(before, after, strict=True)):
            if old != new:
                return _changed(old, new, f"{where}[{place}]")
    return where
