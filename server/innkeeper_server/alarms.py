"""Alarms: what an agent wants to be told later, whoever is there then.

Owns the way from `set_alarm` to the agent's mailbox:

    its turn ──▶ the turn's commit ──▶ due ──▶ a follow-up, in one transaction ──▶ followups.py

So an alarm is as durable as the turn that set it, and what it becomes is accepted work like any
other. The host sleeps until the alarm that is due first; all the others cost it nothing. From time
to time it looks all the same, for what other hosts of the same store have set.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import inf

from innkeeper_server.agent import Alarm, Turn, current_turn
from innkeeper_server.content import Content, as_content
from innkeeper_server.driver import Driver
from innkeeper_server.errors import InvalidRequest, NoHandler, StoreUnavailable
from innkeeper_server.followups import Followups
from innkeeper_server.identity import check_id
from innkeeper_server.letters import read_message, write_message
from innkeeper_server.mailbox import Call
from innkeeper_server.registry import Registry
from innkeeper_server.runtime import Runtime
from innkeeper_server.store import Alarm as StoredAlarm
from innkeeper_server.store import AlarmChanges, Store
from innkeeper_server.turns import Turns

__all__ = ["Alarms"]

AT_ONCE = 100  # fired together; the store groups them
LOOK_AGAIN = 60.0  # seconds at most from one look at the store to the next
PAUSE = 1.0  # seconds until a store that failed is asked again
SHORTEST = 1.0  # seconds from one time of an alarm to the next
MAX_MESSAGE = 64 << 10  # bytes, as it is stored; what is larger belongs into the state

log = logging.getLogger("innkeeper.host")


class Alarms:
    """See the module. `clock` tells the world's time, in seconds of Unix time."""

    def __init__(
        self,
        driver: Driver,
        turns: Turns,
        followups: Followups,
        registry: Registry,
        store: Store,
        clock: Callable[[], float],
    ) -> None:
        self._driver = driver
        self._followups = followups
        self._registry = registry
        self._store = store
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._soonest = inf  # when the next one is due, as far as is known
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        self._closed = False
        turns.on_alarms = self._committed

    # -- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Look for what is due, now and from here on."""
        self._sleep(0.0)

    def close(self) -> None:
        """Fire nothing more. What is due meanwhile, the next host finds."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- for agents -----------------------------------------------------------------------------

    def set(
        self,
        runtime: Runtime,
        when: float | timedelta | datetime,
        message: Content,
        name: str,
        every: float | timedelta | None,
    ) -> str:
        """Have the turn that runs set an alarm; see `Agent.set_alarm`."""
        turn = _running()
        name = _checked(name or secrets.token_hex(6))
        letter = _letter(runtime, turn, message, name)
        due = _due(when, self._clock())
        pause = None if every is None else _pause(every)
        alarm = StoredAlarm(runtime.key, name, due, pause, letter)
        try:
            _shown(alarm)  # it can be told again
        except (OverflowError, OSError, ValueError):
            raise ValueError("when, every: no calendar goes so far") from None
        _change(turn, name, alarm)
        return name

    def cancel(self, name: str) -> None:
        """Have the turn that runs cancel an alarm."""
        _change(_running(), _checked(name), None)

    async def of(self, runtime: Runtime) -> list[Alarm]:
        """The alarms of an agent, with what its turn has changed."""
        stored = {each.name: each for each in await self._store.alarms(runtime.key)}
        turn = current_turn.get(None)
        changes = turn.alarms if turn is not None and not turn.ended else None
        merged = {**stored, **(changes or {})}
        return sorted(
            (_shown(each) for each in merged.values() if each is not None),
            key=lambda alarm: (alarm.due, alarm.name),
        )

    def _committed(self, changes: AlarmChanges) -> None:
        self._hear(min((each.due for each in changes.values() if each is not None), default=inf))

    # -- the clock ------------------------------------------------------------------------------

    def _hear(self, due: float) -> None:
        """One is due then."""
        if due < self._soonest:
            self._soonest = due
            if self._looking is None:
                self._sleep(due - self._clock())

    def _sleep(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._takes_work():
            self._timer = self._loop.call_later(min(max(seconds, 0.0), LOOK_AGAIN), self._wake)

    def _wake(self) -> None:
        self._timer = None
        if self._looking is None and self._takes_work():
            self._looking = self._driver.own(self._look(), "fire alarms")

    def _takes_work(self) -> bool:
        return not self._closed and not self._driver.account.draining

    async def _look(self) -> None:
        """Fire what is due, then sleep until the next."""
        try:
            self._soonest = inf  # whoever commits from here on says so again
            while self._takes_work() and await self._fire_some():
                pass
            following = await self._store.due(self._types(), limit=1)
            self._hear(following[0].due if following else inf)
        except StoreUnavailable as error:
            log.warning("alarms wait for the store: %s", error)
            self._soonest = min(self._soonest, self._clock() + PAUSE)
        finally:
            self._looking = None
            self._sleep(self._soonest - self._clock())

    async def _fire_some(self) -> bool:
        """Fire those that are due, so many at most; False if there are none."""
        now = self._clock()
        due = await self._store.due(self._types(), before=now, limit=AT_ONCE)
        newest = self._followups.newest
        faults = await asyncio.gather(*(self._fire(alarm, now) for alarm in due))
        for fault in faults:
            if fault is not None:
                self._followups.read_on(
                    newest
                )  # where the outcome is unknown, it may be one by now
                raise fault
        return bool(due)

    async def _fire(self, alarm: StoredAlarm, now: float) -> StoreUnavailable | None:
        """Make it a follow-up; return why that could not be."""
        try:
            fired = await self._store.fire(
                alarm, secrets.token_hex(10), following=_following(alarm, now)
            )
        except StoreUnavailable as error:
            return error
        if fired is not None:
            self._followups.take(fired)
        return None

    def _types(self) -> list[str]:
        """What another host serves is not for this one to begin."""
        return [type.name for type in self._registry.types()]


def _following(alarm: StoredAlarm, now: float) -> float | None:
    """The first of its times that is not past; those between are one with the one that fires."""
    if alarm.every is None:
        return None
    due = alarm.due + alarm.every * (math.floor((now - alarm.due) / alarm.every) + 1)
    return due if due > now else due + alarm.every


def _running() -> Turn:
    turn = current_turn.get(None)
    if turn is None or turn.ended:
        raise RuntimeError(
            "no turn runs here: alarms are set and cancelled while a handler runs, and kept "
            "with its commit"
        )
    return turn


def _change(turn: Turn, name: str, alarm: StoredAlarm | None) -> None:
    if turn.alarms is None:
        turn.alarms = {}
    turn.alarms[name] = alarm


def _letter(runtime: Runtime, turn: Turn, message: Content, name: str) -> bytes:
    """The message as it is stored, if the agent's code takes it."""
    content = as_content(message)
    try:
        runtime.type.bind_followup(content)
    except (InvalidRequest, NoHandler) as error:
        raise ValueError(f"{runtime.key} cannot take this alarm: {error.message}") from None
    call = Call(turn.principal, runtime.key.tenant, turn.request_id or turn.id)
    letter = write_message(content, call, name)
    if len(letter) > MAX_MESSAGE:
        raise ValueError(f"an alarm's message has {len(letter)} bytes; at most {MAX_MESSAGE}")
    return letter


def _checked(name: str) -> str:
    try:
        return check_id(name, "name")
    except InvalidRequest as error:
        raise ValueError(f"an alarm cannot be called {name!r}: {error.message}") from None


def _due(when: float | timedelta | datetime, now: float) -> float:
    if not isinstance(when, datetime):
        return now + _seconds(when, "when")
    if when.tzinfo is None:
        raise ValueError("when: a datetime needs a time zone, as in datetime.now(UTC)")
    return when.timestamp()


def _pause(every: float | timedelta) -> float:
    seconds = _seconds(every, "every")
    if seconds < SHORTEST:
        raise ValueError(f"every: {seconds:g} s is too short; at least {SHORTEST:g} s")
    return seconds


def _seconds(value: float | timedelta, name: str) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name}: seconds or a timedelta, not {type(value).__name__}")
    if not math.isfinite(value):
        raise ValueError(f"{name}: {value} is no time")
    return float(value)


def _shown(alarm: StoredAlarm) -> Alarm:
    every = None if alarm.every is None else timedelta(seconds=alarm.every)
    message = read_message(alarm.message).message
    return Alarm(alarm.name, datetime.fromtimestamp(alarm.due, UTC), every, message)
