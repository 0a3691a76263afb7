"""Classes and functions as types: what they offer, how instances are made, who is refused."""

import tracemalloc
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from functools import wraps
from typing import Any

import pytest
from agents_kit import KEY, NoHost, carried_out, made
from pydantic import BaseModel

from innkeeper_server import Agent, action
from innkeeper_server.errors import NoHandler
from innkeeper_server.identity import AgentKey
from innkeeper_server.registry import Registry


class Inn(Agent[dict[str, Any]]):
    """Takes guests
    in.

    And lets them go.
    """

    @action
    async def enter(self, guest: str) -> str:
        """Let a guest in.

        At any hour.
        """
        return f"inn: {guest}"

    @action(name="check-out")
    async def leave(self, guest: str) -> str:
        return f"bye {guest}"

    @action
    async def close(self) -> None: ...

    async def secret(self) -> None: ...


class GrandInn(Inn):
    close = None  # type: ignore[assignment]

    async def enter(self, guest: str, suite: int = 1) -> str:  # overridden without the mark
        return f"suite {suite}: {guest}"


async def test_actions_are_inherited_overridden_and_removed() -> None:
    assert sorted(made(Inn)[0].actions) == ["check-out", "close", "enter"]
    type, agent = made(GrandInn)
    assert sorted(type.actions) == ["check-out", "enter"]
    bound = type.bind_invoke("enter", {"guest": "Ada", "suite": 7})
    assert bound.handler == "GrandInn.enter"
    assert (await carried_out(bound, agent))[0] == "suite 7: Ada"


def test_the_catalog_gets_the_first_paragraph_of_each_documentation() -> None:
    type, _ = made(Inn)
    assert type.description == "Takes guests in."
    assert type.actions["enter"].description == "Let a guest in."
    assert type.actions["check-out"].description == ""
    assert made(GrandInn)[0].description == ""  # a base's words are not this class's
    assert made(GrandInn)[0].actions["enter"].description == "Let a guest in."
    assert not type.has_chat


@pytest.mark.parametrize("name", ["secret", "leave", "nothing", "__init__", "state", "on_start"])
def test_what_is_not_marked_cannot_be_invoked(name: str) -> None:
    type, _ = made(Inn)
    with pytest.raises(NoHandler, match="they have: check-out, close, enter") as caught:
        type.bind_invoke(name, None)
    assert caught.value.metadata == {"agent_type": "inn"}


def test_a_missing_handler_says_what_there_is() -> None:
    type, _ = made(Inn)
    with pytest.raises(NoHandler, match="no invoke of their own; they have"):
        type.bind_invoke("", None)
    for bind, kind in (
        (type.bind_chat, "chat"),
        (type.bind_followup, "followup"),
        (type.bind_message, "message"),
    ):
        with pytest.raises(NoHandler, match=f"take no {kind}"):
            bind("hi")
    with pytest.raises(NoHandler) as caught:
        type.bind_invoke("x" * 10_000, None)
    assert len(str(caught.value)) < 300


class Direct(Agent[None]):
    async def invoke(self, question: str = "why") -> str:
        return f"because {question}"


async def test_invoke_is_meant_where_no_action_is_named() -> None:
    type, agent = made(Direct)
    for action_ in ("", "invoke"):
        assert (await carried_out(type.bind_invoke(action_, None), agent))[0] == "because why"
    assert list(type.actions) == ["invoke"]


async def words(message: str) -> AsyncIterator[str]:
    """Says words."""
    for word in message.split():
        yield word


def test_a_function_is_a_type_without_state() -> None:
    type, agent = made(words)
    assert (type.name, type.description, type.has_chat, type.stateful) == (
        "words",
        "Says words.",
        True,
        False,
    )
    assert list(type.actions) == ["invoke"]
    assert type.dump(agent) is None


class Ready(Agent[dict[str, Any]]):
    def __init__(self) -> None:
        self.seen = (self.id, dict(self.state), self.host)
        self.state = {"lost": True}  # a mistake that must not lose what was stored

    async def on_start(self) -> None:
        self.state["started"] = True

    def on_stop(self, reason: str) -> None:  # type: ignore[override]
        self.state["stopped"] = reason


async def test_init_sees_key_state_and_host_and_cannot_replace_the_state() -> None:
    type = Registry().register(Ready)
    host = NoHost()
    agent = type.create(KEY, host, b'{"kept":1}')
    assert agent.seen == ("a", {"kept": 1}, host)
    assert agent.state == {"kept": 1}


async def test_hooks_run_where_they_are_written() -> None:
    type, agent = made(Ready)
    await type.start(agent)
    await type.stop(agent, "idle")
    assert agent.state == {"started": True, "stopped": "idle"}
    plain_type, plain = made(Inn)
    await plain_type.start(plain)
    await plain_type.stop(plain, "idle")


def logged(method: Any) -> Any:
    @wraps(method)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        calls.append(method.__name__)
        return method(*args, **kwargs)

    return wrapper


calls: list[str] = []


class Decorated(Agent[None]):
    @action
    @logged
    async def outside(self, n: int) -> int:
        return n

    @logged
    @action
    async def inside(self, n: int) -> int:
        return n


async def test_decorators_of_the_author_keep_the_signature_and_the_mark() -> None:
    type, agent = made(Decorated)
    for name in ("outside", "inside"):
        assert (await carried_out(type.bind_invoke(name, "5"), agent))[0] == 5
        assert calls.pop() == name


class Twice(Agent[None]):
    @action(name="same")
    async def one(self) -> None: ...

    @action(name="same")
    async def other(self) -> None: ...


class Static(Agent[None]):
    @staticmethod
    @action
    def static() -> None: ...


class Streams(Agent[None]):
    @action
    async def streams(self) -> AsyncIterator[str]:
        yield ""


class PlainGenerator(Agent[None]):
    def chat(self, message: str) -> Iterator[str]:
        yield message


class Deaf(Agent[None]):
    async def chat(self) -> str:
        return ""


class Greedy(Agent[None]):
    async def chat(self, message: str, turn: Any, more: str) -> str:
        return ""


class Demanding(Agent[None]):
    def __init__(self, thing: str) -> None: ...


class Unfinished(Agent[None], ABC):
    @abstractmethod
    async def chat(self, message: str) -> str: ...


class Finished(Unfinished):
    async def chat(self, message: str) -> str:
        return message


class Starts(Agent[None]):
    async def on_start(self) -> Any:
        yield


class Property(Agent[None]):
    chat = property(lambda self: None)


@pytest.mark.parametrize(
    ("source", "words_"),
    [
        (Twice, "two actions called 'same'"),
        (Static, "Static.static must be a plain method"),
        (Streams, "Streams.streams is a generator; an action returns one value"),
        (PlainGenerator, "PlainGenerator.chat is a plain generator"),
        (Deaf, "Deaf.chat must take a message"),
        (Greedy, "Greedy.chat must take a message, or a message and the turn"),
        (Demanding, "Demanding.__init__ must be callable without arguments"),
        (Starts, "Starts.on_start is a generator"),
        (Property, "Property.chat must be a plain method"),
        (Unfinished, "Unfinished is abstract: it lacks chat"),
        (BaseModel, "BaseModel is no agent"),
    ],
)
def test_a_class_that_cannot_be_served_is_refused_in_words(source: Any, words_: str) -> None:
    with pytest.raises(ValueError, match=words_):
        Registry().register(source)


async def test_a_class_that_fills_in_what_an_abstract_one_lacks_is_served() -> None:
    type, agent = made(Finished)
    assert (await carried_out(type.bind_chat("hi"), agent))[0] == "hi"


@pytest.mark.parametrize("name", ["_hidden", "", "two words", "1st", "x" * 200])
def test_an_action_has_a_name_that_can_travel(name: str) -> None:
    with pytest.raises(ValueError, match="no action can be called"):
        action(name=name)(lambda self: None)


def test_a_private_method_is_no_action_unless_it_is_given_a_name() -> None:
    with pytest.raises(ValueError, match="no action can be called '_private'"):

        @action
        def _private(self: Any) -> None: ...

    with pytest.raises(ValueError, match="goes on a method"):
        action(3)  # type: ignore[call-overload]


def test_an_idle_agent_costs_little_more_than_its_state() -> None:
    """The budget of a host is 2 KiB for each idle agent; the object itself must be a small part."""
    type, host = Registry().register(Direct), NoHost()
    keys = [AgentKey("default", "direct", str(n)) for n in range(10_000)]
    warm_up = [type.create(key, host, None) for key in keys[:100]]
    tracemalloc.start()
    agents = [type.create(key, host, None) for key in keys]
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / len(agents) < 200
    assert len(warm_up) == 100
