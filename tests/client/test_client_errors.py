"""Statuses to typed errors."""

from __future__ import annotations

import grpc
import pytest
from grpc import StatusCode
from grpc.aio import AioRpcError, Metadata
from scripted import status

from innkeeper.v1 import common_pb2 as common_pb
from innkeeper_client import errors, statuses
from innkeeper_server import errors as host_errors

REASONS = [name.removeprefix("ERROR_REASON_") for name in common_pb.ErrorReason.keys()[1:]]


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_of_the_contract_has_a_class(reason: str) -> None:
    error = statuses.from_status(status(StatusCode.ABORTED, reason))
    assert type(error) is not errors.InnkeeperError
    assert error.reason == type(error).reason == reason


def test_the_classes_are_named_as_the_hosts() -> None:
    hosts = host_errors.InnkeeperError.__subclasses__()
    assert len(hosts) > 30
    for each in hosts:
        assert getattr(errors, each.__name__).reason == each.reason


def test_details_become_attributes() -> None:
    error = statuses.from_status(
        status(
            StatusCode.INVALID_ARGUMENT,
            "INVALID_REQUEST",
            "input.n: not a number",
            retry=1.5,
            violations=(("input.n", "not a number"),),
            action="add",
        )
    )
    assert isinstance(error, errors.InvalidRequest)
    assert str(error) == error.message == "input.n: not a number"
    assert error.code is StatusCode.INVALID_ARGUMENT
    assert error.metadata == {"action": "add"}
    assert error.violations == (("input.n", "not a number"),)
    assert error.retry_after == 1.5


def test_a_reason_that_is_newer_than_the_client_is_kept() -> None:
    error = statuses.from_status(status(StatusCode.ABORTED, "MOON_FULL", retry=1.0))
    assert type(error) is errors.InnkeeperError
    assert error.reason == "MOON_FULL"
    assert not error.never_began


def test_another_domains_reason_is_not_taken_for_ours() -> None:
    error = statuses.from_status(status(StatusCode.UNAVAILABLE, "DRAINING", domain="elsewhere"))
    assert type(error) is errors.OutcomeUnknown


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (StatusCode.UNAVAILABLE, "failed to connect to all addresses; last …", "Unreachable"),
        (StatusCode.UNAVAILABLE, "errors resolving nosuch.invalid:7: […]", "Unreachable"),
        (StatusCode.UNAVAILABLE, "Socket closed", "OutcomeUnknown"),
        (StatusCode.UNAVAILABLE, "", "OutcomeUnknown"),
        (StatusCode.CANCELLED, "CANCELLED", "OutcomeUnknown"),
        (StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", "DeadlineExceeded"),
        (StatusCode.RESOURCE_EXHAUSTED, "larger than max", "InnkeeperError"),
        (StatusCode.UNIMPLEMENTED, "Method not found!", "InnkeeperError"),
    ],
)  # fmt: skip
def test_statuses_that_no_host_explained(code: StatusCode, text: str, kind: str) -> None:
    error = statuses.from_rpc(AioRpcError(code, Metadata(), Metadata(), text))
    assert type(error).__name__ == kind
    assert error.code is code
    assert str(error)


def test_details_that_cannot_be_read_are_left_out() -> None:
    trailing = Metadata(("grpc-status-details-bin", b"\xff\xff"))
    error = statuses.from_rpc(AioRpcError(StatusCode.ABORTED, Metadata(), trailing, "no"))
    assert type(error) is errors.InnkeeperError
    assert error.code is grpc.StatusCode.ABORTED
