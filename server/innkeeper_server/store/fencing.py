"""Who may write: the one rule that every store applies.

Owns the comparison of a writer's epoch and version with the stored ones, and its refusals.
"""

from __future__ import annotations

from innkeeper_server.errors import AgentDeleted, StaleEpoch, TooLarge
from innkeeper_server.identity import AgentKey
from innkeeper_server.store.protocol import ALARMS_KEPT

__all__ = [
    "check_alarms",
    "check_epoch",
    "check_living",
    "check_writer",
    "stale_followup",
    "stale_outcome",
]


def check_living(key: AgentKey, *, deleted: bool) -> None:
    """Raise AgentDeleted if the agent's row is a tombstone."""
    if deleted:
        raise AgentDeleted(f"agent {key} was deleted", metadata={"agent": str(key)})


def check_writer(
    key: AgentKey, stored: tuple[int, int, bool] | None, *, epoch: int, version: int
) -> None:
    """Raise AgentDeleted or StaleEpoch unless the writer's numbers are the stored ones.

    `stored` is the row's (epoch, version, deleted). An agent without a row has no writer: whoever
    hydrated it made the row, so this writer comes from another life of the whole store.
    """
    stored_version = check_epoch(key, stored, epoch=epoch)
    if stored_version != version:
        raise _stale(key, f"its version is {stored_version}, the writer has {version}")


def check_epoch(key: AgentKey, stored: tuple[int, int, bool] | None, *, epoch: int) -> int:
    """As `check_writer`, for what does not touch the state; return the stored version."""
    if stored is None:
        raise _stale(key, f"it is not in the store; the writer has epoch {epoch}")
    stored_epoch, stored_version, deleted = stored
    check_living(key, deleted=deleted)
    if stored_epoch != epoch:
        raise _stale(key, f"its epoch is {stored_epoch}, the writer has {epoch}")
    return stored_version


def check_alarms(key: AgentKey, count: int) -> None:
    """Raise TooLarge if an agent would have so many alarms."""
    if count > ALARMS_KEPT:
        raise TooLarge(
            f"{key} would have {count} alarms; at most {ALARMS_KEPT}",
            metadata={"agent": str(key), "limit": str(ALARMS_KEPT)},
        )


def stale_followup(key: AgentKey) -> StaleEpoch:
    """The refusal of a commit for a follow-up that has ended already."""
    return _stale(key, "the follow-up whose turn it was has ended already")


def stale_outcome(key: AgentKey) -> StaleEpoch:
    """The refusal of a commit for a call whose key has an outcome."""
    return _stale(key, "the call with that idempotency key has an outcome already")


def _stale(key: AgentKey, why: str) -> StaleEpoch:
    return StaleEpoch(f"agent {key} has another writer: {why}", metadata={"agent": str(key)})
