"""The writing calls of the store: what each sends, and what its row means.

Owns one `Write` for each function of `migrations/postgresql` that the store calls. A group of calls
of one kind is one statement: the arguments go as arrays, and each call gets its own row.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from innkeeper_server.errors import AgentDeleted
from innkeeper_server.identity import AgentKey
from innkeeper_server.store.fencing import (
    check_alarms,
    check_living,
    check_writer,
    stale_followup,
    stale_outcome,
)
from innkeeper_server.store.protocol import (
    ALARMS_KEPT,
    Alarm,
    AlarmChanges,
    Chunk,
    Followup,
    Hydrated,
    Outcome,
    Settled,
)

__all__ = [
    "Write",
    "accept",
    "append",
    "begin",
    "commit",
    "delete",
    "fire",
    "give_back",
    "hydrate",
    "keep",
    "read_followup",
    "settle",
]

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Write:
    """One call: the function, its arguments, and what its row means. No row: None."""

    function: str
    arguments: Sequence[Any]
    meaning: Callable[[Row | None], Any]


_KEY = "text, text, text"
_CHUNK = "text, bigint, bigint, bigint, bool, bytea"
_COMMIT = (
    f"{_KEY}, bigint, bigint, bytea, text, text, bytea, text, bytea, text, bytea, "
    f"{_CHUNK}, bigint, float8"
)
_TYPES = {
    "hydrate": f"{_KEY}, bytea, bigint, float8",
    "commit": _COMMIT,
    "commit_alarms": f"{_COMMIT}, text, bigint",
    "fire": f"{_KEY}, text, float8, float8, text, float8",
    "append": f"{_KEY}, bigint, {_CHUNK}, bigint, float8",
    "delete": f"{_KEY}, float8",
    "accept": f"text, {_KEY}, bytea, float8, float8, bool, text, bytea",
    "begin": "text, float8",
    "give_back": "text",
    "settle": "text, text, bytea, float8",
    "keep": f"{_KEY}, text, bytea, text, bytea, float8",
}


def _statement(function: str) -> str:
    types = _TYPES[function].split(", ")
    arrays = ", ".join(f"${number}::{type}[]" for number, type in enumerate(types, 1))
    names = ", ".join(f"a{number}" for number in range(1, len(types) + 1))
    # The function runs for one call after the other, in their order; rows tell whose they are.
    return (
        f"SELECT told.*, given.number FROM unnest({arrays}) "
        f"WITH ORDINALITY AS given ({names}, number), "
        f"LATERAL innkeeper_{function}({names}) AS told"
    )


STATEMENTS = {function: _statement(function) for function in _TYPES}


def hydrate(key: AgentKey, interrupted: bytes, *, kept: int, now: float) -> Write:
    def meaning(row: Row | None) -> Hydrated:
        assert row is not None
        check_living(key, deleted=row["new_epoch"] is None)
        return Hydrated(
            row["new_epoch"], row["new_version"], row["new_state"], row["created"], row["waits"]
        )

    return Write("hydrate", (*key, interrupted, kept, now), meaning)


def commit(
    key: AgentKey,
    *,
    epoch: int,
    version: int,
    state: bytes | None,
    settled: Settled | Outcome | None,
    events: Chunk | None,
    alarms: AlarmChanges | None,
    kept: int,
    now: float,
) -> Write:
    ended: tuple[Any, ...] = (None, None, None)
    known: tuple[Any, ...] = (None, None, None, None)
    if isinstance(settled, Settled):
        ended = (settled.id, settled.state, settled.outcome)
    elif settled is not None:
        known = (
            settled.idempotency_key,
            settled.fingerprint,
            settled.turn_id,
            settled.outcome,
        )

    def meaning(row: Row | None) -> int:
        _check(key, row, epoch, version)
        return version if state is None else version + 1

    chunk = _NO_CHUNK if events is None else _of_chunk(events)
    arguments = (*key, epoch, version, state, *ended, *known, *chunk, kept, now)
    if not alarms:
        return Write("commit", arguments, meaning)
    return Write("commit_alarms", (*arguments, _of_changes(alarms), ALARMS_KEPT), meaning)


def fire(alarm: Alarm, id: str, *, following: float | None, now: float) -> Write:
    arguments = (*alarm.key, alarm.name, alarm.due, following, id, now)
    return Write("fire", arguments, lambda row: None if row is None else read_followup(row))


def append(key: AgentKey, *, epoch: int, events: Chunk, kept: int, now: float) -> Write:
    def meaning(row: Row | None) -> None:
        _check(key, row, epoch, 0)

    return Write("append", (*key, epoch, *_of_chunk(events), kept, now), meaning)


def delete(key: AgentKey, *, now: float) -> Write:
    return Write("delete", (*key, now), lambda row: bool(row and row["lived"]))


def accept(followup: Followup) -> Write:
    def meaning(row: Row | None) -> Followup:
        if row is None:
            raise AgentDeleted(
                f"agent {followup.key} was deleted", metadata={"agent": str(followup.key)}
            )
        return read_followup(row)

    arguments = (
        followup.id,
        *followup.key,
        followup.message,
        followup.accepted_at,
        followup.expires_at,
        followup.passive,
        followup.idempotency_key,
        followup.fingerprint,
    )
    return Write("accept", arguments, meaning)


def begin(id: str, *, now: float) -> Write:
    return Write("begin", (id, now), lambda row: int(row["attempts"]) if row else 0)


def give_back(id: str) -> Write:
    return Write("give_back", (id,), lambda _: None)


def settle(settled: Settled, *, now: float) -> Write:
    arguments = (settled.id, settled.state, settled.outcome, now)
    return Write("settle", arguments, lambda row: bool(row and row["done"]))


def keep(outcome: Outcome, *, now: float) -> Write:
    arguments = (
        *outcome.key,
        outcome.idempotency_key,
        outcome.fingerprint,
        outcome.turn_id,
        outcome.outcome,
        now,
    )
    return Write("keep", arguments, lambda row: bool(row and row["done"]))


def read_followup(row: Row) -> Followup:
    """A row of the table."""
    return Followup(
        id=row["receipt"],
        key=AgentKey(row["tenant"], row["type"], row["id"]),
        message=row["message"],
        accepted_at=row["accepted_at"],
        expires_at=row["expires_at"],
        passive=row["passive"],
        seq=row["seq"],
        attempt=row["attempt"],
        state=row["state"],
        started_at=row["started_at"],
        settled_at=row["settled_at"],
        outcome=row["outcome"],
        idempotency_key=row["idempotency_key"],
        fingerprint=row["fingerprint"],
    )


_NO_CHUNK = (None,) * 6


def _of_chunk(chunk: Chunk) -> tuple[Any, ...]:
    return chunk.turn_id, chunk.epoch, chunk.first, chunk.last, chunk.ended, chunk.data


def _of_changes(changes: AlarmChanges) -> str:
    return json.dumps(
        [
            {"name": name}
            if alarm is None
            else {
                "name": name,
                "due": alarm.due,
                "every": alarm.every,
                "message": base64.b64encode(alarm.message).decode(),
            }
            for name, alarm in changes.items()
        ]
    )


def _check(key: AgentKey, row: Row | None, epoch: int, version: int) -> None:
    """Raise what the row says that a writer was refused with, in every store's words."""
    assert row is not None, "a write without a word on it"
    refused, stored = row["refused"], row["stored"]
    if refused == "settled":
        raise stale_followup(key)
    if refused == "outcome":
        raise stale_outcome(key)
    if refused == "alarms":
        check_alarms(key, stored)
    found = {
        "": (epoch, version, False),
        "missing": None,
        "deleted": (epoch, version, True),
        "epoch": (stored, version, False),
        "version": (epoch, stored, False),
    }[refused]
    check_writer(key, found, epoch=epoch, version=version)
