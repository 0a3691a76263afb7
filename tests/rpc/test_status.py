"""Errors as gRPC carries them: whatever they say, they arrive, and say what programs need."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import error_details_pb2
from hypothesis import given
from hypothesis import strategies as st
from rpc_kit import DETAILS, World, invoke, refusal, unpacked

from innkeeper_server.errors import AgentError, InvalidRequest, MailboxFull
from innkeeper_server.rpc.status import MAX_ESCAPED, MAX_PACKED, MAX_TEXT, to_status, trailers

LONE = "\ud800"  # half a character: no Unicode text


class Mute:
    """Cannot be put into words."""

    def __str__(self) -> str:
        raise RuntimeError("hunter2")


@pytest.mark.parametrize(
    ("error", "text", "metadata"),
    [
        (AgentError("NOT_FOUND", f"no {LONE}"), "no ?", {}),
        (AgentError("NOT_FOUND", 5), "5", {}),  # type: ignore[arg-type]
        (AgentError("NOT_FOUND", Mute()), "<Mute>", {}),  # type: ignore[arg-type]
        (AgentError("NOT_FOUND", "x", {1: 2}), "x", {"1": "2"}),  # type: ignore[dict-item]
        (AgentError("NOT_FOUND", "x", {LONE: LONE}), "x", {"?": "?"}),
        (AgentError("NOT_FOUND", "a\nb\0"), "a\nb\0", {}),
    ],
)
def test_an_agent_may_say_anything(error: AgentError, text: str, metadata: dict[str, str]) -> None:
    seen = unpacked(to_status(error))
    assert (seen.code, seen.reason) == ("NOT_FOUND", "AGENT_ERROR")
    assert (seen.text, seen.metadata) == (text, metadata)


@given(st.text(), st.integers(1, 2_000))
def test_a_text_always_fits_into_a_header(piece: str, times: int) -> None:
    """gRPC escapes what is no printable ASCII, and loses headers that grow too long."""
    said = piece * times
    text = to_status(AgentError("ABORTED", said)).message
    assert len(text) <= MAX_TEXT
    escaped = sum(1 if " " <= c <= "~" and c != "%" else 3 * len(c.encode()) for c in text)
    assert escaped <= MAX_ESCAPED
    assert text == said or (text.endswith("…") and said.startswith(text[:-1]))


def test_what_does_not_fit_goes_and_what_programs_act_on_stays() -> None:
    error = MailboxFull(
        "m" * 5_000,
        metadata={f"key {n}": "ü" * 1_000 for n in range(100)},
        violations=tuple((f"field {n}", "d" * 1_000) for n in range(100)),
    )
    status = to_status(error)
    assert status.ByteSize() <= MAX_PACKED
    seen = unpacked(status)
    assert (seen.code, seen.reason, seen.retry_after) == ("RESOURCE_EXHAUSTED", "MAILBOX_FULL", 0.5)
    assert seen.text == "m" * (MAX_TEXT - 1) + "…"
    assert (seen.metadata, seen.fields) == ({}, ())
    assert dict(trailers(error, status))["grpc-retry-pushback-ms"] == "500"


def test_the_first_wrong_fields_are_named() -> None:
    status = to_status(
        InvalidRequest("no", violations=tuple((f"f{n}", "is wrong") for n in range(20)))
    )
    assert unpacked(status).fields == tuple(f"f{n}" for n in range(8))
    kinds = [detail.type_url.rpartition(".")[2] for detail in status.details]
    assert kinds == ["ErrorInfo", "BadRequest"]
    assert status.details[0].Is(error_details_pb2.ErrorInfo.DESCRIPTOR)


def test_no_error_is_ok() -> None:
    with pytest.raises(ValueError, match="OK"):
        AgentError(grpc.StatusCode.OK, "fine")


async def test_long_texts_in_any_script_arrive_each_time(it: World) -> None:
    """gRPC loses what is too long at random, so once is not enough."""
    for _ in range(30):
        for how in ("at length", "at length in another script"):
            seen = await refusal(it.stub.Invoke(invoke("fail", how=how)))
            assert (seen.code, seen.reason, seen.metadata) == ("NOT_FOUND", "AGENT_ERROR", DETAILS)
            assert seen.text.endswith("…")
