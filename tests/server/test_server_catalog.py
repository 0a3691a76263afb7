"""CatalogService over a socket."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.struct_pb2 import Struct, Value
from server_kit import Desk, Gate, ref, refusal

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import catalog_service_pb2 as pb
from innkeeper_server.server import Server


async def add(desk: Desk, id: str) -> None:
    await desk.agents.Invoke(agent_pb.InvokeRequest(agent=ref(id), action="add"))


def state(**fields: Any) -> Value:
    struct = Struct()
    struct.update(fields)
    return Value(struct_value=struct)


async def test_types_are_listed_with_what_they_can_do(desk: Desk) -> None:
    answer = await desk.catalog.ListAgentTypes(pb.ListAgentTypesRequest())
    echo, guest = answer.agent_types
    assert (echo.type, echo.chat, echo.description) == ("echo", True, "Says what it hears.")
    assert (guest.type, guest.chat) == ("guest", False)
    assert [action.name for action in guest.actions] == ["add", "hold"]
    assert "n" in guest.actions[0].input_schema["properties"]
    assert "count" in guest.state_schema["properties"]
    assert not echo.HasField("state_schema")


async def test_agents_are_listed_in_pages(desk: Desk) -> None:
    for id in ("c", "a", "ab", "b"):
        await add(desk, id)
    request = pb.ListAgentsRequest(page_size=3)
    first = await desk.catalog.ListAgents(request)
    assert [agent.agent.id for agent in first.agents] == ["a", "ab", "b"]
    request.page_token = first.next_page_token
    last = await desk.catalog.ListAgents(request)
    assert [agent.agent.id for agent in last.agents] == ["c"]
    assert last.next_page_token == ""
    only = await desk.catalog.ListAgents(pb.ListAgentsRequest(type="guest", filter="a"))
    assert [agent.agent.id for agent in only.agents] == ["a", "ab"]
    assert not only.agents[0].HasField("state")
    none = await desk.catalog.ListAgents(pb.ListAgentsRequest(type="echo"))
    assert not none.agents


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.ListAgentsRequest(page_size=-1), "page_size"),
        (pb.ListAgentsRequest(page_size=1001), "page_size"),
        (pb.ListAgentsRequest(page_token="no token"), "page_token"),
        (pb.ListAgentsRequest(page_token="WzEsIDJd"), "page_token"),  # [1, 2]
        (pb.ListAgentsRequest(type="no type"), "type"),
        (pb.ListAgentsRequest(filter="x" * 300), "filter"),
    ],
)
async def test_a_wrong_list_names_the_field(
    desk: Desk, request_: pb.ListAgentsRequest, field: str
) -> None:
    refused = await refusal(desk.catalog.ListAgents(request_))
    assert refused == ("INVALID_ARGUMENT", "INVALID_REQUEST", [field])


async def test_an_agent_is_shown_with_its_state_and_its_runtime(desk: Desk, gate: Gate) -> None:
    await add(desk, "a")
    shown = (await desk.catalog.GetAgent(pb.GetAgentRequest(agent=ref("a")))).agent
    assert dict(shown.state.struct_value) == {"count": 1}
    assert (shown.version, shown.epoch, shown.resident, shown.active) == (1, 1, True, False)
    assert (shown.last_status, bool(shown.runtime_id)) == ("completed", True)
    assert shown.created_at.seconds > 0
    assert shown.updated_at.ToNanoseconds() >= shown.created_at.ToNanoseconds()
    held = desk.agents.Invoke(agent_pb.InvokeRequest(agent=ref("a"), action="hold"))
    await gate.reached.wait()
    shown = (await desk.catalog.GetAgent(pb.GetAgentRequest(agent=ref("a")))).agent
    assert shown.active
    gate.opened.set()
    await held


async def test_reading_creates_nobody(desk: Desk, server: Server) -> None:
    refused = await refusal(desk.catalog.GetAgent(pb.GetAgentRequest(agent=ref("nobody"))))
    assert refused[:2] == ("NOT_FOUND", "AGENT_NOT_FOUND")
    refused = await refusal(desk.catalog.GetAgent(pb.GetAgentRequest(agent=ref("a", "ghost"))))
    assert refused[:2] == ("NOT_FOUND", "UNKNOWN_AGENT_TYPE")
    refused = await refusal(desk.catalog.GetAgent(pb.GetAgentRequest()))
    assert refused == ("INVALID_ARGUMENT", "INVALID_REQUEST", ["agent.id"])
    assert server.host.operators.totals().loaded_total == 0


async def test_a_state_is_replaced_as_a_turn(desk: Desk) -> None:
    await add(desk, "a")
    request = pb.UpdateStateRequest(agent=ref("a"), state=state(count=41), expected_version=1)
    changed = (await desk.catalog.UpdateState(request)).agent
    assert (dict(changed.state.struct_value), changed.version) == ({"count": 41}, 2)
    await add(desk, "a")
    shown = (await desk.catalog.GetAgent(pb.GetAgentRequest(agent=ref("a")))).agent
    assert dict(shown.state.struct_value) == {"count": 42}


async def test_a_state_that_cannot_be_is_refused(desk: Desk) -> None:
    await add(desk, "a")
    stale = pb.UpdateStateRequest(agent=ref("a"), state=state(count=1), expected_version=7)
    refused = await refusal(desk.catalog.UpdateState(stale))
    assert refused[:2] == ("ABORTED", "VERSION_MISMATCH")
    wrong = pb.UpdateStateRequest(agent=ref("a"), state=state(count="many"))
    refused = await refusal(desk.catalog.UpdateState(wrong))
    assert refused[:2] == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    assert refused[2][0].startswith("state")
    refused = await refusal(desk.catalog.UpdateState(pb.UpdateStateRequest(agent=ref("a"))))
    assert refused == ("INVALID_ARGUMENT", "INVALID_REQUEST", ["state"])
    before = pb.UpdateStateRequest(agent=ref("a"), state=state(count=1), expected_version=-1)
    refused = await refusal(desk.catalog.UpdateState(before))
    assert refused == ("INVALID_ARGUMENT", "INVALID_REQUEST", ["expected_version"])


async def queued(desk: Desk) -> int:
    shown = await desk.catalog.GetAgent(pb.GetAgentRequest(agent=ref("a")))
    number: int = shown.agent.queued
    return number


async def test_an_update_whose_caller_left_is_skipped(desk: Desk, gate: Gate) -> None:
    held = desk.agents.Invoke(agent_pb.InvokeRequest(agent=ref("a"), action="hold"))
    await gate.reached.wait()
    request = pb.UpdateStateRequest(agent=ref("a"), state=state(count=9))
    update = desk.catalog.UpdateState(request, timeout=30)
    while await queued(desk) == 0:
        pass
    update.cancel()
    while await queued(desk) == 1:
        pass
    gate.opened.set()
    await held
    shown = (await desk.catalog.GetAgent(pb.GetAgentRequest(agent=ref("a")))).agent
    assert shown.version == 0


async def test_a_deleted_agent_never_comes_back(desk: Desk) -> None:
    await add(desk, "a")
    assert (await desk.catalog.DeleteAgent(pb.DeleteAgentRequest(agent=ref("a")))).deleted
    assert not (await desk.catalog.DeleteAgent(pb.DeleteAgentRequest(agent=ref("a")))).deleted
    refused = await refusal(desk.catalog.GetAgent(pb.GetAgentRequest(agent=ref("a"))))
    assert refused[:2] == ("NOT_FOUND", "AGENT_NOT_FOUND")
    again = desk.agents.Invoke(agent_pb.InvokeRequest(agent=ref("a"), action="add"))
    assert (await refusal(again))[:2] == ("NOT_FOUND", "AGENT_DELETED")
