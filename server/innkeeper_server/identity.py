"""Who an agent is.

Owns the agent's key and the rules for its parts. A key outlives every runtime of the agent.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from innkeeper_server.errors import InvalidRequest

__all__ = ["MAX_ID_CHARS", "MAX_TYPE_CHARS", "AgentKey", "check_id", "check_key", "check_type"]

MAX_ID_CHARS = 256
MAX_TYPE_CHARS = 128

_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
# C0 and C1 controls, and the lone surrogates that UTF-8 cannot carry.
_UNFIT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class AgentKey(NamedTuple):
    """The identity of an agent. The tenant comes from the principal, never from a request."""

    tenant: str
    type: str
    id: str

    def __str__(self) -> str:
        return f"{self.type}/{self.id}"


def check_id(value: str, field: str = "agent.id") -> str:
    """Return the id, or raise InvalidRequest naming `field`."""
    if not value:
        raise InvalidRequest.of(field, "must not be empty")
    if len(value) > MAX_ID_CHARS:
        raise InvalidRequest.of(field, f"has {len(value)} characters; at most {MAX_ID_CHARS}")
    if not value.isprintable() and _UNFIT.search(value):
        raise InvalidRequest.of(field, "must not contain control characters")
    return value


def check_key(value: str, field: str = "idempotency_key") -> str:
    """Return the idempotency key, or raise InvalidRequest naming `field`."""
    return check_id(value, field)


@lru_cache(maxsize=1024)  # a host serves few types, and is asked for them all the time
def check_type(value: str, field: str = "agent.type") -> str:
    """Return the type name, or raise InvalidRequest naming `field`."""
    if len(value) > MAX_TYPE_CHARS or not _TYPE.fullmatch(value):
        raise InvalidRequest.of(
            field, f"must be a letter and then letters, digits, '_', '.', '-'; 1-{MAX_TYPE_CHARS}"
        )
    return value
