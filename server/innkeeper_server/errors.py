"""Every error that Innkeeper raises on purpose.

Owns the error tree. A class carries its gRPC code and its reason (the wire's `ErrorReason`
without prefix); an instance carries what only the moment knows: the words, metadata for programs,
and the seconds after which a retry makes sense.

    InnkeeperError
     ├─ InvalidRequest         INVALID_ARGUMENT     a field is wrong; names it
     ├─ UnknownAgentType       NOT_FOUND            no such type here
     ├─ AgentNotFound          NOT_FOUND            no such agent for this caller
     ├─ AgentDeleted           NOT_FOUND            it was deleted; nothing revives it
     ├─ IdempotencyMismatch    FAILED_PRECONDITION  the key came with another request before
     ├─ ReceiptNotFound        NOT_FOUND            no such receipt, or kept no longer
     ├─ DeadLettered           ABORTED              a follow-up failed too often
     ├─ NoHandler              UNIMPLEMENTED        no such action, or no chat
     ├─ CapacityExhausted      RESOURCE_EXHAUSTED   no slot in time
     ├─ TooManyWaiting         RESOURCE_EXHAUSTED   the line for slots is full
     ├─ MailboxFull            RESOURCE_EXHAUSTED   the agent's mailbox is full
     ├─ SlowReader             RESOURCE_EXHAUSTED   the reader of a stream was let go
     ├─ TooLarge               RESOURCE_EXHAUSTED   message, reply or state over a limit
     ├─ Draining               UNAVAILABLE          the host takes nothing new
     ├─ StillStopping          UNAVAILABLE          an earlier life has not ended
     ├─ StartFailed            UNAVAILABLE          hydration or on_start failed
     ├─ Quarantined            UNAVAILABLE          it failed to start too often; left alone
     ├─ StoreUnavailable       UNAVAILABLE          the store cannot be used now
     ├─ StartTimeout           DEADLINE_EXCEEDED    the agent did not start in time
     ├─ DeadlineExceeded       DEADLINE_EXCEEDED    the caller's, or the turn's limit
     ├─ Evicted                ABORTED              evicted by force in mid-work
     ├─ StaleEpoch             ABORTED              another writer took over
     ├─ AgentBusy              ABORTED              busy, and the caller asked not to wait
     ├─ VersionMismatch        ABORTED              the state has another version
     ├─ CallCycle              FAILED_PRECONDITION  a nested call would wait for itself
     ├─ CapacityDeadlock       FAILED_PRECONDITION  every slot is held by a waiting parent
     ├─ StaleRuntime           FAILED_PRECONDITION  that life is over
     ├─ AgentOwned             FAILED_PRECONDITION  evict-if-idle met owners
     ├─ NotResident            FAILED_PRECONDITION  the agent has no runtime
     ├─ SessionProtocol        FAILED_PRECONDITION  a frame out of place
     ├─ WorkCancelled          CANCELLED            somebody cancelled the work
     ├─ HandlerFailed          UNKNOWN              the agent's code raised; text withheld
     ├─ Internal               INTERNAL             the host's own fault
     └─ AgentError             any but OK           raised by an agent on purpose

Cancelled work ends in `WorkCancelled`, never in `asyncio.CancelledError`: a foreign
CancelledError in a gRPC handler leaves the client without a status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from grpc import StatusCode


class InnkeeperError(Exception):
    """Base of all: `code` and `reason` say what, the instance says the rest.

    `metadata` travels in ErrorInfo, `violations` (field, description) in BadRequest, and
    `retry_after` (seconds; None: a retry does not help) in RetryInfo and as gRPC push-back.
    """

    code: ClassVar[StatusCode] = StatusCode.INTERNAL
    reason: ClassVar[str] = "INTERNAL"
    default_retry_after: ClassVar[float | None] = None

    def __init__(
        self,
        message: str,
        *,
        metadata: Mapping[str, str] | None = None,
        violations: tuple[tuple[str, str], ...] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.metadata: dict[str, str] = dict(metadata or {})
        self.violations = violations
        self.retry_after = self.default_retry_after if retry_after is None else retry_after

    @property
    def status_code(self) -> StatusCode:
        """The gRPC code of this instance."""
        return self.code


class InvalidRequest(InnkeeperError):
    """A field of the request is wrong."""

    code = StatusCode.INVALID_ARGUMENT
    reason = "INVALID_REQUEST"

    @classmethod
    def of(cls, field: str, description: str) -> Self:
        """The usual case: one field, one fault."""
        return cls(f"{field}: {description}", violations=((field, description),))


class UnknownAgentType(InnkeeperError):
    """The host serves no agents of this type."""

    code = StatusCode.NOT_FOUND
    reason = "UNKNOWN_AGENT_TYPE"


class AgentNotFound(InnkeeperError):
    """There is no such agent for this caller."""

    code = StatusCode.NOT_FOUND
    reason = "AGENT_NOT_FOUND"


class AgentDeleted(InnkeeperError):
    """The agent was deleted, and nothing revives it."""

    code = StatusCode.NOT_FOUND
    reason = "AGENT_DELETED"


class IdempotencyMismatch(InnkeeperError):
    """The idempotency key came before with another request."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "IDEMPOTENCY_MISMATCH"


class ReceiptNotFound(InnkeeperError):
    """There is no such receipt for this caller, or it is kept no longer."""

    code = StatusCode.NOT_FOUND
    reason = "RECEIPT_NOT_FOUND"


class TurnNotFound(InnkeeperError):
    """There is no such turn for this caller, or its events are kept no longer."""

    code = StatusCode.NOT_FOUND
    reason = "TURN_NOT_FOUND"


class Interrupted(InnkeeperError):
    """The host ended in the middle of the turn; nothing of it was kept."""

    code = StatusCode.ABORTED
    reason = "INTERRUPTED"


class DeadLettered(InnkeeperError):
    """A follow-up failed too often and was put aside."""

    code = StatusCode.ABORTED
    reason = "DEAD_LETTERED"


class NoHandler(InnkeeperError):
    """The agent has no such action, or does not chat."""

    code = StatusCode.UNIMPLEMENTED
    reason = "NO_HANDLER"


class CapacityExhausted(InnkeeperError):
    """No slot came free before the caller's patience ended."""

    code = StatusCode.RESOURCE_EXHAUSTED
    reason = "CAPACITY_EXHAUSTED"
    default_retry_after = 1.0


class TooManyWaiting(InnkeeperError):
    """The line of callers waiting for residency is full."""

    code = StatusCode.RESOURCE_EXHAUSTED
    reason = "TOO_MANY_WAITING"
    default_retry_after = 1.0


class MailboxFull(InnkeeperError):
    """The agent's mailbox is full."""

    code = StatusCode.RESOURCE_EXHAUSTED
    reason = "MAILBOX_FULL"
    default_retry_after = 0.5


class SlowReader(InnkeeperError):
    """The reader of a stream did not keep up and was let go."""

    code = StatusCode.RESOURCE_EXHAUSTED
    reason = "SLOW_READER"


class TooLarge(InnkeeperError):
    """A message, a reply or a state is larger than the host allows."""

    code = StatusCode.RESOURCE_EXHAUSTED
    reason = "TOO_LARGE"


class Draining(InnkeeperError):
    """The host is draining and takes nothing new; another may be up already."""

    code = StatusCode.UNAVAILABLE
    reason = "DRAINING"
    default_retry_after = 1.0


class StillStopping(InnkeeperError):
    """The agent's earlier life was told to stop and still runs."""

    code = StatusCode.UNAVAILABLE
    reason = "STILL_STOPPING"
    default_retry_after = 1.0


class StartFailed(InnkeeperError):
    """The agent could not be started."""

    code = StatusCode.UNAVAILABLE
    reason = "START_FAILED"
    default_retry_after = 1.0


class Quarantined(InnkeeperError):
    """The agent failed to start several times in a row, and is not tried for a while."""

    code = StatusCode.UNAVAILABLE
    reason = "QUARANTINED"


class StoreUnavailable(InnkeeperError):
    """The store cannot be read or written now. What was not acknowledged was not kept."""

    code = StatusCode.UNAVAILABLE
    reason = "STORE_UNAVAILABLE"
    default_retry_after = 1.0


class StartTimeout(InnkeeperError):
    """The agent did not start in time."""

    code = StatusCode.DEADLINE_EXCEEDED
    reason = "START_TIMEOUT"
    default_retry_after = 1.0


class DeadlineExceeded(InnkeeperError):
    """The caller's deadline, or the host's limit for one turn, passed."""

    code = StatusCode.DEADLINE_EXCEEDED
    reason = "DEADLINE_EXCEEDED"


class Evicted(InnkeeperError):
    """The runtime was evicted by force in the middle of the work; nothing of it was kept."""

    code = StatusCode.ABORTED
    reason = "EVICTED"
    default_retry_after = 0.1


class StaleEpoch(InnkeeperError):
    """Another writer has taken the agent over; nothing of this turn was kept."""

    code = StatusCode.ABORTED
    reason = "STALE_EPOCH"
    default_retry_after = 0.1


class AgentBusy(InnkeeperError):
    """The agent is in a turn, and the caller asked not to wait."""

    code = StatusCode.ABORTED
    reason = "AGENT_BUSY"


class VersionMismatch(InnkeeperError):
    """The state has another version than the caller expected."""

    code = StatusCode.ABORTED
    reason = "VERSION_MISMATCH"


class CallCycle(InnkeeperError):
    """The nested call would wait, through others, for its own caller."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "CALL_CYCLE"


class CapacityDeadlock(InnkeeperError):
    """Every slot is held by an agent that waits for a nested call which needs a slot."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "CAPACITY_DEADLOCK"


class StaleRuntime(InnkeeperError):
    """The named life of the agent is not the one that lives now."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "STALE_RUNTIME"


class AgentOwned(InnkeeperError):
    """The agent is owned and was to be evicted only if idle."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "AGENT_OWNED"


class NotResident(InnkeeperError):
    """The agent has no runtime now."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "NOT_RESIDENT"


class SessionProtocol(InnkeeperError):
    """A frame that the session's state does not allow."""

    code = StatusCode.FAILED_PRECONDITION
    reason = "SESSION_PROTOCOL"


class WorkCancelled(InnkeeperError):
    """Somebody cancelled the work; nothing of it was kept."""

    code = StatusCode.CANCELLED
    reason = "CANCELLED"


class HandlerFailed(InnkeeperError):
    """The agent's code raised. What it said stays in the log, under the error id."""

    code = StatusCode.UNKNOWN
    reason = "HANDLER_FAILED"


class Internal(InnkeeperError):
    """The host's own fault. The log has it under the error id."""

    code = StatusCode.INTERNAL
    reason = "INTERNAL"


class AgentError(InnkeeperError):
    """Raised by an agent to end its turn with a status of its own choice.

    `code` is a gRPC status, as `grpc.StatusCode` or by name (`"NOT_FOUND"`); OK is refused with
    ValueError. `message` and `details` reach the caller as they are.
    """

    reason = "AGENT_ERROR"

    def __init__(
        self, code: StatusCode | str, message: str, details: Mapping[str, Any] | None = None
    ) -> None:
        try:
            chosen = code if isinstance(code, StatusCode) else StatusCode[code.upper()]
        except KeyError:
            raise ValueError(f"no gRPC status is named {code!r}") from None
        if chosen is StatusCode.OK:
            raise ValueError("an AgentError cannot be OK")
        super().__init__(message, metadata={k: str(v) for k, v in (details or {}).items()})
        self.chosen = chosen

    @property
    def status_code(self) -> StatusCode:
        return self.chosen
