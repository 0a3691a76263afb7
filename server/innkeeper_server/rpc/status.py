"""An error as gRPC carries it: code, text, and google.rpc details.

Owns the packing of errors into `google.rpc.Status`, within what metadata can hold: gRPC refuses
more than 16 KB of it, and loses it at random from 8 KB on. An agent chooses the words of its own
errors, so anything may come here: packing never fails.
"""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode

from innkeeper_server.errors import InnkeeperError

DOMAIN = "innkeeper"
STATUS_KEY = "grpc-status-details-bin"
PUSHBACK_KEY = "grpc-retry-pushback-ms"

MAX_TEXT = 1_000  # characters of an error's text
MAX_ESCAPED = 1_500  # bytes of it as gRPC sends it: three for each byte that is no printable ASCII
MAX_VALUE = 300  # characters of one key or value of its metadata
MAX_VIOLATIONS = 8
MAX_PACKED = 4_096  # bytes of the packed status


def to_status(error: InnkeeperError) -> status_pb2.Status:
    """The error with everything a client can act on. An error is never OK."""
    code: int = error.status_code.value[0]
    status = status_pb2.Status(code=code, message=_escapable(shortened(error.message, MAX_TEXT)))
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    for key, value in error.metadata.items():
        info.metadata[shortened(key, MAX_VALUE)] = shortened(value, MAX_VALUE)
    details: list[Message] = [info]
    if error.retry_after is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(round(error.retry_after * 1000))
        details.append(retry)
    if error.violations:
        details.append(_bad_request(error.violations))
    _pack(status, details)
    if status.ByteSize() > MAX_PACKED:  # what programs act on stays: the reason, and the retry
        info.ClearField("metadata")
        _pack(status, [detail for detail in details if detail.DESCRIPTOR.name != "BadRequest"])
    return status


def stored_status(
    code: str, reason: str, message: str, metadata: Mapping[str, str]
) -> status_pb2.Status:
    """An error that was written into the store, perhaps by another version."""
    number: int = StatusCode[code].value[0]
    status = status_pb2.Status(code=number, message=_escapable(shortened(message, MAX_TEXT)))
    info = error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN)
    for key, value in metadata.items():
        info.metadata[shortened(key, MAX_VALUE)] = shortened(value, MAX_VALUE)
    _pack(status, [info])
    return status


def trailers(
    error: InnkeeperError, status: status_pb2.Status
) -> tuple[tuple[str, str | bytes], ...]:
    """Trailing metadata: the packed status, and push-back for clients that retry by themselves."""
    pushback = -1 if error.retry_after is None else round(error.retry_after * 1000)
    return ((STATUS_KEY, status.SerializeToString()), (PUSHBACK_KEY, str(pushback)))


def shortened(text: object, limit: int) -> str:
    """Text that fits and is Unicode, marked where it was cut."""
    try:
        shown = str(text)
    except Exception:  # an object of an agent's, whose words cannot be had
        shown = f"<{type(text).__name__}>"
    if len(shown) > limit:
        shown = shown[: limit - 1] + "…"
    return shown if shown.isascii() else shown.encode("utf-8", "replace").decode()


def _escapable(text: str) -> str:
    """Text that is not too long for a header either."""
    room = MAX_ESCAPED
    for place, character in enumerate(text):
        plain = " " <= character <= "~" and character != "%"
        room -= 1 if plain else 3 * len(character.encode())
        if room < 9:  # for the mark
            return text[:place] + "…"
    return text


def _bad_request(violations: tuple[tuple[str, str], ...]) -> error_details_pb2.BadRequest:
    bad = error_details_pb2.BadRequest()
    for field, description in violations[:MAX_VIOLATIONS]:
        bad.field_violations.add(
            field=shortened(field, MAX_VALUE), description=shortened(description, MAX_VALUE)
        )
    return bad


def _pack(status: status_pb2.Status, details: list[Message]) -> None:
    del status.details[:]
    for detail in details:
        status.details.add().Pack(detail)
