"""What must hold of every store. Owns the statements that look for what does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from innkeeper_server.store.upkeep.protocol import Reading

__all__ = ["CHECKS", "Finding", "look"]

_GONE = "FROM {0} AS x LEFT JOIN agents AS a USING (tenant, type, id) WHERE "

# What each statement counts is wrong; both dialects understand it.
CHECKS: dict[str, str] = {
    "agents with an epoch below 1 or a version below 0": (
        "SELECT count(*) FROM agents WHERE epoch < 1 OR version < 0"
    ),
    "agents with commits, and without a state": (
        "SELECT count(*) FROM agents WHERE version > 0 AND state IS NULL AND NOT deleted"
    ),
    "follow-ups in a state that there is not": (
        "SELECT count(*) FROM followups WHERE state NOT IN "
        "('accepted', 'completed', 'failed', 'cancelled', 'expired', 'dead_lettered')"
    ),
    "follow-ups of deleted agents that have not ended": (
        "SELECT count(*) " + _GONE.format("followups") + "a.deleted AND x.settled_at IS NULL"
    ),
    "alarms of agents that are deleted, or never lived": (
        "SELECT count(*) " + _GONE.format("alarms") + "a.deleted OR a.epoch IS NULL"
    ),
    "events of agents that are deleted, or never lived, or were not there yet": (
        "SELECT count(*) "
        + _GONE.format("events")
        + "a.deleted OR a.epoch IS NULL OR x.epoch > a.epoch"
    ),
    "events that stand in the place of others": (
        "SELECT count(*) FROM (SELECT position - (last - first) AS start, lag(position) OVER "
        "(PARTITION BY tenant, type, id ORDER BY position) AS before FROM events) AS x "
        "WHERE start <= before"
    ),
}


class Finding(NamedTuple):
    """Something that is wrong, and how often."""

    what: str
    times: int


async def look(reading: Reading, done: Callable[[str], None]) -> list[Finding]:
    """Everything that is wrong with a store. `done` is told each step that was made."""
    findings = [Finding(words, 1) for words in await reading.damage()]
    done("files")
    for what, sql in CHECKS.items():
        if count := await reading.number(sql):
            findings.append(Finding(what, count))
        done(what)
    return findings
