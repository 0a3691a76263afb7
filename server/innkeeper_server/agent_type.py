"""A registered type of agent: what it is called, what it can be asked, how its instances are made.

Owns the way from a class or a function to a type, and from a request to bound work. Everything
about a request is checked here, before anybody is admitted for it.

Actions are inherited. One that is overridden stays an action under the same name, and
`method = None` in a subclass removes it. `invoke` is an action by that name; a request that names
no action means it. The `invoke` of a plain function runs it as a chat and returns its whole text.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from innkeeper_server.agent import ACTION_MARK, Agent, HostPort
from innkeeper_server.arguments import Arguments, Message, parameters
from innkeeper_server.content import Content, JsonValue
from innkeeper_server.errors import InnkeeperError, InvalidRequest, NoHandler, StartFailed
from innkeeper_server.faults import handler_failed
from innkeeper_server.identity import AgentKey, check_type
from innkeeper_server.state import codec_for
from innkeeper_server.work import Handler, HandlerWork, StateWork, Work

__all__ = ["ActionSpec", "AgentType"]

INVOKE = "invoke"  # the action that is meant where a request names none
_NAMED = 20  # names listed in an error
_SHOWN = 64  # characters of a caller's name repeated in an error

Bound = TypeVar("Bound")


class PlainAgent(Agent[None]):
    """The instance behind a plain function."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """One action, as the catalog shows it and as requests are bound to it."""

    name: str
    description: str
    input_schema: dict[str, Any]
    handler: Handler = field(repr=False)
    arguments: Arguments = field(repr=False)

    def bind(self, input: Content) -> Work:
        return HandlerWork("invoke", self.handler, (), self.arguments.bind(input, "input"))


@dataclass(frozen=True, slots=True)
class _Listener:
    """A handler of messages."""

    handler: Handler
    message: Message

    def bind(self, kind: str, message: Content) -> Work:
        return HandlerWork(kind, self.handler, self.message.bind(message, "message"), {})


class AgentType:
    """See the module. Made from an `Agent` subclass, or from a function that takes a message.

    `actions`: by name. `state_schema`: JSON schema of the state; None where it keeps none, or any
    JSON object. Raises ValueError, in words for the author, for a source that cannot be served.
    """

    def __init__(self, name: str, source: type[Agent[Any]] | Callable[..., Any]) -> None:
        self.name = _checked_name(name)
        self.source = source
        self.description = _paragraph(source.__doc__)
        if isinstance(source, type):
            self._class: type[Agent[Any]] = _checked_class(source)
            listeners = _listeners(source)
            self.actions: Mapping[str, ActionSpec] = _actions(source)
        else:
            self._class = PlainAgent
            listener = _listener(name, source, method=False)
            listeners = {"chat": listener}
            self.actions = {INVOKE: _whole(listener, self.description)}
        self._codec = codec_for(self._class)
        self.stateful = self._codec.stateful
        self.state_schema = self._codec.schema
        self._first = self._initial()
        self._chat = listeners.get("chat")
        self._followup = listeners.get("followup", self._chat)
        self._on_message = listeners.get("on_message", self._chat)
        self._on_start = _hook(self._class, "on_start")
        self._on_stop = _hook(self._class, "on_stop")

    def __repr__(self) -> str:
        return f"<agent type {self.name}>"

    @property
    def has_chat(self) -> bool:
        """True if it takes chat messages."""
        return self._chat is not None

    # -- instances and their state --------------------------------------------------------------

    def create(self, key: AgentKey, host: HostPort, state_bytes: bytes | None) -> Any:
        """A new instance with the stored state, or where that is None with its initial one.

        Raises StartFailed for bytes that do not fit, and whatever the author's `__init__` raises.
        """
        instance = self._class.__new__(self._class)
        instance.key = key
        instance.host = host
        instance.state = state = self._loaded(key, state_bytes)
        instance.__init__()  # type: ignore[misc]  # it may read the three above
        instance.state = state  # and cannot replace what was stored
        return instance

    def dump(self, instance: Any, known: bytes | None = None) -> bytes | None:
        """The state as JSON bytes; None where there is none. Equal for a state that has not
        changed, so give the committed bytes as `known`: then they are what comes back.

        Raises TypeError naming what would not come back from the store.
        """
        return self._codec.dump(instance.state, known)

    def known(self, instance: Any, state_bytes: bytes | None) -> bytes | None:
        """By what a change of the state is told from now on, right after `create`.

        An initial state that comes out the same each time is as good as stored. One that does not
        (a fresh id, a date) must be committed before it is lost: then this is None.
        """
        now = self.dump(instance, state_bytes)
        return None if state_bytes is None and now != self._first else now

    def _initial(self) -> bytes | None:
        try:
            return self._codec.dump(self._codec.initial(), None)
        except Exception:  # it cannot be stored: the first turn says so, to its caller
            return None

    def restore(self, instance: Any, state_bytes: bytes | None) -> None:
        """Put the state back to committed bytes, or with None to the initial one."""
        instance.state = self._loaded(instance.key, state_bytes)

    def _loaded(self, key: AgentKey, state_bytes: bytes | None) -> Any:
        if state_bytes is None or not self.stateful:
            return self._codec.initial()
        try:
            return self._codec.load(state_bytes)
        except ValueError as fault:
            raise StartFailed(
                f"the stored state of {key} does not fit its type: {fault}",
                metadata={"agent": str(key)},
            ) from None

    async def start(self, instance: Any) -> None:
        """Call its `on_start`, if it has one of its own."""
        if self._on_start is not None:
            await self._on_start.call(instance)

    async def stop(self, instance: Any, reason: str) -> None:
        """Call its `on_stop`, if it has one of its own."""
        if self._on_stop is not None:
            await self._on_stop.call(instance, reason)

    # -- requests -------------------------------------------------------------------------------

    def bind_invoke(self, action: str, input: Content) -> Work:
        """Work for an action. Raises NoHandler naming what there is, or InvalidRequest whose
        fields begin with `input`."""
        spec = self.actions.get(action or INVOKE)
        if spec is None:
            raise self._no_action(action)
        try:
            return spec.bind(input)
        except InnkeeperError:
            raise
        except Exception as fault:
            raise self._failed_check(fault) from None

    def bind_chat(self, message: Content) -> Work:
        """Work for `chat`; raises NoHandler, or InvalidRequest for the field `message`."""
        return self._bind(self._chat, "chat", message)

    def bind_followup(self, message: Content) -> Work:
        """Work for `followup`, or else `chat`; raises as `bind_chat`."""
        return self._bind(self._followup, "followup", message)

    def bind_message(self, message: Content) -> Work:
        """Work for `on_message`, or else `chat`; raises as `bind_chat`."""
        return self._bind(self._on_message, "message", message)

    def bind_update(self, state: JsonValue) -> Work:
        """Work that replaces the whole state; raises InvalidRequest, fields begin with `state`."""
        return StateWork(self._checked(self._codec.parse, state))

    def _bind(self, listener: _Listener | None, kind: str, message: Content) -> Work:
        if listener is None:
            raise NoHandler(
                f"agents of type {self.name} take no {kind}; {self._offers()}",
                metadata={"agent_type": self.name},
            )
        return self._checked(listener.bind, kind, message)

    def _no_action(self, action: str) -> NoHandler:
        missing = f"no action {action[:_SHOWN]!r}" if action else "no invoke of their own"
        return NoHandler(
            f"agents of type {self.name} have {missing}; {self._offers()}",
            metadata={"agent_type": self.name},
        )

    def _offers(self) -> str:
        names = sorted(self.actions)
        listed = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
        parts = [f"they have: {listed}"] if names else ["they have no actions"]
        return "; ".join([*parts, "they chat"] if self.has_chat else parts)

    def _checked(self, bind: Callable[..., Bound], *request: Any) -> Bound:
        try:
            return bind(*request)
        except InnkeeperError:
            raise
        except Exception as fault:
            raise self._failed_check(fault) from None

    def _failed_check(self, fault: Exception) -> InnkeeperError:
        """Checks can run code of the author's; what that raises is not the caller's fault."""
        return handler_failed(AgentKey("", self.name, "*"), "the check of a request", fault)


def _checked_name(name: str) -> str:
    try:
        return check_type(name)
    except InvalidRequest as fault:
        raise ValueError(f"no type of agents can be called {name!r}: {fault.message}") from None


def _checked_class(source: type[Any]) -> type[Agent[Any]]:
    name = source.__qualname__
    if not issubclass(source, Agent):
        raise ValueError(f"{name} is no agent: it does not inherit from Agent")
    if inspect.isabstract(source):
        missing = ", ".join(sorted(getattr(source, "__abstractmethods__", ())))
        raise ValueError(f"{name} is abstract: it lacks {missing}")
    takes = list(inspect.signature(source.__init__).parameters.values())[1:]
    if any(each.default is each.empty and each.kind not in _VARIABLE for each in takes):
        raise ValueError(f"{name}.__init__ must be callable without arguments")
    return source


_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _listeners(source: type[Agent[Any]]) -> dict[str, _Listener]:
    found = {}
    for name in ("chat", "followup", "on_message"):
        function = _method(source, name)
        if function is not None:
            found[name] = _listener(f"{source.__qualname__}.{name}", function, method=True)
    return found


def _listener(name: str, function: Callable[..., Any], *, method: bool) -> _Listener:
    message = Message(name, parameters(function, method=method))
    handler = Handler(name, function, method=method, turn_name=message.turn_name)
    return _Listener(handler, message)


def _actions(source: type[Agent[Any]]) -> dict[str, ActionSpec]:
    found: dict[str, ActionSpec] = {}
    for attribute, public in _marked(source).items():
        function = _method(source, attribute)
        if function is None:
            continue
        if public in found:
            raise ValueError(f"{source.__qualname__} has two actions called {public!r}")
        found[public] = _action(source, public, function)
    return found


def _marked(source: type[Agent[Any]]) -> dict[str, str]:
    """Public names by attribute: marks of the class and its ancestors, the nearest one's name."""
    marked = {INVOKE: INVOKE}
    for klass in reversed(source.__mro__):
        for attribute, value in vars(klass).items():
            marked_one = getattr(value, "__func__", value)  # inside of a static or class method
            public = getattr(marked_one, ACTION_MARK, None)
            if public is not None:
                marked[attribute] = public
    return marked


def _action(source: type[Agent[Any]], public: str, function: Callable[..., Any]) -> ActionSpec:
    name = f"{source.__qualname__}.{function.__name__}"
    handler = Handler(name, function)
    if handler.streams:
        raise ValueError(f"{name} is a generator; an action returns one value, a chat streams")
    arguments = Arguments(name, parameters(function, method=True))
    return ActionSpec(
        public, _paragraph(inspect.getdoc(function)), arguments.schema, handler, arguments
    )


def _whole(listener: _Listener, description: str) -> ActionSpec:
    """A plain function, run for its whole reply."""
    name = listener.handler.name
    arguments = Arguments(name, [listener.message.parameter])
    return ActionSpec(INVOKE, description, arguments.schema, listener.handler, arguments)


def _hook(source: type[Agent[Any]], name: str) -> Handler | None:
    """A hook that is the author's own."""
    function = _method(source, name)
    if function is None or function is getattr(Agent, name):
        return None
    handler = Handler(f"{source.__qualname__}.{name}", function)
    if handler.streams:
        raise ValueError(f"{handler.name} is a generator; nobody would read it")
    return handler


def _method(source: type[Any], name: str) -> Callable[..., Any] | None:
    """A method as written in the class or an ancestor; None where there is none."""
    found = inspect.getattr_static(source, name, None)
    if found is not None and not inspect.isfunction(found):
        raise ValueError(f"{source.__qualname__}.{name} must be a plain method")
    return found


def _paragraph(documentation: str | None) -> str:
    """The first paragraph, on one line."""
    return " ".join(inspect.cleandoc(documentation or "").split("\n\n")[0].split())
