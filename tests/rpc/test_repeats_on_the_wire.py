"""Idempotency keys on the wire: a caller that lost its connection asks again."""

from __future__ import annotations

import grpc
from rpc_kit import Talk, World, followup, frame, invoke, refusal, soon

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import agent_service_pb2_grpc as agent_rpc


def keyed(action: str, **named: int) -> agent_pb.InvokeRequest:
    request = invoke(action, **named)
    request.idempotency_key = "k"
    return request


async def test_a_call_that_was_cut_is_asked_again_and_has_run_once(it: World) -> None:
    """1. A call runs; its connection is closed. 2. On another connection it is asked again, and
    attaches to the turn that runs. 3. Asked once more afterwards, it is told the same."""
    gate = it.gate("hold").shut()
    request = keyed("hold")
    channel = grpc.aio.insecure_channel(it.address, [("grpc.use_local_subchannel_pool", 1)])
    cut = agent_rpc.AgentServiceStub(channel).Invoke(request)
    await gate.reached()
    await channel.close()
    assert await cut.code() is grpc.StatusCode.CANCELLED
    again = it.stub.Invoke(request)
    gate.open()
    first, second = await soon(again), await soon(it.stub.Invoke(request))
    assert first.output.text == second.output.text == "hold"
    assert first.turn_id == second.turn_id
    assert (first.replayed, second.replayed) == (True, True)


async def test_a_session_and_a_call_of_its_own_share_keys(it: World) -> None:
    talk = Talk(it)
    await talk.open()
    request = keyed("add")
    await talk.send(frame("1", invoke=request), frame("2", invoke=request))
    answers = [(await talk.next()).result.invoke for _ in range(2)]
    answers.append(await soon(it.stub.Invoke(keyed("add"))))
    assert [answer.output.json.number_value for answer in answers] == [1, 1, 1]
    assert len({answer.turn_id for answer in answers}) == 1
    assert await it.count() == 1
    await talk.close()


async def test_a_key_with_another_request_is_refused_by_name(it: World) -> None:
    await soon(it.stub.Invoke(keyed("add", n=1)))
    seen = await refusal(it.stub.Invoke(keyed("add", n=2)))
    assert (seen.code, seen.reason) == ("FAILED_PRECONDITION", "IDEMPOTENCY_MISMATCH")
    await soon(it.stub.Followup(followup("x", idempotency_key="k")))
    seen = await refusal(it.stub.Followup(followup("y", idempotency_key="k")))
    assert (seen.code, seen.reason) == ("FAILED_PRECONDITION", "IDEMPOTENCY_MISMATCH")


async def test_a_repeated_follow_up_is_answered_with_its_receipt(it: World) -> None:
    ids = {
        (await soon(it.stub.Followup(followup("x", idempotency_key="k")))).receipt.receipt_id
        for _ in range(3)
    }
    assert len(ids) == 1
    request = agent_pb.GetReceiptRequest(receipt_id=ids.pop(), wait=True)
    await soon(it.stub.GetReceipt(request))
    assert await it.count() == 1
