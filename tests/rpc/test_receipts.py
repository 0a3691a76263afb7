"""Receipts on the wire: what GetReceipt tells of a follow-up at each stage."""

from __future__ import annotations

import asyncio

from rpc_kit import World, followup, invoke, refusal, soon

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import common_pb2 as common_pb


async def stands(
    it: World, id: str, *, wait: bool = False, timeout: float = 30
) -> common_pb.Receipt:
    """The receipt as the host tells it."""
    request = agent_pb.GetReceiptRequest(receipt_id=id, wait=wait)
    receipt: common_pb.Receipt = (await soon(it.stub.GetReceipt(request, timeout=timeout))).receipt
    return receipt


async def test_a_receipt_tells_each_stage(it: World) -> None:
    gate = it.gate("hold").shut()
    left = (await soon(it.stub.Followup(followup("hold")))).receipt
    assert left.state == common_pb.RECEIPT_STATE_ACCEPTED
    await gate.reached()
    found = await stands(it, left.receipt_id)
    assert found.state == common_pb.RECEIPT_STATE_RUNNING
    assert found.agent == left.agent
    assert (found.attempt, found.HasField("settled_at")) == (1, False)
    assert found.accepted_at.ToSeconds() <= found.started_at.ToSeconds()
    waiting = asyncio.ensure_future(stands(it, left.receipt_id, wait=True))
    gate.open()
    ended = await waiting
    assert ended.state == common_pb.RECEIPT_STATE_COMPLETED
    assert ended.settled_at.ToSeconds() >= ended.started_at.ToSeconds()
    assert not ended.HasField("error")
    assert await it.count() == 1


async def test_who_waits_gets_an_answer_before_its_deadline(it: World) -> None:
    gate = it.gate("hold").shut()
    left = (await soon(it.stub.Followup(followup("hold")))).receipt
    await gate.reached()
    found = await stands(it, left.receipt_id, wait=True, timeout=2.0)
    assert found.state == common_pb.RECEIPT_STATE_RUNNING
    gate.open()


async def test_a_failure_is_told_with_its_reason_and_without_its_text(it: World) -> None:
    left = (await soon(it.stub.Followup(followup("refuse")))).receipt
    found = await stands(it, left.receipt_id, wait=True)
    assert found.state == common_pb.RECEIPT_STATE_FAILED
    assert (found.error.code, found.error.message) == (5, "no such thing")
    assert await it.count() == 0


async def test_one_that_was_cancelled_says_so(it: World) -> None:
    gate = it.gate("hold").shut()
    running = it.stub.Invoke(invoke("hold"))
    await gate.reached()
    left = (await soon(it.stub.Followup(followup("x")))).receipt
    request = agent_pb.CancelRequest(agent=left.agent, call_id=left.receipt_id)
    assert [work.id for work in (await soon(it.stub.Cancel(request))).cancelled] == [
        left.receipt_id
    ]
    found = await stands(it, left.receipt_id, wait=True)
    assert found.state == common_pb.RECEIPT_STATE_CANCELLED
    gate.open()
    await soon(running)


async def test_what_is_wrong_with_a_request_is_named(it: World) -> None:
    for id, expected in (
        ("", ("INVALID_ARGUMENT", "INVALID_REQUEST")),
        ("x", ("NOT_FOUND", "RECEIPT_NOT_FOUND")),
    ):
        seen = await refusal(it.stub.GetReceipt(agent_pb.GetReceiptRequest(receipt_id=id)))
        assert (seen.code, seen.reason) == expected
