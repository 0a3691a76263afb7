"""What must hold for every RPC there is, taken from the descriptors: none can be forgotten."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from server_kit import Desk, Gate, ref, refusal

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import catalog_service_pb2 as catalog_pb
from innkeeper.v1 import residency_service_pb2 as residency_pb
from innkeeper_server.identity import AgentKey
from innkeeper_server.rpc import boundary
from innkeeper_server.server import Server

METHODS: list[MethodDescriptor] = [
    method
    for module in (agent_pb, catalog_pb, residency_pb)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
# What a request needs beside an agent, so that only the agent can be wrong.
NEEDED: dict[str, dict[str, Any]] = {
    "Invoke": {"action": "add"},
    "Followup": {"message": {"text": "x"}},
    "StreamChat": {"message": {"text": "x"}},
    "Cancel": {"scope": "CANCEL_SCOPE_ALL"},
    "UpdateState": {"state": {"count": 7}},
    "Pin": {"ttl": "60s"},
}
LOOKING = ("GetAgent", "ListAgents", "ListAgentTypes", "GetResidency", "ListResidents")


def names_agent(method: MethodDescriptor) -> bool:
    return method.client_streaming or "agent" in method.input_type.fields_by_name


ADDRESSED = [method for method in METHODS if names_agent(method)]


def name_of(method: MethodDescriptor) -> str:
    return str(method.name)


def request(method: MethodDescriptor, type: str, id: str) -> Message:
    """A request that is right if there is such an agent."""
    agent = {"agent": {"type": type, "id": id}}
    fields = {**NEEDED.get(method.name, {}), **agent}
    if method.client_streaming:
        fields = {"frames": [{"open": agent}]}
    return ParseDict(fields, GetMessageClass(method.input_type)())


async def answers(desk: Desk, method: MethodDescriptor, raw: bytes) -> list[Any]:
    """Every message of the reply."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    parse = GetMessageClass(method.output_type).FromString
    channel: Any = desk.channel
    if method.client_streaming:
        call = channel.stream_stream(path, response_deserializer=parse)(iter([raw]))
    elif method.server_streaming:
        call = channel.unary_stream(path, response_deserializer=parse)(raw)
    else:
        return [await channel.unary_unary(path, response_deserializer=parse)(raw)]
    return [message async for message in call]


async def answer(desk: Desk, method: MethodDescriptor, type: str, id: str) -> Any:
    return (await answers(desk, method, request(method, type, id).SerializeToString()))[0]


def method(name: str) -> MethodDescriptor:
    return next(each for each in METHODS if each.name == name)


@pytest.mark.parametrize("each", METHODS, ids=name_of)
async def test_bytes_that_are_no_message_are_named(
    desk: Desk, server: Server, each: MethodDescriptor
) -> None:
    seen = await refusal(answers(desk, each, b"\xff\xff\xff\xff"))
    assert seen == ("INVALID_ARGUMENT", "INVALID_REQUEST", ["request"])
    assert not server.host.draining


@pytest.mark.parametrize("each", ADDRESSED, ids=name_of)
async def test_an_unknown_type_is_refused_at_once(
    desk: Desk, server: Server, each: MethodDescriptor
) -> None:
    seen = await refusal(answer(desk, each, "stranger", "a"))
    assert seen[:2] == ("NOT_FOUND", "UNKNOWN_AGENT_TYPE")
    assert server.host.account.slots == {}


@pytest.mark.parametrize("each", ADDRESSED, ids=name_of)
@pytest.mark.parametrize("id", ["", "x" * 257, "a\nb", "a\0"], ids=["none", "long", "line", "nul"])
async def test_an_id_that_is_none_is_named(
    desk: Desk, server: Server, each: MethodDescriptor, id: str
) -> None:
    seen = await refusal(answer(desk, each, "guest", id))
    assert seen == ("INVALID_ARGUMENT", "INVALID_REQUEST", ["agent.id"])
    assert server.host.account.slots == {}


@pytest.mark.parametrize("each", [m for m in ADDRESSED if not m.client_streaming], ids=name_of)
async def test_a_request_without_an_agent_says_so(desk: Desk, each: MethodDescriptor) -> None:
    nobody = request(each, "guest", "a")
    nobody.ClearField("agent")  # type: ignore[arg-type]
    code, _, fields = await refusal(answers(desk, each, nobody.SerializeToString()))
    assert code == "INVALID_ARGUMENT"
    assert fields in (["agent"], ["agent.id"])


async def test_another_tenants_agent_is_not_there(
    desk: Desk, server: Server, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the other tenant tries, it finds nobody, and ours notices nothing."""
    await desk.agents.Invoke(agent_pb.InvokeRequest(agent=ref("a"), action="add"))
    ours = AgentKey("default", "guest", "a")
    runtime, record = server.host.driver.find(ours), await server.host.store.read(ours)
    monkeypatch.setattr(boundary, "TENANT", "other")

    async def refused(name: str) -> tuple[str, str]:
        return (await refusal(answer(desk, method(name), "guest", "a")))[:2]

    assert await refused("GetAgent") == ("NOT_FOUND", "AGENT_NOT_FOUND")
    assert await refused("Evict") == ("FAILED_PRECONDITION", "NOT_RESIDENT")
    assert not (await answer(desk, method("ExplainResident"), "guest", "a")).HasField("resident")
    assert not (await answer(desk, method("ExplainResident"), "guest", "a")).story
    assert (await answer(desk, method("Cancel"), "guest", "a")).cancelled == []
    assert (await answer(desk, method("Unpin"), "guest", "a")).unpinned == 0
    assert not (await answer(desk, method("DeleteAgent"), "guest", "a")).deleted
    assert (await answers(desk, method("ListAgents"), b""))[0].agents == []
    assert (await answers(desk, method("ListResidents"), b""))[0].residents == []
    assert (await answer(desk, method("UpdateState"), "guest", "a")).agent.state.struct_value[
        "count"
    ] == 7
    (theirs,) = (await answers(desk, method("ListResidents"), b""))[0].residents
    assert runtime is not None
    assert theirs.runtime_id != runtime.id
    assert server.host.driver.find(ours) is runtime
    assert await server.host.store.read(ours) == record


async def test_looking_touches_nobody(desk: Desk, server: Server) -> None:
    """Nor does a question whether the host is well."""
    await desk.agents.Invoke(agent_pb.InvokeRequest(agent=ref("a"), action="add"))
    account = server.host.account
    (slot,) = account.slots.values()
    before = (slot.idle_since, slot.idle_seq, slot.leases, account.loaded_total)
    check: Any = desk.channel.unary_unary("/grpc.health.v1.Health/Check")
    for _ in range(20):
        for name in (*LOOKING, "ExplainResident"):
            raw = b"" if name.startswith("List") else request_for(name).SerializeToString()
            await answers(desk, method(name), raw)
        await check(b"")
        with pytest.raises(grpc.aio.AioRpcError):
            await answer(desk, method("GetAgent"), "guest", "nobody")
    assert (slot.idle_since, slot.idle_seq, slot.leases, account.loaded_total) == before
    assert list(account.slots.values()) == [slot]


def request_for(name: str) -> Message:
    each = method(name)
    return request(each, "guest", "a") if names_agent(each) else GetMessageClass(each.input_type)()
