"""ResidencyService over a socket."""

from __future__ import annotations

import time
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from server_kit import Desk, Gate, ref, refusal

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import residency_service_pb2 as pb
from innkeeper_server.server import Server

INVALID = ("INVALID_ARGUMENT", "INVALID_REQUEST")


async def wake(desk: Desk, *ids: str) -> None:
    for id in ids:
        await desk.agents.Invoke(agent_pb.InvokeRequest(agent=ref(id), action="add"))


async def hold(desk: Desk, gate: Gate, id: str) -> Any:
    call = desk.agents.Invoke(agent_pb.InvokeRequest(agent=ref(id), action="hold"))
    await gate.reached.wait()
    return call


def ids(page: pb.ListResidentsResponse) -> list[str]:
    return [resident.agent.id for resident in page.residents]


async def test_totals_are_told(desk: Desk, gate: Gate) -> None:
    await wake(desk, "a")
    held = await hold(desk, gate, "b")
    totals = await desk.residency.GetResidency(pb.GetResidencyRequest())
    assert (totals.capacity, totals.used, totals.resident, totals.idle) == (1000, 2, 2, 1)
    assert (totals.loaded_total, totals.draining) == (2, False)
    gate.opened.set()
    await held


async def test_who_waits_for_a_slot_is_told(desk: Desk, gate: Gate) -> None:
    await desk.residency.SetCapacity(pb.SetCapacityRequest(capacity=1))
    held = await hold(desk, gate, "a")
    waiting = desk.agents.Invoke(agent_pb.InvokeRequest(agent=ref("b"), action="add"))
    while True:
        totals = await desk.residency.GetResidency(pb.GetResidencyRequest())
        if totals.waiting:
            break
    assert totals.tickets[0].agent == ref("b")
    assert "slot" in totals.tickets[0].waits_for
    gate.opened.set()
    await held
    await waiting


async def test_residents_are_listed_in_pages_and_in_each_order(desk: Desk, gate: Gate) -> None:
    await wake(desk, "c", "a", "b")
    await wake(desk, "c")  # now the last of the idle line
    held = await hold(desk, gate, "aa")
    orders = {
        pb.RESIDENT_ORDER_UNSPECIFIED: ["a", "aa", "b", "c"],
        pb.RESIDENT_ORDER_AGENT: ["a", "aa", "b", "c"],
        pb.RESIDENT_ORDER_IDLE: ["a", "b", "c", "aa"],
        pb.RESIDENT_ORDER_AGE: ["c", "a", "b", "aa"],
        pb.RESIDENT_ORDER_ACTIVE: ["aa", "a", "b", "c"],
    }
    for order, expected in orders.items():
        request = pb.ListResidentsRequest(order=order, page_size=1)
        seen: list[str] = []
        while True:
            page = await desk.residency.ListResidents(request)
            seen += ids(page)
            request.page_token = page.next_page_token
            if not request.page_token:
                break
        assert seen == expected
    gate.opened.set()
    await held


async def test_residents_are_filtered(desk: Desk, gate: Gate) -> None:
    await wake(desk, "a", "ab", "b")
    page = await desk.residency.ListResidents(pb.ListResidentsRequest(type="guest", filter="a"))
    assert ids(page) == ["a", "ab"]
    page = await desk.residency.ListResidents(pb.ListResidentsRequest(type="echo"))
    assert ids(page) == []
    page = await desk.residency.ListResidents(pb.ListResidentsRequest(state=pb.SLOT_STATE_RESIDENT))
    assert len(page.residents) == 3
    page = await desk.residency.ListResidents(pb.ListResidentsRequest(state=pb.SLOT_STATE_ZOMBIE))
    assert ids(page) == []


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.ListResidentsRequest(page_size=1001), "page_size"),
        (pb.ListResidentsRequest(page_token="x"), "page_token"),
        (pb.ListResidentsRequest(order=99), "order"),  # type: ignore[arg-type]
        (pb.ListResidentsRequest(state=99), "state"),  # type: ignore[arg-type]
        (pb.ListResidentsRequest(type="1"), "type"),
    ],
)
async def test_a_wrong_list_names_the_field(
    desk: Desk, request_: pb.ListResidentsRequest, field: str
) -> None:
    assert await refusal(desk.residency.ListResidents(request_)) == (*INVALID, [field])


async def test_a_token_of_another_order_is_refused(desk: Desk) -> None:
    await wake(desk, "a", "b")
    request = pb.ListResidentsRequest(page_size=1)
    request.page_token = (await desk.residency.ListResidents(request)).next_page_token
    request.order = pb.RESIDENT_ORDER_AGE
    assert await refusal(desk.residency.ListResidents(request)) == (*INVALID, ["page_token"])


async def test_an_owned_resident_is_explained(desk: Desk, gate: Gate) -> None:
    held = await hold(desk, gate, "a")
    before = time.time()
    told = await desk.residency.ExplainResident(pb.ExplainResidentRequest(agent=ref("a")))
    resident = told.resident
    assert (resident.agent, resident.state) == (ref("a"), pb.SLOT_STATE_RESIDENT)
    assert (resident.busy, resident.active_requests, told.evictable) == (True, 1, False)
    assert resident.active_turn
    assert resident.HasField("active_turn_age")
    assert not resident.HasField("idle_for")
    assert [(owners.kind, owners.count) for owners in resident.leases] == [
        (pb.LEASE_KIND_REQUEST, 1)
    ]
    assert "call" in resident.blockers[0]
    assert "cannot be evicted" in told.summary
    states = [(moved.from_state, moved.to_state) for moved in told.story]
    assert states == [
        (pb.SLOT_STATE_UNSPECIFIED, pb.SLOT_STATE_LOADING),
        (pb.SLOT_STATE_LOADING, pb.SLOT_STATE_RESIDENT),
    ]
    assert abs(told.story[0].at.seconds - before) < 3600  # the world's clock, not the loop's
    assert {moved.runtime_id for moved in told.story} == {resident.runtime_id}
    gate.opened.set()
    await held


async def test_an_idle_resident_is_explained(desk: Desk) -> None:
    await wake(desk, "a", "b")
    told = await desk.residency.ExplainResident(pb.ExplainResidentRequest(agent=ref("b")))
    assert (told.evictable, told.eviction_position) == (True, 2)
    assert told.idle_deadline.seconds > time.time()
    assert told.resident.HasField("idle_for")


async def test_an_absent_agent_is_explained(desk: Desk) -> None:
    told = await desk.residency.ExplainResident(pb.ExplainResidentRequest(agent=ref("a")))
    assert not told.HasField("resident")
    assert not told.HasField("idle_deadline")
    assert "not resident" in told.summary
    unknown = desk.residency.ExplainResident(pb.ExplainResidentRequest(agent=ref("a", "ghost")))
    assert (await refusal(unknown))[:2] == ("NOT_FOUND", "UNKNOWN_AGENT_TYPE")


async def test_transitions_are_watched_from_a_given_place(desk: Desk) -> None:
    await wake(desk, "a")
    watch = desk.residency.WatchResidency(pb.WatchResidencyRequest(after=1))
    loaded = (await watch.read()).transition
    assert (loaded.seq, loaded.to_state) == (2, pb.SLOT_STATE_RESIDENT)
    await wake(desk, "b")
    assert (await watch.read()).transition.agent == ref("b")
    watch.cancel()
    wrong = desk.residency.WatchResidency(pb.WatchResidencyRequest(after=-1))
    assert await refusal(wrong) == (*INVALID, ["after"])


async def test_an_idle_agent_is_evicted_and_comes_back(desk: Desk) -> None:
    await wake(desk, "a")
    shown = await desk.residency.ListResidents(pb.ListResidentsRequest())
    runtime_id = shown.residents[0].runtime_id
    wrong = pb.EvictRequest(agent=ref("a"), runtime_id="another")
    refused = await refusal(desk.residency.Evict(wrong))
    assert refused[:2] == ("FAILED_PRECONDITION", "STALE_RUNTIME")
    right = pb.EvictRequest(agent=ref("a"), runtime_id=runtime_id)
    ended = await desk.residency.Evict(right)
    assert (ended.runtime_id, ended.stopped) == (runtime_id, True)
    refused = await refusal(desk.residency.Evict(right))
    assert refused[:2] == ("FAILED_PRECONDITION", "NOT_RESIDENT")
    request = agent_pb.InvokeRequest(agent=ref("a"), action="add")
    assert (await desk.agents.Invoke(request)).output.json.number_value == 2


async def test_an_owned_agent_is_evicted_only_by_insisting(desk: Desk, gate: Gate) -> None:
    held = await hold(desk, gate, "a")
    refused = await refusal(desk.residency.Evict(pb.EvictRequest(agent=ref("a"))))
    assert refused[:2] == ("FAILED_PRECONDITION", "AGENT_OWNED")
    at_once = pb.EvictRequest(agent=ref("a"), mode=pb.EVICT_MODE_GRACEFUL, deadline=Duration())
    refused = await refusal(desk.residency.Evict(at_once))
    assert refused[:2] == ("FAILED_PRECONDITION", "AGENT_OWNED")
    forced = pb.EvictRequest(agent=ref("a"), mode=pb.EVICT_MODE_FORCE)
    assert (await desk.residency.Evict(forced)).stopped
    assert (await refusal(held))[:2] == ("ABORTED", "EVICTED")


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.EvictRequest(agent=ref("a"), mode=9), "mode"),  # type: ignore[arg-type]
        (pb.EvictRequest(agent=ref("a"), deadline=Duration(seconds=-1)), "deadline"),
        (pb.EvictRequest(agent=ref("a"), deadline=Duration(seconds=86_401)), "deadline"),
        (pb.EvictRequest(), "agent.id"),
    ],
)
async def test_a_wrong_eviction_names_the_field(
    desk: Desk, request_: pb.EvictRequest, field: str
) -> None:
    assert await refusal(desk.residency.Evict(request_)) == (*INVALID, [field])


async def test_a_pin_keeps_an_agent_until_it_is_taken_back(desk: Desk) -> None:
    ttl = Duration(seconds=600)
    pin = pb.PinRequest(agent=ref("a"), ttl=ttl, owner="ada")
    pinned = await desk.residency.Pin(pin)
    assert pinned.runtime_id
    assert pinned.expires_at.seconds > time.time()
    await desk.residency.Pin(pb.PinRequest(agent=ref("a"), ttl=ttl))
    refused = await refusal(desk.residency.Evict(pb.EvictRequest(agent=ref("a"))))
    assert refused[:2] == ("FAILED_PRECONDITION", "AGENT_OWNED")
    told = await desk.residency.ExplainResident(pb.ExplainResidentRequest(agent=ref("a")))
    assert [(o.kind, [*o.names]) for o in told.resident.leases] == [
        (pb.LEASE_KIND_PIN, ["ada", "local"])
    ]
    unpin = pb.UnpinRequest(agent=ref("a"), owner="ada")
    assert (await desk.residency.Unpin(unpin)).unpinned == 1
    assert (await desk.residency.Unpin(unpin)).unpinned == 0
    assert (await desk.residency.Unpin(pb.UnpinRequest(agent=ref("a")))).unpinned == 1
    assert (await desk.residency.Evict(pb.EvictRequest(agent=ref("a")))).stopped


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.PinRequest(agent=ref("a")), "ttl"),
        (pb.PinRequest(agent=ref("a"), ttl=Duration()), "ttl"),
        (pb.PinRequest(agent=ref("a"), ttl=Duration(seconds=-1)), "ttl"),
        (pb.PinRequest(agent=ref("a"), ttl=Duration(seconds=7 * 86_400, nanos=1)), "ttl"),
        (pb.PinRequest(agent=ref("a"), ttl=Duration(seconds=1, nanos=-1)), "ttl"),
        (pb.PinRequest(agent=ref("a"), ttl=Duration(seconds=1), owner="x" * 257), "owner"),
        (pb.PinRequest(agent=ref("x" * 257), ttl=Duration(seconds=1)), "agent.id"),
    ],
)
async def test_a_wrong_pin_names_the_field(
    desk: Desk, server: Server, request_: pb.PinRequest, field: str
) -> None:
    assert await refusal(desk.residency.Pin(request_)) == (*INVALID, [field])
    assert server.host.operators.totals().loaded_total == 0


async def test_capacity_is_changed(desk: Desk, gate: Gate) -> None:
    held = await hold(desk, gate, "a")
    await desk.residency.Pin(pb.PinRequest(agent=ref("b"), ttl=Duration(seconds=600)))
    answer = await desk.residency.SetCapacity(pb.SetCapacityRequest(capacity=1))
    assert (answer.capacity, answer.used) == (1, 2)
    for wrong in (0, -1):
        refused = await refusal(desk.residency.SetCapacity(pb.SetCapacityRequest(capacity=wrong)))
        assert refused == (*INVALID, ["capacity"])
    gate.opened.set()
    await held


async def test_reconciliation_finds_nothing(desk: Desk) -> None:
    await wake(desk, "a")
    assert not (await desk.residency.Reconcile(pb.ReconcileRequest())).defects


async def test_a_drain_is_planned_without_draining(desk: Desk, gate: Gate) -> None:
    await wake(desk, "a")
    held = await hold(desk, gate, "b")
    steps = [step async for step in desk.residency.Drain(pb.DrainRequest(dry_run=True))]
    (plan,) = (step.plan for step in steps)
    assert (plan.idle, plan.owned, plan.waiting) == (1, 1, 0)
    assert [blocker.agent for blocker in plan.blockers] == [ref("b")]
    totals = await desk.residency.GetResidency(pb.GetResidencyRequest())
    assert not totals.draining
    gate.opened.set()
    await held


async def test_a_drain_lets_accepted_work_finish_and_can_be_undone(desk: Desk, gate: Gate) -> None:
    held = await hold(desk, gate, "a")
    drain = aiter(desk.residency.Drain(pb.DrainRequest(deadline=Duration(seconds=25))))
    assert (await anext(drain)).WhichOneof("step") == "plan"
    assert (await anext(drain)).progress.owned == 1
    refused = await refusal(
        desk.agents.Invoke(agent_pb.InvokeRequest(agent=ref("b"), action="add"))
    )
    assert refused[:2] == ("UNAVAILABLE", "DRAINING")
    gate.opened.set()
    assert (await held).output.text == "let go"
    report = [step async for step in drain][-1].report
    assert (report.evicted, report.cut, report.zombies, report.clean) == (1, 0, 0, True)
    assert (await desk.residency.Undrain(pb.UndrainRequest())).was_draining
    assert not (await desk.residency.Undrain(pb.UndrainRequest())).was_draining
    await wake(desk, "b")


async def test_a_drain_cuts_at_its_deadline(desk: Desk, gate: Gate) -> None:
    held = await hold(desk, gate, "a")
    steps = [
        step async for step in desk.residency.Drain(pb.DrainRequest(deadline=Duration(nanos=1)))
    ]
    assert (steps[-1].report.cut, steps[-1].report.clean) == (1, False)
    assert (await refusal(held))[:2] == ("ABORTED", "EVICTED")
    wrong = desk.residency.Drain(pb.DrainRequest(deadline=Duration(seconds=-1)))
    assert await refusal(wrong) == (*INVALID, ["deadline"])
