"""What an agent's author writes against: `Agent[State]`, `@action`, and the turn.

Owns the base class, the mark on actions, and what a handler can see of the turn it runs in. The
host gives an agent its state, its key and a port to the host before `__init__` runs; the agent
keeps nothing else of the host's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextvars import ContextVar
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, overload

from typing_extensions import TypeVar

from innkeeper_server.content import Content, jsonable
from innkeeper_server.events import Body, Custom, Event, Outbox, Text
from innkeeper_server.identity import AgentKey

if TYPE_CHECKING:
    from innkeeper_server.journal import Journal, TurnLog
    from innkeeper_server.store import Alarm as StoredAlarm

__all__ = [
    "ACTION_MARK",
    "Agent",
    "AgentHandle",
    "Alarm",
    "HostPort",
    "Turn",
    "action",
    "current_turn",
    "starting",
]

State = TypeVar("State", default=dict[str, Any])
Method = TypeVar("Method", bound=Callable[..., Any])
Result = TypeVar("Result")

ACTION_MARK = "__innkeeper_action__"  # on a marked method: its public name
_ACTION_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}")
_NO_METADATA: Mapping[str, str] = MappingProxyType({})

# A thread that emits waits for room like anybody; this only fuses a loop that has stopped.
_RELAY_SECONDS = 60.0


class Turn:
    """One piece of work that an agent does, from its first step to its commit.

    `kind`: invoke, chat, followup, alarm, message or update. `deadline`: the caller's, in seconds
    on the loop's clock, or None. `chain`: the agents through which a nested call came, outermost
    first, this one last. `last_seq`: the number of the last event, 0 before the first.
    """

    __slots__ = (
        "alarms",
        "cancel_requested",
        "chain",
        "deadline",
        "ended",
        "epoch",
        "id",
        "journal",
        "key",
        "kind",
        "last_seq",
        "log",
        "loop",
        "metadata",
        "outbox",
        "principal",
        "request_id",
    )

    def __init__(
        self,
        id: str,
        kind: str,
        key: AgentKey,
        epoch: int = 0,
        principal: str = "local",
        request_id: str = "",
        deadline: float | None = None,
        metadata: Mapping[str, str] = _NO_METADATA,
        chain: tuple[AgentKey, ...] = (),
        outbox: Outbox | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.id = id
        self.kind = kind
        self.key = key
        self.epoch = epoch
        self.principal = principal
        self.request_id = request_id
        self.deadline = deadline
        self.metadata = metadata
        self.chain = chain
        self.outbox = outbox
        self.last_seq = 0
        self.cancel_requested = ""  # the reason, once somebody cancelled the turn
        self.ended = False  # its handler has returned; it can say nothing more
        self.journal = journal  # where there is a log of events
        self.log: TurnLog | None = None  # once it says something
        self.alarms: dict[str, StoredAlarm | None] | None = None  # to be set and cancelled with it
        self.loop = loop  # through which a handler in a thread says something

    def __repr__(self) -> str:
        return f"<turn {self.id} {self.kind} of {self.key}>"

    @property
    def cancelled(self) -> bool:
        """True once the turn was told to stop. A handler in a thread has to look for itself."""
        return bool(self.cancel_requested)

    def emit(self, item: object, name: str = "event") -> None:
        """Say something to whoever follows the turn; dropped where nobody does.

        Text becomes a piece of the reply; a `Custom` goes as it is; anything else becomes a custom
        event called `name`. Raises TypeError for what cannot travel, RuntimeError once the turn is
        over. In a thread this waits for room, on the loop it never does.
        """
        body = _body(item, name)
        if self.loop is None or _runs_here(self.loop):
            self._put(body)
        else:
            relayed = asyncio.run_coroutine_threadsafe(self._put_and_wait(body), self.loop)
            relayed.result(_RELAY_SECONDS)

    async def say(self, item: object) -> None:
        """`emit`, then wait while a slow reader has too much to read already."""
        await self._put_and_wait(_body(item, "event"))

    async def _put_and_wait(self, body: Body) -> None:
        self._put(body)
        if self.log is not None:
            await self.log.room()
        if self.outbox is not None:
            await self.outbox.room()

    def _put(self, body: Body) -> None:
        if self.ended:
            raise RuntimeError(f"{self!r} is over and can say nothing more")
        event = Event(self.epoch, self.id, self.last_seq + 1, body)
        if self.log is None and self.journal is not None:
            self.log = self.journal.open(self)
        if self.log is not None:  # and its reader hears it from there
            self.log.put(event)
        elif self.outbox is not None:
            self.outbox.put(event)
        self.last_seq += 1


def _body(item: object, name: str) -> Body:
    if isinstance(item, str):
        return Text(str(jsonable(item)))
    if isinstance(item, Custom):
        name, item = item.name, item.data
    return Custom(str(jsonable(name)), jsonable(item))


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


# Set by the host in the task that runs the turn, so a task that an agent leaves behind keeps its
# own old turn and never sees a later one.
current_turn: ContextVar[Turn] = ContextVar("innkeeper_turn")
# The agent whose on_start this is, and no job of it.
starting: ContextVar[AgentKey | None] = ContextVar("innkeeper_starting", default=None)


class Alarm(NamedTuple):
    """An alarm that an agent has set: when it is `due` next, in UTC; the time from one to the next,
    or None where it comes once; and the message that comes."""

    name: str
    due: datetime
    every: timedelta | None
    message: Content


class AgentHandle(Protocol):
    """Another agent, as seen from inside one. Calls carry the chain of callers along: one that
    would wait for itself raises CallCycle at once."""

    async def invoke(
        self, action: str = "", /, *, timeout: float | None = None, **arguments: Any
    ) -> Any:
        """Run an action and return what it returned. `timeout` in seconds."""

    def chat(
        self, message: Content, *, timeout: float | None = None
    ) -> AsyncIterator[str | Custom]:
        """Run a chat turn: pieces of text and custom events as they come."""

    async def followup(self, message: Content) -> str:
        """Leave a message for a later turn; returns its receipt's id once it is accepted."""


class HostPort(Protocol):
    """What an agent sees of its host, as `self.host`. Not for use from threads."""

    def agent(self, type: str, id: str) -> AgentHandle:
        """Another agent of the same tenant."""

    def spawn(
        self, job: Coroutine[Any, Any, Result], *, name: str | None = None
    ) -> asyncio.Task[Result]:
        """Background work that keeps this agent resident until it ends."""

    def set_alarm(
        self,
        when: float | timedelta | datetime,
        message: Content,
        *,
        name: str = "",
        every: float | timedelta | None = None,
    ) -> str:
        """As `Agent.set_alarm`."""

    def cancel_alarm(self, name: str) -> None:
        """As `Agent.cancel_alarm`."""

    async def alarms(self) -> list[Alarm]:
        """As `Agent.alarms`."""


class Agent(Generic[State]):
    """Base of every agent. `State` is a pydantic model, a dataclass, dict, or None for no state;
    every value needs a default, so that a new agent can begin.

    What a caller can reach, each one optional:

    * `@action` methods: arguments are checked against the signature;
    * `invoke(self, ...)`: the action that is meant where a caller names none;
    * `chat(self, message)`: an async generator (text is a piece of the reply, anything else an
      event), or a coroutine or plain method that returns the whole reply;
    * `followup(self, message)`: as chat, for what runs later with nobody listening, and for alarms
      (default: chat);
    * `on_message(self, message)`: as chat, for a session's messages (default: chat).

    `self.state` is committed when a handler returns and put back when it raises. Keep no references
    into it between turns. Plain `def` methods run in a thread. `__init__`, which takes nothing and
    runs on the loop, can read key and state; it cannot replace the state.
    """

    __slots__ = ("host", "key", "state")

    type_name: ClassVar[str | None] = None  # default: the class's name in snake_case

    state: State
    key: AgentKey
    host: HostPort

    @property
    def id(self) -> str:
        """The agent's own name inside its type."""
        return self.key.id

    @property
    def type(self) -> str:
        """The name of the agent's type."""
        return self.key.type

    @property
    def turn(self) -> Turn:
        """The turn that this code runs in. Raises RuntimeError where there is none."""
        try:
            return current_turn.get()
        except LookupError:
            raise RuntimeError(
                "no turn runs here: self.turn exists while a handler runs, "
                "not in __init__, on_start or on_stop"
            ) from None

    def spawn(
        self, job: Coroutine[Any, Any, Result], *, name: str | None = None
    ) -> asyncio.Task[Result]:
        """Start background work that keeps this agent resident until it ends."""
        return self.host.spawn(job, name=name)

    def set_alarm(
        self,
        when: float | timedelta | datetime,
        message: Content,
        *,
        name: str = "",
        every: float | timedelta | None = None,
    ) -> str:
        """Have `followup` called with the message later, whatever happens until then: the alarm is
        kept in the turn's own commit, and outlives evictions and restarts. Returns its name.

        `when`: seconds from now, a timedelta, or a datetime with a time zone; what is past is due
        at once. `every`, 1 second or more: it comes again and again; the times that nobody could
        keep, because the host was down or the one before had not ended, come as one. `name`: takes
        the place of an alarm that has it; by default it gets a name of its own.

        Raises RuntimeError outside of a turn, ValueError for a time that cannot be or a message
        that the agent does not take, TypeError for one that cannot travel.
        """
        return self.host.set_alarm(when, message, name=name, every=every)

    def cancel_alarm(self, name: str) -> None:
        """Have an alarm not come any more, if there is one; in a turn only, and with its commit.
        What has come already, and waits for its turn, stays."""
        self.host.cancel_alarm(name)

    async def alarms(self) -> list[Alarm]:
        """The agent's alarms, what this turn has changed included; the next one first."""
        return await self.host.alarms()

    async def on_start(self) -> None:
        """Called after the state is there and before the first turn. Bounded by the host."""

    async def on_stop(self, reason: str) -> None:
        """Called when this life ends in good order, after its last turn. Bounded by the host."""


@overload
def action(method: Method, /) -> Method: ...
@overload
def action(*, name: str | None = None) -> Callable[[Method], Method]: ...
def action(
    method: Method | None = None, /, *, name: str | None = None
) -> Method | Callable[[Method], Method]:
    """Mark a method as an action, reachable by `name`, or else by its own name.

    A subclass that overrides it need not repeat the mark, and removes it by `method = None`.
    Raises ValueError for a name that cannot be an action's, such as one with a leading underscore.
    """

    def mark(marked: Method) -> Method:
        public = getattr(marked, "__name__", "") if name is None else name
        if not callable(marked) or isinstance(marked, type):
            raise ValueError(f"@action goes on a method, not on {marked!r}")
        if not _ACTION_NAME.fullmatch(public):
            raise ValueError(
                f"no action can be called {public!r}: a letter, then letters, digits, '_', '.', '-'"
            )
        setattr(marked, ACTION_MARK, public)
        return marked

    return mark if method is None else mark(method)
