"""What each call sends, and what comes back as records."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import StatusCode, aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from scripted import Refusal, World, status

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import catalog_service_pb2 as catalog_pb
from innkeeper.v1 import common_pb2 as common_pb
from innkeeper.v1 import residency_service_pb2 as residency_pb
from innkeeper_client import AgentRef, Client, Completed, Custom, Text, errors, records
from innkeeper_client.client import default_target
from innkeeper_client.values import from_payload, to_payload, to_value

COUNTER = common_pb.AgentRef(type="counter", id="a")


async def test_an_invoke_sends_its_arguments_and_returns_the_value(it: World) -> None:
    it.agents.will(
        agent_pb.InvokeResponse(output=to_payload({"count": 2}), turn_id="t1", runtime_id="r1"),
        agent_pb.InvokeResponse(turn_id="t2", runtime_id="r1", replayed=True),
    )
    counter = it.client.agent("counter", "a", metadata={"x-trace": "7"})
    assert await counter.invoke("add", n=2) == {"count": 2}
    assert await counter.invoke_raw("reset", busy="reject") == records.Invoked(
        None, "t2", "r1", True
    )
    first, second = it.agents.asked
    assert first.agent == COUNTER
    assert (first.action, from_payload(first.input)) == ("add", {"n": 2})
    assert not second.HasField("input")
    assert second.busy_policy == common_pb.BUSY_POLICY_REJECT
    assert it.agents.metadata[0]["x-trace"] == "7"


async def test_a_whole_input_may_be_given_but_not_with_arguments(it: World) -> None:
    it.agents.will(agent_pb.InvokeResponse())
    counter = it.client.agent("counter", "a")
    await counter.invoke("add", input={"timeout": 3})
    assert from_payload(it.agents.asked[0].input) == {"timeout": 3}
    with pytest.raises(TypeError, match="not both"):
        await counter.invoke("add", input=1, n=2)


async def test_a_chat_gives_typed_events(it: World) -> None:
    def event(**body: Any) -> agent_pb.StreamChatResponse:
        cursor = common_pb.Cursor(epoch=1, turn_id="t1", seq=1)
        return agent_pb.StreamChatResponse(
            event=common_pb.Event(cursor=cursor, **body), runtime_id="r1"
        )

    it.agents.will(
        [
            event(text_delta="good day"),
            event(custom=common_pb.CustomEvent(name="tool", data=to_value({"x": 1}))),
            agent_pb.StreamChatResponse(event=common_pb.Event()),
            event(completed=common_pb.Completed(output=to_payload("good day"))),
        ]
    )
    reply = it.client.agent("concierge", "a").chat("hi", on_disconnect="continue")
    text, custom, completed = [event async for event in reply]
    assert isinstance(text, Text)
    assert (text.text, text.cursor.turn_id) == ("good day", "t1")
    assert isinstance(custom, Custom)
    assert (custom.name, custom.data, custom.text) == ("tool", {"x": 1}, "")
    assert isinstance(completed, Completed)
    assert (reply.output, reply.runtime_id) == ("good day", "r1")
    assert it.agents.asked[0].on_disconnect == agent_pb.ON_DISCONNECT_CONTINUE


async def test_a_chat_that_fails_raises_the_status_of_the_call(it: World) -> None:
    told = status(StatusCode.UNKNOWN, "HANDLER_FAILED", "oh", error_id="e1")
    failed = common_pb.Event(failed=common_pb.Failed(status=told))
    stopped = common_pb.Event(cancelled=common_pb.Cancelled(reason="enough"))
    it.agents.will(
        [
            agent_pb.StreamChatResponse(event=failed),
            Refusal(StatusCode.UNKNOWN, "HANDLER_FAILED", "oh", error_id="e1"),
        ],
        [agent_pb.StreamChatResponse(event=stopped)],
        [],
    )
    agent = it.client.agent("concierge", "a")
    with pytest.raises(errors.HandlerFailed) as caught:
        await agent.ask("hi")
    assert isinstance(caught.value.__cause__, aio.AioRpcError)
    assert caught.value.metadata == {"error_id": "e1"}
    with pytest.raises(errors.WorkCancelled, match="enough"):
        await agent.ask("hi")
    with pytest.raises(errors.OutcomeUnknown, match="without its last event"):
        await agent.ask("hi")


async def test_a_reply_without_streamed_text_is_its_output(it: World) -> None:
    done = common_pb.Event(completed=common_pb.Completed(output=to_payload("all at once")))
    it.agents.will([agent_pb.StreamChatResponse(event=done)])
    assert await it.client.agent("concierge", "a").ask("hi") == "all at once"


async def test_leaving_a_chat_early_tells_the_host(it: World) -> None:
    gone = asyncio.Event()

    async def talk(request: Any, context: Any) -> None:
        await context.write(agent_pb.StreamChatResponse(event=common_pb.Event(text_delta="well")))
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    it.agents.will(talk, talk)
    async with it.client.agent("concierge", "a").chat("hi") as reply:
        await anext(reply)
    await gone.wait()
    gone.clear()
    async for event in it.client.agent("concierge", "a").chat("hi"):
        assert event.text == "well"
        break
    await gone.wait()


async def test_a_followup_gives_a_receipt(it: World) -> None:
    now = datetime.now(UTC)
    accepted = Timestamp()
    accepted.FromDatetime(now)
    receipt = common_pb.Receipt(
        receipt_id="f1",
        agent=COUNTER,
        state=common_pb.RECEIPT_STATE_ACCEPTED,
        accepted_at=accepted,
    )
    it.agents.will(agent_pb.FollowupResponse(receipt=receipt))
    back = await it.client.agent("counter", "a").followup("later", expires_in=60)
    assert back == records.Receipt(
        "f1", AgentRef("counter", "a"), "accepted", 0, now, None, None, None, None
    )
    expires = it.agents.asked[0].expires_at.ToDatetime(tzinfo=UTC)
    assert timedelta(seconds=59) < expires - now < timedelta(seconds=61)
    with pytest.raises(ValueError, match="above 0"):
        await it.client.agent("counter", "a").followup("later", expires_in=0)


async def test_a_cancel_takes_a_scope_or_an_id(it: World) -> None:
    work = agent_pb.CancelledWork(id="t1", kind="invoke", was_running=True)
    it.agents.will(agent_pb.CancelResponse(cancelled=[work]), *[agent_pb.CancelResponse()] * 2)
    agent = it.client.agent("counter", "a")
    assert await agent.cancel() == [records.CancelledWork("t1", "invoke", True)]
    await agent.cancel("queue")
    await agent.cancel(id="t9")
    turn, queue, one = it.agents.asked
    assert turn.scope == agent_pb.CANCEL_SCOPE_TURN
    assert queue.scope == agent_pb.CANCEL_SCOPE_QUEUE
    assert (one.scope, one.call_id) == (agent_pb.CANCEL_SCOPE_UNSPECIFIED, "t9")
    with pytest.raises(TypeError, match="not both"):
        await agent.cancel("turn", id="t9")
    with pytest.raises(ValueError, match="turn, queue, all"):
        await agent.cancel("everything")  # type: ignore[arg-type]


async def test_the_catalog_pages_by_itself(it: World) -> None:
    def page(ids: str, token: str) -> catalog_pb.ListAgentsResponse:
        agents = [catalog_pb.Agent(agent=common_pb.AgentRef(type="counter", id=i)) for i in ids]
        return catalog_pb.ListAgentsResponse(agents=agents, next_page_token=token)

    it.catalog.will(page("ab", "next"), page("", "more"), page("c", ""))
    listed = [e async for e in it.client.catalog.list("counter", prefix="x", page_size=2)]
    assert [entry.agent.id for entry in listed] == ["a", "b", "c"]
    assert it.catalog.asked[0].filter == "x"
    assert [request.page_token for request in it.catalog.asked] == ["", "next", "more"]


async def test_the_catalog_reads_changes_and_deletes(it: World) -> None:
    entry = catalog_pb.Agent(agent=COUNTER, state=to_value({"count": 2}), version=3)
    add = catalog_pb.Action(name="add", description="Adds.")
    add.input_schema.update({"type": "object"})
    it.catalog.will(
        catalog_pb.GetAgentResponse(agent=entry),
        catalog_pb.UpdateStateResponse(agent=entry),
        catalog_pb.UpdateStateResponse(agent=entry),
        catalog_pb.DeleteAgentResponse(deleted=True),
        catalog_pb.ListAgentTypesResponse(
            agent_types=[catalog_pb.AgentType(type="counter", chat=True, actions=[add])]
        ),
    )
    catalog = it.client.catalog
    got = await catalog.get("counter/a")
    assert (str(got.agent), got.state, got.version) == ("counter/a", {"count": 2}, 3)
    await catalog.update_state("counter/a", {"count": 5}, expected_version=0)
    await catalog.update_state(AgentRef("counter", "a"), {"count": 5})
    _, exact, any_version, *_ = it.catalog.asked
    assert exact.HasField("expected_version")
    assert not any_version.HasField("expected_version")
    assert await catalog.delete("counter/a")
    (kind,) = await catalog.types()
    assert kind.actions == (records.Action("add", "Adds.", {"type": "object"}),)
    assert kind.state_schema is None


async def test_residents_come_with_their_owners(it: World) -> None:
    pinned = residency_pb.Owners(
        kind=residency_pb.LEASE_KIND_PIN, count=1, oldest=Duration(seconds=3), names=["ops"]
    )
    resident = residency_pb.Resident(
        agent=COUNTER,
        runtime_id="r1",
        state=residency_pb.SLOT_STATE_RESIDENT,
        leases=[pinned],
        busy=True,
        blockers=["a pin"],
    )
    it.residency.will(
        residency_pb.ListResidentsResponse(residents=[resident]),
        residency_pb.ExplainResidentResponse(resident=resident, summary="pinned by ops"),
        residency_pb.ExplainResidentResponse(summary="not resident"),
        residency_pb.GetResidencyResponse(capacity=2, used=1, draining=True),
    )
    desk = it.client.residency
    (listed,) = [r async for r in desk.list(state="resident", order="idle")]
    assert listed.leases == (records.Owners("pin", 1, 3.0, ("ops",)),)
    assert (listed.state, listed.idle_for, listed.blockers) == ("resident", None, ("a pin",))
    asked = it.residency.asked[0]
    assert asked.state == residency_pb.SLOT_STATE_RESIDENT
    assert asked.order == residency_pb.RESIDENT_ORDER_IDLE
    assert (await desk.explain("counter/a")).resident == listed
    assert (await desk.explain("counter/a")).resident is None
    totals = await desk.get()
    assert (totals.capacity, totals.used, totals.draining) == (2, 1, True)


async def test_the_operators_calls_say_what_they_mean(it: World) -> None:
    it.residency.will(
        residency_pb.EvictResponse(runtime_id="r1", stopped=True),
        residency_pb.PinResponse(runtime_id="r2"),
        residency_pb.UnpinResponse(unpinned=2),
        residency_pb.SetCapacityResponse(capacity=3, used=1),
        residency_pb.ReconcileResponse(defects=["one"]),
        residency_pb.UndrainResponse(was_draining=True),
    )
    desk = it.client.residency
    evicted = await desk.evict("counter/a", runtime_id="r1", mode="graceful", deadline=2.5)
    assert evicted == records.Evicted("r1", True)
    assert (await desk.pin("counter/a", ttl=60, owner="ops")).runtime_id == "r2"
    assert await desk.unpin("counter/a", owner="ops") == 2
    assert await desk.set_capacity(3) == records.Capacity(3, 1)
    assert await desk.reconcile() == ["one"]
    assert await desk.undrain()
    evict, pin, unpin, *_ = it.residency.asked
    assert evict.mode == residency_pb.EVICT_MODE_GRACEFUL
    assert evict.deadline.ToTimedelta() == timedelta(seconds=2.5)
    assert pin.ttl.seconds == 60
    assert unpin.owner == "ops"


async def test_a_drain_tells_plan_progress_and_report(it: World) -> None:
    it.residency.will(
        [
            residency_pb.DrainResponse(plan=residency_pb.DrainPlan(idle=1, owned=1)),
            residency_pb.DrainResponse(progress=residency_pb.DrainProgress(remaining=1)),
            residency_pb.DrainResponse(report=residency_pb.DrainReport(evicted=2, clean=True)),
        ]
    )
    plan, progress, report = [step async for step in it.client.residency.drain(deadline=5)]
    assert isinstance(plan, records.DrainPlan)
    assert isinstance(progress, records.DrainProgress)
    assert isinstance(report, records.DrainReport)
    assert report.clean


async def test_a_watch_is_opened_again_only_before_its_first_message(it: World) -> None:
    moved = residency_pb.Transition(seq=4, agent=COUNTER, to_state=residency_pb.SLOT_STATE_LOADING)
    broken = Refusal(StatusCode.UNAVAILABLE, message="Socket closed")
    it.residency.will([broken], [residency_pb.WatchResidencyResponse(transition=moved), broken])
    watch = it.client.residency.watch(after=3)
    seen = await anext(watch)
    assert (seen.seq, seen.from_state, seen.to_state) == (4, "", "loading")
    with pytest.raises(errors.OutcomeUnknown):
        await anext(watch)
    assert [request.after for request in it.residency.asked] == [3, 3]


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """One status for everybody, and a watch that sees it change."""

    async def Check(self, request: Any, context: Any) -> Any:
        if request.service:
            await context.abort(StatusCode.NOT_FOUND, "unknown service")
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)

    async def Watch(self, request: Any, context: Any) -> None:
        for word in ("SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"):
            value = health_pb2.HealthCheckResponse.ServingStatus.Value(word)
            await context.write(health_pb2.HealthCheckResponse(status=value))


async def test_health_speaks_the_standard_protocol() -> None:
    server = aio.server(options=[("grpc.so_reuseport", 0)])
    health_pb2_grpc.add_HealthServicer_to_server(Health(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with Client(f"127.0.0.1:{port}") as client:
        assert await client.health.check() == "serving"
        with pytest.raises(errors.InnkeeperError) as caught:
            await client.health.check("nobody.Knows")
        assert caught.value.code is grpc.StatusCode.NOT_FOUND
        seen = [word async for word in client.health.watch()]
        assert seen == ["serving", "not_serving", "service_unknown"]
    await server.stop(0)


def test_the_target_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INNKEEPER_TARGET", raising=False)
    assert default_target() == "127.0.0.1:7420"
    monkeypatch.setenv("INNKEEPER_TARGET", "unix:/run/innkeeper")
    assert default_target() == "unix:/run/innkeeper"


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("counter/a", AgentRef("counter", "a")),
        ("counter/a/b", AgentRef("counter", "a/b")),
        ("lobby", AgentRef("", "lobby")),
    ],
)
def test_an_address_reads_and_writes_as_text(text: str, ref: AgentRef) -> None:
    assert AgentRef.parse(text) == ref
    assert str(ref) == text
