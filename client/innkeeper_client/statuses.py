"""Errors as they come off the wire: a failed RPC, or a status inside of an event or a frame.

Owns the way from gRPC's code, text and details to the typed error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import grpc
from google.protobuf import message as pb
from google.rpc import error_details_pb2 as details_pb
from google.rpc import status_pb2 as status_pb
from grpc import aio

from .errors import BY_REASON, DeadlineExceeded, InnkeeperError, OutcomeUnknown, Unreachable

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
_BY_NUMBER: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}

_Detail = TypeVar("_Detail", bound=pb.Message)


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
    return BY_REASON.get(info.reason, InnkeeperError)(
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
