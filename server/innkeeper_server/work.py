"""Work that was checked and bound before anybody was admitted, and how it is carried out.

Owns the driving of handlers. A handler is a coroutine function, an async generator function, or a
plain function, which runs in a thread; what it gives becomes events and one output:

* of an async generator, each item is said as it comes, and the output is the whole text, or None
  if an item was no text or the text is longer than MAX_TEXT;
* what a coroutine or a plain function returns is the output, as it stands at that moment; where it
  is text and the work is not an invoke, it is also said as one piece.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from innkeeper_server.agent import Turn
from innkeeper_server.content import Content, as_content
from innkeeper_server.errors import TooLarge
from innkeeper_server.threads import in_thread

__all__ = ["MAX_TEXT", "Handler", "HandlerWork", "StateWork", "Work"]

MAX_TEXT = 4 << 20  # characters of a stream that are kept for its output

# A generator that never waits would keep the loop from everybody; it gives way after this many.
_ITEMS_AT_ONCE = 32


class Work(Protocol):
    """One piece of work. Runs once, in the turn's own task."""

    @property
    def kind(self) -> str:
        """invoke, chat, followup, message or update."""

    @property
    def handler(self) -> str:
        """What carries it out, for logs and listings."""

    async def run(self, agent: Any, turn: Turn) -> Content:
        """Carry it out and return the output, which is a copy.

        Raises what the handler raises, and TypeError for what cannot travel. When cancelled, it
        ends only after the handler has: a thread is waited for.
        """


class Handler:
    """Code that carries out work.

    `function` of a method takes the instance first; `turn_name` is the parameter that takes the
    turn, if one does. Raises ValueError for code that cannot be driven.
    """

    __slots__ = ("_threaded", "function", "is_coroutine", "method", "name", "streams", "turn_name")

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        method: bool = True,
        turn_name: str | None = None,
    ) -> None:
        # A plain wrapper that a decorator put around a coroutine function runs where that does.
        inner = inspect.unwrap(function)
        if inspect.isgeneratorfunction(inner):
            raise ValueError(f"{name} is a plain generator; make it `async def`")
        self.name = name
        self.function = function
        self.method = method
        self.turn_name = turn_name
        self.streams = inspect.isasyncgenfunction(inner)
        # Of a wrapper it cannot be known what it returns.
        self.is_coroutine = inspect.iscoroutinefunction(function)
        self._threaded = not (self.streams or inspect.iscoroutinefunction(inner))

    async def call(self, /, *args: Any, **kwargs: Any) -> Any:
        """What it returns; where it streams, the stream, not begun."""
        if self._threaded:
            result = await in_thread(self.function, *args, **kwargs)
        else:
            result = self.function(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result


@dataclass(slots=True)  # not frozen: one is made for each call
class HandlerWork:
    """A handler with its arguments."""

    kind: str
    target: Handler
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def handler(self) -> str:
        return self.target.name

    async def run(self, agent: Any, turn: Turn) -> Content:
        target = self.target
        args = (agent, *self.args) if target.method else self.args
        kwargs = self.kwargs
        if target.turn_name is not None:
            kwargs = {**kwargs, target.turn_name: turn}
        if turn.loop is None:
            turn.loop = asyncio.get_running_loop()
        try:
            if target.is_coroutine:  # without the way by `call`, for most of all work
                result = await target.function(*args, **kwargs)
            else:
                result = await target.call(*args, **kwargs)
            if hasattr(type(result), "__aiter__"):
                reply = _Reply()
                await _spoken(result, turn, reply)
                return reply.output(unseen=self.kind == "invoke")
            output = as_content(result)
            if isinstance(output, str) and self.kind != "invoke":
                await turn.say(output)
            return output
        finally:
            turn.ended = True


@dataclass(frozen=True, slots=True)
class StateWork:
    """Puts a state that was checked already in the place of the whole state."""

    state: Any
    kind: str = "update"
    handler: str = "state"

    async def run(self, agent: Any, turn: Turn) -> Content:
        agent.state = self.state
        turn.ended = True
        return None


async def _spoken(items: AsyncIterable[Any], turn: Turn, reply: _Reply) -> None:
    """Say each item, and close the generator in any case."""
    async with AsyncExitStack() as stack:
        if hasattr(items, "aclose"):
            stack.push_async_callback(items.aclose)
        async for item in items:
            if turn.cancelled:  # the generator swallowed the cancellation
                raise asyncio.CancelledError(turn.cancel_requested)
            await turn.say(item)
            reply.add(item)
            if turn.last_seq % _ITEMS_AT_ONCE == 0:
                await asyncio.sleep(0)


class _Reply:
    """The text of a stream, as long as it is nothing but text."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._size = 0
        self._only_text = True

    def add(self, item: object) -> None:
        if not isinstance(item, str):
            self._only_text = False
        self._size += len(item) if isinstance(item, str) else 0
        if not self._only_text or self._size > MAX_TEXT:
            self._pieces.clear()
        else:
            self._pieces.append(str(item))

    def output(self, *, unseen: bool) -> str | None:
        """The whole text or None. `unseen`: the caller gets nothing else, so a text too long to
        keep raises TooLarge."""
        if self._only_text and self._size <= MAX_TEXT:
            return "".join(self._pieces)
        if self._only_text and unseen:
            raise TooLarge(
                f"the reply has more than {MAX_TEXT} characters",
                metadata={"limit": str(MAX_TEXT)},
            )
        return None
