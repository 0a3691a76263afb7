"""How a command ends.

Owns the exit codes, and what each error of the client means for a script and for a person.
"""

from __future__ import annotations

from enum import IntEnum

import grpc

from innkeeper_client import InnkeeperError


class Exit(IntEnum):
    """What the process returns."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    UNAVAILABLE = 5
    DEADLINE = 6
    PRECONDITION = 7
    INTERRUPTED = 130


HELP = """Exit codes: 0 done · 1 the agent or the host failed
2 wrong usage, or a wrong request · 3 no such type, agent or action
4 refused: no capacity, full mailbox, busy agent
5 host unreachable, draining or without its store · 6 out of time
7 not in this state: owned, not resident, stale · 130 interrupted"""

_BY_REASON = {
    "UNKNOWN_AGENT_TYPE": Exit.NOT_FOUND,
    "AGENT_NOT_FOUND": Exit.NOT_FOUND,
    "AGENT_DELETED": Exit.NOT_FOUND,
    "RECEIPT_NOT_FOUND": Exit.NOT_FOUND,
    "TURN_NOT_FOUND": Exit.NOT_FOUND,
    "NO_HANDLER": Exit.NOT_FOUND,
    "CAPACITY_EXHAUSTED": Exit.REFUSED,
    "TOO_MANY_WAITING": Exit.REFUSED,
    "MAILBOX_FULL": Exit.REFUSED,
    "AGENT_BUSY": Exit.REFUSED,
    "CAPACITY_DEADLOCK": Exit.REFUSED,
    "DRAINING": Exit.UNAVAILABLE,
    "STILL_STOPPING": Exit.UNAVAILABLE,
    "STORE_UNAVAILABLE": Exit.UNAVAILABLE,
    "UNREACHABLE": Exit.UNAVAILABLE,
    "OUTCOME_UNKNOWN": Exit.UNAVAILABLE,
    "QUARANTINED": Exit.UNAVAILABLE,
    "START_TIMEOUT": Exit.DEADLINE,
    "DEADLINE_EXCEEDED": Exit.DEADLINE,
    "STALE_EPOCH": Exit.PRECONDITION,
    "VERSION_MISMATCH": Exit.PRECONDITION,
    "CALL_CYCLE": Exit.PRECONDITION,
    "IDEMPOTENCY_MISMATCH": Exit.PRECONDITION,
    "STALE_RUNTIME": Exit.PRECONDITION,
    "AGENT_OWNED": Exit.PRECONDITION,
    "NOT_RESIDENT": Exit.PRECONDITION,
}

# For statuses that no host explained, and for wrong requests, where the code tells more. An
# explained one without an entry above is a failure: AGENT_ERROR with NOT_FOUND is the agent's word.
_BY_CODE = {
    grpc.StatusCode.INVALID_ARGUMENT: Exit.USAGE,
    grpc.StatusCode.NOT_FOUND: Exit.NOT_FOUND,
    grpc.StatusCode.UNIMPLEMENTED: Exit.NOT_FOUND,
    grpc.StatusCode.UNAVAILABLE: Exit.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: Exit.DEADLINE,
    grpc.StatusCode.FAILED_PRECONDITION: Exit.PRECONDITION,
}

_HINTS = {
    "UNREACHABLE": "is a host running there? `innkeeper serve` starts one, --target names another",
    "UNKNOWN_AGENT_TYPE": "`innkeeper types` lists what the host serves",
    "NO_HANDLER": "`innkeeper types` lists what each type can do",
    "CAPACITY_EXHAUSTED": "`innkeeper residents` shows who holds the slots",
    "TOO_MANY_WAITING": "`innkeeper residents` shows who holds the slots",
    "CAPACITY_DEADLOCK": "`innkeeper capacity N` allows more agents at once",
    "MAILBOX_FULL": "try again later, or see `innkeeper why TYPE/ID`",
    "AGENT_BUSY": "leave out --busy reject to wait in line",
    "QUARANTINED": "the host's log tells why it does not start; `innkeeper pin` tries it at once",
    "AGENT_OWNED": "`innkeeper why TYPE/ID` tells who owns it; --mode graceful waits for them",
    "NOT_RESIDENT": "`innkeeper residents` lists who is",
    "STALE_RUNTIME": "`innkeeper why TYPE/ID` shows the runtime that lives now",
    "DRAINING": "`innkeeper undrain` takes work again",
    "OUTCOME_UNKNOWN": "the work may have run; look before you repeat it",
    "DEADLINE_EXCEEDED": "--timeout gives it longer; it may still run",
}


def exit_of(error: InnkeeperError) -> Exit:
    """The exit code for an error."""
    if error.reason and error.reason != "INVALID_REQUEST":
        code = _BY_REASON.get(error.reason, Exit.FAILED)
    else:
        code = _BY_CODE.get(error.code, Exit.FAILED)
    # A wrong call that the agent made of another agent is not a wrong command.
    nested = "through" in error.metadata and code in (Exit.USAGE, Exit.NOT_FOUND)
    return Exit.FAILED if nested else code


def hint_of(error: InnkeeperError) -> str:
    """What a person may do about it; "" if there is nothing to say."""
    return _HINTS.get(error.reason, "")
