"""When the client calls again, when it does not, and how long it waits."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from scripted import Naps, Refusal, World

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import catalog_service_pb2 as catalog_pb
from innkeeper.v1 import common_pb2 as common_pb
from innkeeper_client import Client, Retry, errors
from innkeeper_client.values import to_payload

OK = agent_pb.InvokeResponse(output=to_payload(3), turn_id="t1", runtime_id="r1")
TEXT = agent_pb.StreamChatResponse(event=common_pb.Event(text_delta="hi"), runtime_id="r1")
DONE = agent_pb.StreamChatResponse(
    event=common_pb.Event(completed=common_pb.Completed(output=to_payload("hi")))
)

NOT_BEGUN = [
    (StatusCode.UNAVAILABLE, "DRAINING", errors.Draining),
    (StatusCode.UNAVAILABLE, "STILL_STOPPING", errors.StillStopping),
    (StatusCode.UNAVAILABLE, "START_FAILED", errors.StartFailed),
    (StatusCode.DEADLINE_EXCEEDED, "START_TIMEOUT", errors.StartTimeout),
    (StatusCode.RESOURCE_EXHAUSTED, "CAPACITY_EXHAUSTED", errors.CapacityExhausted),
    (StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_WAITING", errors.TooManyWaiting),
    (StatusCode.RESOURCE_EXHAUSTED, "MAILBOX_FULL", errors.MailboxFull),
]
MAYBE_RUN = [
    Refusal(StatusCode.UNAVAILABLE, message="Socket closed"),
    Refusal(StatusCode.CANCELLED, message="CANCELLED"),
    Refusal(StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE", retry=1.0),
    Refusal(StatusCode.ABORTED, "EVICTED", retry=0.1),
    Refusal(StatusCode.ABORTED, "STALE_EPOCH", retry=0.1),
]
FINAL = [
    Refusal(StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
    Refusal(StatusCode.ABORTED, "AGENT_BUSY"),
    Refusal(StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED"),
    Refusal(StatusCode.UNKNOWN, "HANDLER_FAILED"),
    Refusal(StatusCode.INTERNAL, "INTERNAL"),
    Refusal(StatusCode.RESOURCE_EXHAUSTED, message="message larger than max"),
    Refusal(StatusCode.UNAUTHENTICATED, message="who are you"),
]


async def add(it: World, **options: Any) -> Any:
    return await it.client.agent("counter", "a").invoke("add", n=2, **options)


@pytest.mark.parametrize(("code", "reason", "kind"), NOT_BEGUN)
async def test_work_that_never_began_is_sent_again(
    it: World, code: StatusCode, reason: str, kind: type[errors.InnkeeperError]
) -> None:
    it.agents.will(Refusal(code, reason, retry=1.0), OK)
    assert await add(it) == 3
    assert it.naps.taken == [pytest.approx(1.1)]
    assert kind.never_began


async def test_every_try_of_a_call_carries_the_same_request_id(it: World) -> None:
    it.agents.will(Refusal(StatusCode.UNAVAILABLE, "DRAINING", retry=0.5), OK, OK)
    await add(it)
    await add(it)
    first, again, other = (sent["x-request-id"] for sent in it.agents.metadata)
    assert first == again != other


async def test_a_refusal_without_a_hint_is_final(it: World) -> None:
    it.agents.will(Refusal(StatusCode.UNAVAILABLE, "DRAINING"))
    with pytest.raises(errors.Draining):
        await add(it)


@pytest.mark.parametrize("refusal", MAYBE_RUN, ids=lambda r: r.status.message + str(r.code))
async def test_work_that_may_have_run_is_not_sent_again(it: World, refusal: Refusal) -> None:
    it.agents.will(refusal)
    with pytest.raises(errors.InnkeeperError):
        await add(it)
    assert not it.naps.taken


@pytest.mark.parametrize("refusal", MAYBE_RUN, ids=lambda r: r.status.message + str(r.code))
async def test_work_that_may_have_run_is_sent_again_if_the_caller_allows_it(
    it: World, refusal: Refusal
) -> None:
    it.agents.will(refusal, OK)
    assert await add(it, retry_unknown=True) == 3


@pytest.mark.parametrize("refusal", MAYBE_RUN, ids=lambda r: r.status.message + str(r.code))
async def test_work_with_an_idempotency_key_is_sent_again_with_the_same_key(
    it: World, refusal: Refusal
) -> None:
    it.agents.will(refusal, OK)
    assert await add(it, idempotency_key="order-7") == 3


@pytest.mark.parametrize("refusal", MAYBE_RUN, ids=lambda r: r.status.message + str(r.code))
async def test_reads_are_always_safe(it: World, refusal: Refusal) -> None:
    it.catalog.will(refusal, catalog_pb.ListAgentTypesResponse())
    assert await it.client.catalog.types() == []


@pytest.mark.parametrize("refusal", FINAL, ids=lambda r: r.status.message + str(r.code))
async def test_other_errors_are_final_even_where_a_retry_is_allowed(
    it: World, refusal: Refusal
) -> None:
    it.agents.will(refusal)
    with pytest.raises(errors.InnkeeperError):
        await add(it, retry_unknown=True)


async def test_a_push_back_is_the_least_pause_and_overrules_the_hint(it: World) -> None:
    it.agents.will(Refusal(StatusCode.UNAVAILABLE, "DRAINING", retry=9.0, push="2500"), OK)
    await add(it)
    assert it.naps.taken == [pytest.approx(2.6)]


@pytest.mark.parametrize("push", ["-1", "soon"])
async def test_a_negative_or_unreadable_push_back_means_stop(it: World, push: str) -> None:
    it.agents.will(Refusal(StatusCode.UNAVAILABLE, "DRAINING", retry=1.0, push=push))
    with pytest.raises(errors.Draining) as caught:
        await add(it, retry_unknown=True)
    assert caught.value.no_retry
    assert caught.value.retry_after is None


async def test_pauses_grow_and_tries_are_bounded(it: World) -> None:
    it.agents.will(*[Refusal(StatusCode.RESOURCE_EXHAUSTED, "MAILBOX_FULL", retry=0.5)] * 4)
    with pytest.raises(errors.MailboxFull):
        await add(it)
    assert it.naps.taken == [pytest.approx(0.6), pytest.approx(0.7), pytest.approx(0.9)]


async def test_a_pause_that_would_outlast_the_deadline_is_not_taken(it: World) -> None:
    it.agents.will(Refusal(StatusCode.UNAVAILABLE, "DRAINING", retry=30.0))
    with pytest.raises(errors.Draining):
        await add(it, timeout=20)
    assert not it.naps.taken


async def test_the_deadline_holds_and_is_told_to_the_host(it: World) -> None:
    left: list[float] = []

    async def never(request: Any, context: Any) -> None:
        left.append(context.time_remaining())
        await asyncio.Event().wait()

    it.agents.will(OK, never)
    await add(it)  # From here on there is a connection.
    with pytest.raises(errors.DeadlineExceeded) as caught:
        await add(it, timeout=0.3)
    assert isinstance(caught.value.__cause__, grpc.aio.AioRpcError)
    assert left[0] < 1


async def test_every_call_has_a_deadline_by_default_and_none_if_asked(it: World) -> None:
    left: list[float | None] = []

    async def look(request: Any, context: Any) -> agent_pb.InvokeResponse:
        left.append(context.time_remaining())
        return OK

    it.agents.will(look, look)
    await add(it)
    await add(it, timeout=math.inf)
    first, second = left
    assert first is not None
    assert 50 < first < 61
    assert second is None


@pytest.mark.parametrize("timeout", [0, -1, math.nan])
async def test_a_timeout_that_is_none_is_refused(it: World, timeout: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        await add(it, timeout=timeout)


async def test_a_broken_connection_leaves_the_outcome_unknown(it: World) -> None:
    reached = asyncio.Event()

    async def hang(request: Any, context: Any) -> None:
        reached.set()
        await asyncio.Event().wait()

    it.agents.will(hang)
    call = asyncio.create_task(add(it))
    await reached.wait()
    await it.server.stop(0)
    with pytest.raises(errors.OutcomeUnknown):
        await call
    assert not it.naps.taken


async def test_a_refused_connection_is_tried_again_within_bounds(tmp_path: Path) -> None:
    naps = Naps()
    async with Client(f"unix:{tmp_path}/nobody", retry=Retry(sleep=naps)) as client:
        with pytest.raises(errors.Unreachable) as caught:
            await client.agent("counter", "a").invoke("add")
    assert len(naps.taken) == 3
    assert caught.value.never_began


async def test_a_host_that_comes_up_meanwhile_gets_the_call(tmp_path: Path) -> None:
    fresh = World()
    fresh.agents.will(OK)
    target = f"unix:{tmp_path}/host"

    async def the_host_comes_up(seconds: float) -> None:
        fresh.server.add_insecure_port(target)
        await fresh.server.start()
        await client._channel.channel_ready()

    client = Client(target, retry=Retry(sleep=the_host_comes_up))
    async with client:
        assert await client.agent("counter", "a").invoke("add") == 3
    await fresh.server.stop(0)


async def test_a_stream_is_opened_again_before_its_first_message(it: World) -> None:
    it.agents.will(Refusal(StatusCode.UNAVAILABLE, "DRAINING", retry=1.0), [TEXT, DONE])
    assert await it.client.agent("concierge", "a").ask("hello") == "hi"
    assert len(it.naps.taken) == 1


async def test_a_stream_is_never_opened_again_after_its_first_message(it: World) -> None:
    it.agents.will([TEXT, Refusal(StatusCode.UNAVAILABLE, "DRAINING", retry=1.0)])
    reply = it.client.agent("concierge", "a").chat("hello", retry_unknown=True)
    assert (await anext(reply)).text == "hi"
    with pytest.raises(errors.Draining):
        await anext(reply)
    with pytest.raises(StopAsyncIteration):
        await anext(reply)


async def test_a_cancelled_caller_cancels_the_call(it: World) -> None:
    reached, gone = asyncio.Event(), asyncio.Event()

    async def hang(request: Any, context: Any) -> None:
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    it.agents.will(hang)
    call = asyncio.create_task(add(it))
    await reached.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await gone.wait()


async def test_closing_the_client_ends_its_calls_with_a_typed_error(it: World) -> None:
    reached = asyncio.Event()

    async def hang(request: Any, context: Any) -> None:
        reached.set()
        await asyncio.Event().wait()

    it.agents.will(hang)
    client = it.new_client()
    call = asyncio.create_task(client.agent("counter", "a").invoke("add"))
    await reached.wait()
    await client.close()
    with pytest.raises(errors.ClientClosed):
        await call
    with pytest.raises(errors.ClientClosed):
        await client.agent("counter", "a").invoke("add")
    with pytest.raises(errors.ClientClosed):
        await client.agent("counter", "a").ask("hello")
