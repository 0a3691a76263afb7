"""An error as gRPC carries it: code, text, and google.rpc details.

Owns the packing of errors into `google.rpc.Status`, within what metadata can hold: gRPC refuses
more than 16 KB of it, and loses it at random from 8 KB on.
"""

from __future__ import annotations

from google.protobuf.any_pb2 import Any as PackedAny
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from innkeeper_server.errors import InnkeeperError

DOMAIN = "innkeeper"
STATUS_KEY = "grpc-status-details-bin"
PUSHBACK_KEY = "grpc-retry-pushback-ms"

MAX_TEXT = 1_000  # characters of an error's text
MAX_VALUE = 300  # characters of one value of its metadata
MAX_VIOLATIONS = 8
MAX_PACKED = 4_096  # bytes of the packed status


def to_status(error: InnkeeperError) -> status_pb2.Status:
    """The error with everything a client can act on. An error is never OK."""
    code: int = error.status_code.value[0]
    status = status_pb2.Status(code=code, message=shortened(error.message, MAX_TEXT))
    metadata = {key: shortened(value, MAX_VALUE) for key, value in error.metadata.items()}
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata)
    status.details.append(_packed(info))
    if error.violations:
        bad = error_details_pb2.BadRequest()
        for field, description in error.violations[:MAX_VIOLATIONS]:
            bad.field_violations.add(
                field=shortened(field, MAX_VALUE), description=shortened(description, MAX_VALUE)
            )
        status.details.append(_packed(bad))
    if error.retry_after is not None:
        delay = Duration()
        delay.FromMilliseconds(round(error.retry_after * 1000))
        status.details.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    if status.ByteSize() > MAX_PACKED:  # the reason is what programs act on: it stays
        info.metadata.clear()
        status.details[0].Pack(info)
        status.message = shortened(error.message, 200)
        del status.details[1:]
    return status


def trailers(
    error: InnkeeperError, status: status_pb2.Status
) -> tuple[tuple[str, str | bytes], ...]:
    """Trailing metadata: the packed status, and push-back for clients that retry by themselves."""
    pushback = -1 if error.retry_after is None else round(error.retry_after * 1000)
    return ((STATUS_KEY, status.SerializeToString()), (PUSHBACK_KEY, str(pushback)))


def shortened(text: str, limit: int) -> str:
    """Text that fits, marked where it was cut."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _packed(
    message: error_details_pb2.ErrorInfo
    | error_details_pb2.BadRequest
    | error_details_pb2.RetryInfo,
) -> PackedAny:
    packed = PackedAny()
    packed.Pack(message)
    return packed
