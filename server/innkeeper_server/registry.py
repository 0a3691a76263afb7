"""Which types of agents a host serves, and where they come from.

Owns names and lookup. `loading.py` finds the agents of a module.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any, Self

from innkeeper_server.agent import Agent
from innkeeper_server.agent_type import ActionSpec, AgentType
from innkeeper_server.errors import InvalidRequest, UnknownAgentType
from innkeeper_server.identity import check_type
from innkeeper_server.loading import agents_of, load_module

__all__ = ["ActionSpec", "AgentType", "Registry", "snake_case"]

_NAMED = 20  # names listed in an error
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

Source = type[Agent[Any]] | Callable[..., Any]


class Registry:
    """Types of agents by name.

    >>> registry = Registry()
    >>> registry.register(Counter)          # as "counter"
    >>> registry.register("echo", echo)     # any function that takes a message
    """

    def __init__(self) -> None:
        self._types: dict[str, AgentType] = {}

    @classmethod
    def load(cls, specs: Iterable[str]) -> Self:
        """A registry of all agents in modules, each given by name or as the path of a file.

        Raises ValueError naming the spec for what cannot be imported or served, for a module
        without agents, and for two agents of one name.
        """
        registry = cls()
        for spec in specs:
            module = load_module(spec)
            try:
                for source in agents_of(module):
                    registry.register(source)
            except ValueError as fault:
                raise ValueError(f"{spec}: {fault}") from fault
        return registry

    def register(self, name: str | Source, source: Source | None = None) -> AgentType:
        """Add a class, or an async generator, coroutine or plain function that takes a message.

        A class is called by its `type_name` or its name in snake_case, a function by its name,
        unless `name` says otherwise. Raises ValueError for a name that is taken or no name, and
        for what cannot be served.
        """
        if not isinstance(name, str):
            source, name = name, _name_of(name)
        if not (isinstance(source, type) or inspect.isroutine(source)):
            raise ValueError(f"{source!r} is neither a class nor a function")
        taken = self._types.get(name)
        if taken is not None:
            raise ValueError(
                f"two types of agents are called {name!r}: {_whence(taken.source)} and "
                f"{_whence(source)}; give one another type_name"
            )
        self._types[name] = made = AgentType(name, source)
        return made

    def resolve(self, name: str) -> AgentType:
        """The type of that name; the only one for "".

        Raises UnknownAgentType, or InvalidRequest for `agent.type` where the name is malformed, or
        missing and there are several.
        """
        found = self._types.get(name)
        if found is not None:
            return found
        if name:
            raise self._unknown(check_type(name))
        if len(self._types) == 1:
            return next(iter(self._types.values()))
        raise InvalidRequest.of("agent.type", f"must not be empty: {self._offers()}")

    def types(self) -> list[AgentType]:
        """All types, by name."""
        return [self._types[name] for name in sorted(self._types)]

    def _unknown(self, name: str) -> UnknownAgentType:
        return UnknownAgentType(
            f"no agents of type {name}: {self._offers()}", metadata={"agent_type": name}
        )

    def _offers(self) -> str:
        names = sorted(self._types)
        listed = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
        return f"this host serves {listed or 'no types'}"


def snake_case(name: str) -> str:
    """`HTTPAgent` becomes `http_agent`."""
    return _HUMP.sub("_", name).lower()


def _name_of(source: Any) -> str:
    if isinstance(source, type):
        # A subclass is another type than its base, so an inherited type_name does not count.
        return vars(source).get("type_name") or snake_case(source.__name__)
    return str(getattr(source, "__name__", source))


def _whence(source: Any) -> str:
    return f"{source.__module__}.{source.__qualname__}"
