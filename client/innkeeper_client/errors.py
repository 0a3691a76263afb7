"""Every error that the client raises, and how each is read off the wire.

Owns the error tree of the caller's side. The classes mirror the host's by reason; three more tell
what only a caller can see.

    InnkeeperError
     ├─ InvalidRequest        a field of the request is wrong; see `violations`
     ├─ UnknownAgentType, AgentNotFound, AgentDeleted, NoHandler, UnknownMethod
     ├─ CapacityExhausted*, TooManyWaiting*, MailboxFull*, AgentBusy*
     ├─ Draining*, StillStopping*, StartFailed*, StartTimeout*
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

from collections.abc import Iterable, Mapping
from typing import ClassVar, TypeVar

import grpc
from google.protobuf import message as pb
from google.rpc import error_details_pb2 as details_pb
from google.rpc import status_pb2 as status_pb
from grpc import aio

DOMAIN = "innkeeper"
DETAILS_KEY = "grpc-status-details-bin"
PUSHBACK_KEY = "grpc-retry-pushback-ms"

# How grpc begins the text of a failure that came before a connection was there.
_NEVER_CONNECTED = (
    "failed to connect to all addresses",
    "errors resolving ",
    "dns resolution failed",
    "empty address list",
)
_BY_REASON: dict[str, type[InnkeeperError]] = {}
_BY_NUMBER: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}

_Detail = TypeVar("_Detail", bound=pb.Message)


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
            _BY_REASON.setdefault(cls.reason, cls)

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


def from_status(status: status_pb.Status) -> InnkeeperError:
    """The typed error for a google.rpc.Status, as it travels in events and frames."""
    code = _BY_NUMBER.get(status.code, grpc.StatusCode.UNKNOWN)
    return _typed(code, status.message, status)


def from_rpc(error: aio.AioRpcError) -> InnkeeperError:
    """The typed error for a failed RPC: its details, and the host's push-back."""
    trailing = _trailing(error)
    typed = _typed(error.code(), error.details() or "", _parse_details(trailing))
    pushback = trailing.get(PUSHBACK_KEY)
    if pushback is not None:
        _push_back(typed, pushback)
    return typed


def _typed(code: grpc.StatusCode, text: str, status: status_pb.Status | None) -> InnkeeperError:
    info = _detail(status, details_pb.ErrorInfo)
    if info is None or info.domain != DOMAIN:
        return _untold(code, text)
    bad = _detail(status, details_pb.BadRequest)
    retry = _detail(status, details_pb.RetryInfo)
    return _BY_REASON.get(info.reason, InnkeeperError)(
        text or info.reason,
        code=code,
        reason=info.reason,
        metadata=info.metadata,
        violations=tuple((v.field, v.description) for v in bad.field_violations) if bad else (),
        retry_after=retry.retry_delay.ToTimedelta().total_seconds() if retry else None,
    )


def _untold(code: grpc.StatusCode, text: str) -> InnkeeperError:
    """A status that the host did not explain: made by grpc itself, or by something between.

    UNAVAILABLE and CANCELLED then say nothing about whether the work was begun, unless grpc says
    that it never had a connection.
    """
    if code is grpc.StatusCode.UNAVAILABLE and text.lower().startswith(_NEVER_CONNECTED):
        _, _, cause = text.partition("last error: ")
        return Unreachable(f"no host answers: {cause or text}", code=code)
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return OutcomeUnknown(text or "the connection was lost", code=code)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(text, code=code)
    return InnkeeperError(text or code.name, code=code)


def _trailing(error: aio.AioRpcError) -> dict[str, str | bytes]:
    pairs: Iterable[tuple[str, str | bytes]] = error.trailing_metadata() or ()
    return dict(pairs)


def _parse_details(trailing: Mapping[str, str | bytes]) -> status_pb.Status | None:
    raw = trailing.get(DETAILS_KEY)
    if not isinstance(raw, bytes):
        return None
    try:
        return status_pb.Status.FromString(raw)
    except pb.DecodeError:
        return None


def _detail(status: status_pb.Status | None, kind: type[_Detail]) -> _Detail | None:
    for packed in status.details if status is not None else ():
        if packed.Is(kind.DESCRIPTOR):
            detail = kind()
            packed.Unpack(detail)
            return detail
    return None


def _push_back(error: InnkeeperError, value: str | bytes) -> None:
    # As gRPC's retry design has it: a negative or unreadable value means "do not retry".
    try:
        milliseconds = int(value)
    except ValueError:
        milliseconds = -1
    if milliseconds < 0:
        error.retry_after, error.no_retry = None, True
    else:
        error.retry_after = milliseconds / 1000
