"""What a handler takes, read once from its signature, and requests checked against it.

Owns the way from a payload to Python arguments:

* a JSON object holds an action's arguments by name;
* text, bytes, a list, a number or a truth value is the one argument of an action that has exactly
  one parameter, or exactly one without a default;
* nothing means no arguments.

Values are checked by JSON's rules (so that a strict model takes a date as text) and are copies:
nothing is shared between who asks and who is asked. Refusals name fields and never repeat values.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from inspect import Parameter
from types import SimpleNamespace
from typing import Annotated, Any, NotRequired, Required

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, to_json
from typing_extensions import TypedDict

from innkeeper_server.content import Blob, Content, JsonValue, jsonable
from innkeeper_server.errors import InvalidRequest

__all__ = ["MAX_VIOLATIONS", "Arguments", "Message", "invalid", "parameters"]

MAX_VIOLATIONS = 8
_MAX_WORDS = 200  # characters of one description, and of one field's path
_MAX_NAME = 64

_WORDS = {
    "missing": "is required",
    "extra_forbidden": "is not expected",
    "union_tag_invalid": "has an unknown tag",  # pydantic's own words repeat the tag
}
_PREFIXES = ("Input ", "Value error, ", "Assertion failed, ")


_PLAIN = frozenset({str, int, float, bool})


class Arguments:
    """The arguments of an action. Raises ValueError for parameters that cannot travel by name."""

    def __init__(self, name: str, takes: list[Parameter]) -> None:
        self.name = name
        for parameter in takes:
            _check_travels(name, parameter)
        self._adapter = _adapter(_shape(name, takes), f"the arguments of {name}")
        self._lone = _lone(takes)
        self._plain = {each.name: each.annotation for each in takes}
        self.schema = _schema(self._adapter)

    def bind(self, input: Content, field: str) -> dict[str, Any]:
        """The keyword arguments that `input` stands for. Raises InvalidRequest naming `field`."""
        if isinstance(input, dict):
            if self._fits(input):
                return dict(input)
            return _json(self._adapter, input, field)  # type: ignore[no-any-return]
        if input is None:
            return _json(self._adapter, {}, field)  # type: ignore[no-any-return]
        if self._lone is None:
            raise InvalidRequest.of(
                field, f"must be a JSON object with the arguments of {self.name} by name"
            )
        if isinstance(input, Blob):
            given = {self._lone.name: _opened(input, self._lone)}
            return _python(self._adapter, given, field)  # type: ignore[no-any-return]
        return _json(self._adapter, {self._lone.name: input}, field)  # type: ignore[no-any-return]

    def _fits(self, given: dict[str, JsonValue]) -> bool:
        """Whether each parameter is given, and what each asks for is just the plain type of what it
        is given: then a check would find nothing and change nothing."""
        plain = self._plain
        if len(given) != len(plain):
            return False
        for name, value in given.items():
            kind = type(value)
            if kind not in _PLAIN or plain.get(name) is not kind:
                return False
        return True


class Message:
    """The message that `chat` and its like take: their first parameter.

    `turn_name` is the second one, if it asks for the turn. Raises ValueError for a signature that
    takes no message, or needs more than the two.
    """

    def __init__(self, name: str, takes: list[Parameter]) -> None:
        first, second = [*takes, None, None][:2]
        if first is None or first.kind not in _POSITIONAL or any(map(_needed, takes[2:])):
            raise ValueError(f"{name} must take a message, or a message and the turn")
        self.parameter = first
        asks = second is not None and (_needed(second) or second.name == "turn")
        self.turn_name = second.name if second is not None and asks else None
        self._adapter = _adapter(self.parameter.annotation, f"the message of {name}")

    def bind(self, message: Content, field: str) -> tuple[Any, ...]:
        """The message as the handler wants it; raises InvalidRequest naming `field`."""
        if message is None and not _needed(self.parameter):
            return (self.parameter.default,)
        if isinstance(message, Blob):
            return (_python(self._adapter, _opened(message, self.parameter), field),)
        if isinstance(message, str):  # a text is the same by both rules; spare it the way by JSON
            return (_python(self._adapter, message, field),)
        return (_json(self._adapter, message, field),)


_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def parameters(function: Callable[..., Any], *, method: bool) -> list[Parameter]:
    """What callers give to a function, with annotations resolved; a method's `self` is left out.

    Raises ValueError where an annotation names something unknown.
    """
    try:
        takes = list(inspect.signature(function).parameters.values())[1 if method else 0 :]
        written = {
            each.name: each.annotation for each in takes if each.annotation is not each.empty
        }
        hints = typing.get_type_hints(
            SimpleNamespace(__annotations__=written),  # the return type does not matter here
            globalns=getattr(inspect.unwrap(function), "__globals__", {}),
            include_extras=True,
        )
    except Exception as fault:
        raise ValueError(f"an annotation of {function.__qualname__}: {fault}") from fault
    return [each.replace(annotation=hints.get(each.name, Any)) for each in takes]


def invalid(fault: ValidationError, field: str) -> InvalidRequest:
    """What pydantic found, by field and without the values; the first MAX_VIOLATIONS of it."""
    found = fault.errors(include_url=False, include_context=False, include_input=False)
    listed = tuple((_path(field, error["loc"]), _words(error)) for error in found[:MAX_VIOLATIONS])
    text = "; ".join(f"{where}: {what}" for where, what in listed)
    more = len(found) - len(listed)
    return InvalidRequest(f"{text}; and {more} more" if more else text, violations=listed)


def _shape(name: str, named: list[Parameter]) -> Any:
    """A typed dictionary with the parameters as items: it takes any name, and leaves the default
    of what was not given to the function."""
    # The functional form wants literals for a type checker; here it is made from a signature.
    shape = TypedDict(name, {each.name: _item(each) for each in named})  # type: ignore
    return with_config(ConfigDict(extra="forbid", title=name))(shape)


def _item(parameter: Parameter) -> Any:
    if _needed(parameter):
        return Required[parameter.annotation]
    try:
        shown = Field(json_schema_extra={"default": jsonable(parameter.default)})
    except TypeError:
        return NotRequired[parameter.annotation]
    return NotRequired[Annotated[parameter.annotation, shown]]


def _check_travels(name: str, parameter: Parameter) -> None:
    if parameter.kind not in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY):
        raise ValueError(f"{name}: arguments travel by name, and {parameter} has none to go by")
    if isinstance(parameter.default, FieldInfo):
        raise ValueError(
            f"{name}: write {parameter.name}: Annotated[..., Field(...)] = default, "
            "so that the default is a value"
        )


def _needed(parameter: Parameter) -> bool:
    variable = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return parameter.default is Parameter.empty and parameter.kind not in variable


def _lone(named: list[Parameter]) -> Parameter | None:
    """The parameter that a single value is meant for."""
    needed = [each for each in named if _needed(each)]
    for candidates in (named, needed):
        if len(candidates) == 1:
            return candidates[0]
    return None


def _opened(blob: Blob, parameter: Parameter) -> object:
    """The blob where the parameter takes one or anything, else its bytes."""
    takes = (parameter.annotation, *typing.get_args(parameter.annotation))
    return blob if any(each in (Blob, Any, object) for each in takes) else blob.data


def _adapter(annotation: Any, what: str) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(annotation)
    except Exception as fault:
        raise ValueError(f"{what} cannot be checked: {fault}") from fault


def _schema(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    try:
        return adapter.json_schema()
    except Exception:  # a type that JSON schema has no words for
        return {"type": "object"}


def _json(adapter: TypeAdapter[Any], value: JsonValue, field: str) -> Any:
    try:
        written = to_json(value)
    except Exception:  # a nested call can bring anything
        raise InvalidRequest.of(field, "holds something that JSON has no words for") from None
    try:
        return adapter.validator.validate_json(written)
    except ValidationError as fault:
        raise invalid(fault, field) from None


def _python(adapter: TypeAdapter[Any], value: object, field: str) -> Any:
    try:
        return adapter.validate_python(value)
    except ValidationError as fault:
        raise invalid(fault, field) from None


def _path(field: str, place: tuple[int | str, ...]) -> str:
    parts = [f"[{part}]" if isinstance(part, int) else f".{_shown(part)}" for part in place]
    return (field + "".join(parts))[:_MAX_WORDS]


def _shown(name: str) -> str:
    """A name that a caller may have chosen, fit for a log line."""
    return "".join(each if each.isprintable() else "?" for each in name[:_MAX_NAME])


def _words(error: ErrorDetails) -> str:
    words = _WORDS.get(error["type"]) or error["msg"]
    for prefix in _PREFIXES:
        words = words.removeprefix(prefix)
    return words[:_MAX_WORDS]
