"""Reading the log: one turn after an event, or an agent from a place on, then live.

Owns the followers' side of the log. A follower has no buffer that could overflow: it reads the
store page by page, and where there is no more it waits for the word that there is. So what was said
before and what is said now come by the same way, without a gap or a repeat; what the log keeps no
longer is told as a gap. Whoever follows a turn comes to an end: its last event, or an error.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

from innkeeper_server.driver import Driver
from innkeeper_server.errors import Draining, Evicted, Interrupted, TurnNotFound
from innkeeper_server.events import TERMINAL, Event, Gap
from innkeeper_server.identity import AgentKey
from innkeeper_server.journal import Journal
from innkeeper_server.letters import read_events
from innkeeper_server.mailbox import Call
from innkeeper_server.store import Chunk, Store
from innkeeper_server.visits import Connection

__all__ = ["Following"]

PAGE = 16  # chunks


class Following:
    """See the module."""

    def __init__(self, driver: Driver, journal: Journal, store: Store) -> None:
        self._driver = driver
        self._journal = journal
        self._store = store

    async def turn(
        self, key: AgentKey, turn_id: str, after: int, call: Call
    ) -> AsyncGenerator[Event, None]:
        """The events of a turn behind its event number `after`, to the one that ends it, which is
        told in any case.

        If it broke off with its host, the agent is brought to life here, which settles that it
        did. Raises TurnNotFound, Interrupted, and what that start may raise.
        """
        seq = after
        connection: Connection | None = None
        try:
            while True:
                async for event in self._logged(key, turn_id, seq):
                    yield event
                    if isinstance(event.body, TERMINAL):
                        return
                    seq = max(seq, event.seq)
                if seq == after and not await self._store.events(key, turn_id=turn_id, limit=1):
                    raise TurnNotFound("there is no such turn", metadata={"turn_id": turn_id})
                if connection is not None:
                    raise Interrupted("the turn ended, and how could not be logged")
                connection = Connection(self._driver, key, call, f"follows {turn_id}", _stay)
                await connection.ready()
        finally:
            if connection is not None:
                connection.close()

    async def agent(
        self,
        key: AgentKey,
        after: tuple[str, int] | None,
        *,
        new_only: bool = False,
        is_over: Callable[[], object] = lambda: False,
    ) -> AsyncGenerator[Event, None]:
        """Everything that an agent says, behind the event named by turn and number; without end,
        or until `is_over` when the log is said to have grown.

        With no such event from the oldest that is kept, or (`new_only`) from now on.
        """
        with self._journal.watching(key) as watch:
            place: int | None = 0
            if after is not None:
                place = await self._store.place(key, *after)
            elif new_only:
                place = await self._store.newest(key)
            while not is_over():
                seen = watch.count
                page = await self._store.events(key, after=place or 0, limit=PAGE)
                for chunk in page:
                    begin = chunk.position - (chunk.last - chunk.first + 1)
                    if place is None or begin > place:
                        yield _gap(chunk, 0 if place is None else begin - place)
                        place = begin
                    for event in read_events(chunk):
                        if begin + event.seq - chunk.first >= place:
                            yield event
                    place = chunk.position
                if not page and watch.count == seen:
                    await watch.next()

    async def lasting(
        self, key: AgentKey, after: tuple[str, int] | None, call: Call, *, new_only: bool = False
    ) -> AsyncGenerator[Event, None]:
        """As `agent`, with the agent kept resident. When its life is about to end, raises Draining
        or Evicted; whoever still wants to hear it asks again, behind the last event."""
        left: list[str] = []

        def leaving(reason: str) -> None:
            left.append(reason)
            self._journal.grown(key)

        connection = Connection(self._driver, key, call, "subscriber", leaving)
        try:
            await connection.ready()
            is_over = left.__len__
            async for event in self.agent(key, after, new_only=new_only, is_over=is_over):
                yield event
            raise (Draining if self._driver.account.draining else Evicted)(left[0])
        finally:
            connection.close()

    async def _logged(self, key: AgentKey, turn_id: str, seq: int) -> AsyncGenerator[Event, None]:
        """What is logged of a turn; ends where nothing more will be."""
        with self._journal.watching(key) as watch:
            # From the chunk that holds it on, so that its end is known if it was the last.
            place = (await self._store.place(key, turn_id, seq) or 1) - 1 if seq else 0
            while True:
                seen, is_live = watch.count, self._journal.is_live(turn_id)
                page = await self._store.events(key, turn_id=turn_id, after=place, limit=PAGE)
                for chunk in page:
                    if chunk.first > seq + 1:
                        yield _gap(chunk, chunk.first - 1 - seq)
                    for event in read_events(chunk):
                        if event.seq > seq or isinstance(event.body, TERMINAL):
                            yield event
                    seq = max(seq, chunk.last)
                    place = chunk.position
                    if chunk.ended:
                        return
                if not page and not is_live:
                    return
                if not page and watch.count == seen:
                    await watch.next()


def _gap(chunk: Chunk, missed: int) -> Event:
    """Stands before the first event that is kept."""
    return Event(chunk.epoch, chunk.turn_id, chunk.first - 1, Gap(missed))


def _stay(_: str) -> None:
    """The log is read on, whatever becomes of the agent's life."""
