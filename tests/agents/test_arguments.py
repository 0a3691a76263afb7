"""Requests against signatures: what fits, and how what does not is named."""

import datetime
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from agents_kit import carried_out, made
from pydantic import BaseModel, ConfigDict, Field, field_validator

from innkeeper_server import Agent, Blob, action
from innkeeper_server.errors import HandlerFailed, InvalidRequest
from innkeeper_server.registry import Registry


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    arrival: datetime.date


class Picky(BaseModel):
    code: str

    @field_validator("code")
    @classmethod
    def _known(cls, code: str) -> str:
        return {"a": "A"}[code]


class Fish(BaseModel):
    kind: Literal["fish"]


class Fowl(BaseModel):
    kind: Literal["fowl"]


@dataclass
class Guest:
    name: str
    age: int = 0


class Desk(Agent[None]):
    @action
    async def add(self, n: int = 1, by: str = "nobody") -> Any:
        return [n, by]

    @action
    async def one(self, n: int) -> Any:
        return n

    @action
    async def two(self, a: int, b: int) -> Any:
        return a + b

    @action
    async def nothing(self) -> Any:
        return "done"

    @action
    async def book(self, guest: Guest, nights: Annotated[int, Field(ge=1)] = 1) -> Any:
        assert isinstance(guest, Guest)
        return [guest.name, guest.age, nights]

    @action
    async def strict(self, stay: Strict) -> Any:
        return stay.arrival

    @action
    async def picky(self, picky: Picky) -> Any:
        return picky.code

    @action
    async def dish(self, dish: Annotated[Fish | Fowl, Field(discriminator="kind")]) -> Any:
        return dish.kind

    @action
    async def many(self, numbers: list[int]) -> Any:
        return numbers

    @action
    async def free(self, first, *, model_config: int = 2) -> Any:  # type: ignore[no-untyped-def]
        return [first, model_config]

    @action
    async def keep(self, picture: Blob) -> Any:
        return picture

    @action
    async def size(self, data: bytes) -> Any:
        return len(data)

    @action
    async def whatever(self, value: Any) -> Any:
        return value


DESK, AGENT = made(Desk)


async def invoked(name: str, input: Any) -> Any:
    return (await carried_out(DESK.bind_invoke(name, input), AGENT))[0]


def refused(name: str, input: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        DESK.bind_invoke(name, input)
    return caught.value


@pytest.mark.parametrize(
    ("name", "input", "output"),
    [
        ("add", None, [1, "nobody"]),
        ("add", {}, [1, "nobody"]),
        ("add", {"n": 5}, [5, "nobody"]),
        ("add", {"by": "Ada", "n": "6"}, [6, "Ada"]),
        ("one", 7, 7),
        ("one", "7", 7),
        ("one", {"n": 7}, 7),
        ("nothing", None, "done"),
        ("book", {"guest": {"name": "Ada"}}, ["Ada", 0, 1]),
        ("strict", {"stay": {"arrival": "2026-05-01"}}, "2026-05-01"),
        ("many", [1, 2], [1, 2]),
        ("free", {"first": [1], "model_config": 3}, [[1], 3]),
        ("free", "hello", ["hello", 2]),
        ("keep", Blob(b"p", "image/png"), Blob(b"p", "image/png")),
        ("whatever", Blob(b"p", "image/png"), Blob(b"p", "image/png")),
        ("size", Blob(b"four"), 4),
    ],
)
async def test_what_fits_reaches_the_action(name: str, input: Any, output: Any) -> None:
    assert await invoked(name, input) == output


@pytest.mark.parametrize(
    ("name", "input", "violations"),
    [
        ("add", {"n": "secret"}, [("input.n", "should be a valid integer")]),
        ("add", {"n": 1, "zz": 2}, [("input.zz", "is not expected")]),
        ("one", None, [("input.n", "is required")]),
        ("one", True, None),
        ("two", {"a": 1}, [("input.b", "is required")]),
        ("two", 5, [("input", "must be a JSON object with the arguments of Desk.two by name")]),
        ("nothing", "x", [("input", "must be a JSON object")]),
        ("nothing", {"x": 1}, [("input.x", "is not expected")]),
        ("many", {"numbers": [1, "secret"]}, [("input.numbers[1]", "should be a valid integer")]),
        (
            "book",
            {"guest": {"name": 5}, "nights": 0},
            [("input.guest.name", "should be"), ("input.nights", "should be")],
        ),
        ("dish", {"dish": {"kind": "secret"}}, [("input.dish", "has an unknown tag")]),
        ("keep", "secret", [("input.picture", "")]),
        ("one", {"n": 1, "a\nb" + "c" * 500: 2}, [("input.a?b" + "c" * 61, "is not expected")]),
    ],
)
def test_what_does_not_fit_is_named_without_its_value(
    name: str, input: Any, violations: list[tuple[str, str]] | None
) -> None:
    if violations is None:  # pydantic takes true for 1, and so do we
        DESK.bind_invoke(name, input)
        return
    error = refused(name, input)
    assert "secret" not in str(error) + repr(error.violations)
    assert [field for field, _ in error.violations] == [field for field, _ in violations]
    for (_, said), (_, expected) in zip(error.violations, violations, strict=True):
        assert said.startswith(expected)


def test_only_the_first_eight_of_many_faults_are_named() -> None:
    error = refused("many", {"numbers": ["x"] * 5000})
    assert len(error.violations) == 8
    assert error.violations[-1][0] == "input.numbers[7]"
    assert str(error).endswith("and 4992 more")
    assert len(str(error)) < 2_000


def test_a_validator_that_breaks_is_the_agents_fault_and_its_words_stay_here() -> None:
    with pytest.raises(HandlerFailed) as caught:
        DESK.bind_invoke("picky", {"picky": {"code": "secret"}})
    assert "secret" not in str(caught.value)


async def test_what_an_action_gets_is_a_copy_of_what_the_caller_gave() -> None:
    numbers: list[Any] = [1]
    work = DESK.bind_invoke("whatever", {"value": {"list": numbers}})
    numbers.append(2)
    assert (await carried_out(work, AGENT))[0] == {"list": [1]}


def test_a_nested_caller_that_gives_what_json_cannot_hold_is_told_so() -> None:
    assert refused("whatever", {"value": object()}).violations[0][0] == "input"


def test_the_input_schema_shows_names_types_and_defaults() -> None:
    schema = DESK.actions["add"].input_schema
    assert schema["additionalProperties"] is False
    assert schema["properties"]["n"] == {"default": 1, "title": "N", "type": "integer"}
    assert "required" not in schema
    assert DESK.actions["book"].input_schema["required"] == ["guest"]


class Star(Agent[None]):
    @action
    async def star(self, *numbers: int) -> None: ...


class Stars(Agent[None]):
    @action
    async def stars(self, **numbers: int) -> None: ...


class Slash(Agent[None]):
    @action
    async def slash(self, n: int, /) -> None: ...


class Default(Agent[None]):
    @action
    async def default(self, n: int = Field(1, ge=0)) -> None: ...


class Unknown(Agent[None]):
    @action
    async def unknown(self, n: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821


class Odd:
    pass


class Unchecked(Agent[None]):
    @action
    async def unchecked(self, odd: Odd) -> None: ...


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (Star, r"travel by name, and \*numbers"),
        (Stars, r"travel by name, and \*\*numbers"),
        (Slash, "travel by name, and n"),
        (Default, "write n: Annotated"),
        (Unknown, "Unknown.unknown: name 'Nowhere'"),
        (Unchecked, "Unchecked.unchecked cannot be checked"),
    ],
)
def test_a_signature_that_cannot_be_served_is_refused_when_it_is_registered(
    source: type[Agent[None]], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        Registry().register(source)


async def by_text(message: str) -> str:
    return message


async def by_guest(message: Guest) -> str:
    return message.name


async def by_default(message: str = "hello") -> str:
    return message


async def by_anything(message) -> Any:  # type: ignore[no-untyped-def]
    return message


@pytest.mark.parametrize(
    ("source", "message", "reply"),
    [
        (by_text, "hi", "hi"),
        (by_text, Blob(b"hi"), "hi"),
        (by_guest, {"name": "Ada"}, "Ada"),
        (by_default, None, "hello"),
        (by_anything, {"a": [1]}, {"a": [1]}),
        (by_anything, None, None),
        (by_anything, Blob(b"x"), Blob(b"x")),
    ],
)
async def test_a_message_is_checked_against_the_handlers_first_parameter(
    source: Any, message: Any, reply: Any
) -> None:
    type, agent = made(source)
    assert (await carried_out(type.bind_chat(message), agent))[0] == reply


@pytest.mark.parametrize(
    ("source", "message", "field"),
    [
        (by_text, None, "message"),
        (by_text, {"text": "secret"}, "message"),
        (by_text, 5, "message"),
        (by_text, Blob(b"\xff"), "message"),
        (by_guest, "secret", "message"),
        (by_guest, {}, "message.name"),
    ],
)
def test_a_message_that_does_not_fit_names_the_message(
    source: Any, message: Any, field: str
) -> None:
    type, _ = made(source)
    with pytest.raises(InvalidRequest) as caught:
        type.bind_chat(message)
    assert [each for each, _ in caught.value.violations] == [field]
    assert "secret" not in str(caught.value)
