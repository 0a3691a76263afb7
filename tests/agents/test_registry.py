"""Names, lookup, and what is found in an author's modules."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from innkeeper_server import Agent
from innkeeper_server.errors import InvalidRequest, UnknownAgentType
from innkeeper_server.registry import Registry, snake_case


class Porter(Agent[None]):
    async def chat(self, message: str) -> str:
        return message


class Named(Agent[None]):
    type_name = "front.desk"


class Derived(Named):
    pass


async def reply(message: str) -> str:
    return message


@pytest.mark.parametrize(
    ("name", "snake"),
    [
        ("Counter", "counter"),
        ("HTTPAgent", "http_agent"),
        ("MyHTTP2Agent", "my_http2_agent"),
        ("FrontDesk", "front_desk"),
        ("already_snake", "already_snake"),
    ],
)
def test_a_class_is_called_by_its_name_in_snake_case(name: str, snake: str) -> None:
    assert snake_case(name) == snake


def test_types_are_found_by_name_and_listed_in_order() -> None:
    registry = Registry()
    registry.register(Porter)
    registry.register(reply)
    registry.register("answer", reply)
    registry.register(Named)
    registry.register(Derived)
    assert [type.name for type in registry.types()] == [
        "answer",
        "derived",
        "front.desk",
        "porter",
        "reply",
    ]
    assert registry.resolve("porter").name == "porter"


def test_an_unknown_type_is_named_with_what_there_is() -> None:
    registry = Registry()
    with pytest.raises(UnknownAgentType, match="serves no types"):
        registry.resolve("cook")
    registry.register(Porter)
    with pytest.raises(UnknownAgentType, match="this host serves porter") as caught:
        registry.resolve("cook")
    assert caught.value.metadata == {"agent_type": "cook"}
    for malformed in ("two words", "x" * 5000, "a\n"):
        with pytest.raises(InvalidRequest):
            registry.resolve(malformed)


def test_an_empty_type_means_the_only_one() -> None:
    registry = Registry()
    registry.register(Porter)
    assert registry.resolve("").name == "porter"
    registry.register(reply)
    with pytest.raises(InvalidRequest) as caught:
        registry.resolve("")
    assert [field for field, _ in caught.value.violations] == ["agent.type"]


@pytest.mark.parametrize(
    ("name", "source", "words"),
    [
        ("porter", Porter, "two types of agents are called 'porter'"),
        ("bad name", Porter, "can be called 'bad name'"),
        ("", Porter, "can be called ''"),
        ("x", None, "neither a class nor a function"),
        ("x", 5, "neither a class nor a function"),
    ],
)
def test_what_cannot_be_registered_is_refused_and_changes_nothing(
    name: str, source: Any, words: str
) -> None:
    registry = Registry()
    registry.register(Porter)
    with pytest.raises(ValueError, match=words):
        registry.register(name, source)
    assert [type.name for type in registry.types()] == ["porter"]


MODULE = '''
"""Agents of a test."""
from __future__ import annotations
from abc import ABC, abstractmethod
from typing import AsyncIterator
from pydantic import BaseModel
from innkeeper_server import Agent, action
from innkeeper_server.demo import Counter

class Till(BaseModel):
    cents: int = 0

class _Base(Agent[Till]):
    @action
    async def pay(self, cents: int) -> int:
        self.state.cents += cents
        return self.state.cents

class Abstract(_Base, ABC):
    @abstractmethod
    async def chat(self, message: str) -> str: ...

class Bar(_Base):
    pass

Alias = Bar

async def sing(message: str) -> AsyncIterator[str]:
    yield message

async def _hum(message: str) -> AsyncIterator[str]:
    yield message

async def coroutine(message: str) -> str:
    return message
'''


@pytest.fixture(autouse=True)
def imports() -> Iterator[None]:
    """Forget what a test imported, and where it may import from."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if "innkeeper_agents_" in name or name.startswith("inn_test_"):
            del sys.modules[name]


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_file_gives_its_own_public_agents(tmp_path: Path) -> None:
    file = _write(tmp_path / "inn_test_bar.py", MODULE)
    registry = Registry.load([str(file)])
    assert [type.name for type in registry.types()] == ["bar", "sing"]
    bar = registry.resolve("bar")
    assert bar.actions["pay"].input_schema["required"] == ["cents"]
    assert bar.state_schema is not None


def test_a_file_is_imported_once_however_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _write(tmp_path / "inn_test_bar.py", MODULE)
    monkeypatch.chdir(tmp_path)
    first = Registry.load([str(file)]).resolve("bar").source
    assert Registry.load(["./inn_test_bar.py"]).resolve("bar").source is first
    assert Registry.load(["inn_test_bar.py"]).resolve("bar").source is first


def test_files_of_one_name_are_different_modules(tmp_path: Path) -> None:
    one = _write(tmp_path / "a" / "inn_test_bar.py", MODULE)
    other = _write(tmp_path / "b" / "inn_test_bar.py", MODULE.replace("Bar", "Pub"))
    other.write_text(other.read_text().replace("sing", "dance"))
    names = [type.name for type in Registry.load([str(one), str(other)]).types()]
    assert names == ["bar", "dance", "pub", "sing"]


def test_a_file_can_import_its_neighbours(tmp_path: Path) -> None:
    _write(tmp_path / "inn_test_neighbour.py", "WORD = 'hello'\n")
    file = _write(
        tmp_path / "inn_test_main.py",
        "from inn_test_neighbour import WORD\nasync def greet(message: str):\n    yield WORD\n",
    )
    assert Registry.load([str(file)]).resolve("").name == "greet"


def test_a_module_by_name_is_looked_for_in_the_working_directory_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path / "inn_test_package" / "__init__.py", "from .rooms import *\n")
    _write(tmp_path / "inn_test_package" / "rooms.py", MODULE)
    monkeypatch.chdir(tmp_path)
    for spec in ("inn_test_package", "inn_test_package.rooms"):
        assert [type.name for type in Registry.load([spec]).types()] == ["bar", "sing"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\n", "no agents here"),
        ("from innkeeper_server.demo import Counter, echo\n", "no agents here"),
        ("import inn_test_missing_thing\n", "ModuleNotFoundError.*inn_test_missing_thing"),
        ("def broken(:\n", "SyntaxError"),
        ("raise SystemExit(2)\n", "SystemExit: 2"),
        ("async def lonely():\n    yield 1\n", "lonely must take a message"),
    ],
)
def test_a_file_that_cannot_be_served_is_named_with_the_reason(
    tmp_path: Path, text: str, words: str
) -> None:
    file = _write(tmp_path / "inn_test_broken.py", text)
    for _ in range(2):  # a second try fails like the first
        with pytest.raises(ValueError, match=words) as caught:
            Registry.load([str(file)])
        assert str(file) in str(caught.value)
        assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("inn_test_nowhere", "ModuleNotFoundError"),
        ("inn_test_nowhere.py", "FileNotFoundError"),
        ("./inn_test_nowhere", "FileNotFoundError"),
        ("", "ValueError"),
        ("..relative", "TypeError"),
    ],
)
def test_a_spec_that_leads_nowhere_is_named(spec: str, words: str) -> None:
    with pytest.raises(ValueError, match=f"cannot load agents from {spec!r}: {words}"):
        Registry.load([spec])


def test_two_modules_with_agents_of_one_name_are_refused_by_both_their_names(
    tmp_path: Path,
) -> None:
    file = _write(tmp_path / "inn_test_bar.py", MODULE.replace("Bar", "Counter2"))
    file.write_text(file.read_text().replace("Counter2", "Concierge"))
    with pytest.raises(ValueError, match=r"demo\.Concierge and innkeeper_agents_"):
        Registry.load(["innkeeper_server.demo", str(file)])
