"""Every error that the client raises. How each is read off the wire is in statuses.py.

Owns the error tree of the caller's side. The classes mirror the host's by reason; three more tell
what only a caller can see.

    InnkeeperError
     ├─ InvalidRequest        a field of the request is wrong; see `violations`
     ├─ UnknownAgentType, AgentNotFound, AgentDeleted, NoHandler, UnknownMethod
     ├─ CapacityExhausted*, TooManyWaiting*, MailboxFull*, AgentBusy*
     ├─ Draining*, StillStopping*, StartFailed*, StartTimeout*, Quarantined*
     ├─ StoreUnavailable, Evicted, StaleEpoch     nothing of the turn was kept
     ├─ SlowReader, TooLarge, VersionMismatch, DeadlineExceeded, WorkCancelled
     ├─ CallCycle, CapacityDeadlock, StaleRuntime, AgentOwned, NotResident, SessionProtocol
     ├─ AgentError (on purpose), HandlerFailed, Internal, ReceiptNotFound, DeadLettered, …
     ├─ Unreachable*          no connection came about; nothing was sent
     ├─ OutcomeUnknown        the connection broke after sending: the work may have run, or not
     └─ ClientClosed          this client, or this session, was closed under the call

A star marks `never_began`: the work was not begun, so sending it again cannot do it twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import grpc

BY_REASON: dict[str, type[InnkeeperError]] = {}


class InnkeeperError(Exception):
    """Base of all.

    `code` is the gRPC status, `reason` the host's word for the cause ("" where it gave none),
    `metadata` what it added for programs, `violations` the (field, description) pairs of a wrong
    request, `retry_after` the seconds after which a retry makes sense (None: it does not help),
    and `no_retry` is True where the host asked not to be tried again.
    """

    reason: str = ""
    never_began: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.reason:
            BY_REASON.setdefault(cls.reason, cls)

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode = grpc.StatusCode.UNKNOWN,
        reason: str | None = None,
        metadata: Mapping[str, str] | None = None,
        violations: tuple[tuple[str, str], ...] = (),
        retry_after: float | None = None,
        no_retry: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = type(self).reason if reason is None else reason
        self.metadata: dict[str, str] = dict(metadata or {})
        self.violations = violations
        self.retry_after = retry_after
        self.no_retry = no_retry


class InvalidRequest(InnkeeperError):
    """A field of the request is wrong."""

    reason = "INVALID_REQUEST"


class UnknownAgentType(InnkeeperError):
    """The host serves no agents of this type."""

    reason = "UNKNOWN_AGENT_TYPE"


class AgentNotFound(InnkeeperError):
    """There is no such agent for this caller."""

    reason = "AGENT_NOT_FOUND"


class AgentDeleted(InnkeeperError):
    """The agent was deleted, and nothing revives it."""

    reason = "AGENT_DELETED"


class NoHandler(InnkeeperError):
    """The agent has no such action, or does not chat."""

    reason = "NO_HANDLER"


class UnknownMethod(InnkeeperError):
    """The host knows no such method; it is older or newer than this client."""

    reason = "UNKNOWN_METHOD"


class CapacityExhausted(InnkeeperError):
    """No slot came free in time; `metadata` tells the capacity and the blockers."""

    reason = "CAPACITY_EXHAUSTED"
    never_began = True


class TooManyWaiting(InnkeeperError):
    """The line of callers waiting for residency is full."""

    reason = "TOO_MANY_WAITING"
    never_began = True


class MailboxFull(InnkeeperError):
    """The agent's mailbox is full."""

    reason = "MAILBOX_FULL"
    never_began = True


class AgentBusy(InnkeeperError):
    """The agent is in a turn, and this call asked not to wait."""

    reason = "AGENT_BUSY"
    never_began = True


class Draining(InnkeeperError):
    """The host is draining and takes nothing new."""

    reason = "DRAINING"
    never_began = True


class StillStopping(InnkeeperError):
    """The agent's earlier life was told to stop and still runs."""

    reason = "STILL_STOPPING"
    never_began = True


class StartFailed(InnkeeperError):
    """The agent could not be started."""

    reason = "START_FAILED"
    never_began = True


class StartTimeout(InnkeeperError):
    """The agent did not start in time."""

    reason = "START_TIMEOUT"
    never_began = True


class Quarantined(InnkeeperError):
    """The agent failed to start several times in a row; `retry_after` tells when it is tried."""

    reason = "QUARANTINED"
    never_began = True


class StoreUnavailable(InnkeeperError):
    """The store cannot be read or written now; nothing of the turn was kept."""

    reason = "STORE_UNAVAILABLE"


class Evicted(InnkeeperError):
    """The runtime was evicted by force in the middle of the work; nothing of it was kept."""

    reason = "EVICTED"


class StaleEpoch(InnkeeperError):
    """Another host took the agent over; nothing of this turn was kept."""

    reason = "STALE_EPOCH"


class SlowReader(InnkeeperError):
    """A stream was not read quickly enough and was let go."""

    reason = "SLOW_READER"


class TooLarge(InnkeeperError):
    """A message, a reply or a state is larger than allowed."""

    reason = "TOO_LARGE"


class VersionMismatch(InnkeeperError):
    """The state has another version than expected."""

    reason = "VERSION_MISMATCH"


class DeadlineExceeded(InnkeeperError):
    """The call's deadline, or the host's limit for one turn, passed. The work may have run."""

    reason = "DEADLINE_EXCEEDED"


class WorkCancelled(InnkeeperError):
    """Somebody cancelled the work; nothing of it was kept."""

    reason = "CANCELLED"


class CallCycle(InnkeeperError):
    """A nested call would wait, through others, for its own caller."""

    reason = "CALL_CYCLE"


class CapacityDeadlock(InnkeeperError):
    """Every slot is held by an agent that waits for a nested call which needs a slot."""

    reason = "CAPACITY_DEADLOCK"


class StaleRuntime(InnkeeperError):
    """The named life of the agent is not the one that lives now."""

    reason = "STALE_RUNTIME"


class AgentOwned(InnkeeperError):
    """The agent is owned and was to be evicted only if idle."""

    reason = "AGENT_OWNED"


class NotResident(InnkeeperError):
    """The agent has no runtime now."""

    reason = "NOT_RESIDENT"


class IdempotencyMismatch(InnkeeperError):
    """The idempotency key came before with another request."""

    reason = "IDEMPOTENCY_MISMATCH"


class ReceiptNotFound(InnkeeperError):
    """There is no such receipt, or the host keeps it no longer."""

    reason = "RECEIPT_NOT_FOUND"


class TurnNotFound(InnkeeperError):
    """There is no such turn, or the host keeps its events no longer."""

    reason = "TURN_NOT_FOUND"


class Interrupted(InnkeeperError):
    """The host ended in the middle of the turn; nothing of it was kept."""

    reason = "INTERRUPTED"


class DeadLettered(InnkeeperError):
    """A follow-up failed too often."""

    reason = "DEAD_LETTERED"


class SessionProtocol(InnkeeperError):
    """A frame that the session's state does not allow."""

    reason = "SESSION_PROTOCOL"


class AgentError(InnkeeperError):
    """The agent ended its turn with a status of its own choice."""

    reason = "AGENT_ERROR"


class HandlerFailed(InnkeeperError):
    """The agent's code raised. What it said is in the host's log, under the error id."""

    reason = "HANDLER_FAILED"


class Internal(InnkeeperError):
    """The host's own fault. Its log has it under the error id."""

    reason = "INTERNAL"


class Unreachable(InnkeeperError):
    """No connection came about: a wrong address, or nobody there. Nothing was sent."""

    reason = "UNREACHABLE"
    never_began = True


class OutcomeUnknown(InnkeeperError):
    """The call ended without the host's word on it: its work may have run, or not."""

    reason = "OUTCOME_UNKNOWN"


class ClientClosed(InnkeeperError):
    """This client, or this session, was closed while the call was under way."""

    reason = "CLIENT_CLOSED"
