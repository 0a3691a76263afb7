"""The health protocol, and what else is served beside Innkeeper's own services."""

from __future__ import annotations

import asyncio
import math
from typing import Any, ClassVar

import grpc
import pytest
from grpc_health.v1 import health_pb2 as pb
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from server_kit import FUSE, Desk, Gate, ref, refusal, registry_with

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import residency_service_pb2 as residency_pb
from innkeeper_server.config import Settings
from innkeeper_server.errors import TooManyWaiting
from innkeeper_server.limits import Limits
from innkeeper_server.rpc.boundary import Boundary
from innkeeper_server.rpc.ending import Ending, at_most
from innkeeper_server.rpc.health import SERVICE, Health
from innkeeper_server.rpc.health_list import ListResponse
from innkeeper_server.rpc.pulse import TOO_LATE, Pulse
from innkeeper_server.rpc.register import Handlers, register
from innkeeper_server.server import Server, serving

AGENTS = "innkeeper.v1.AgentService"
CATALOG = "innkeeper.v1.CatalogService"
RESIDENCY = "innkeeper.v1.ResidencyService"
SERVING = pb.HealthCheckResponse.SERVING
NOT_SERVING = pb.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = pb.HealthCheckResponse.SERVICE_UNKNOWN


async def check(desk: Desk, service: str = "") -> int:
    answer = await desk.health.Check(pb.HealthCheckRequest(service=service))
    status: int = answer.status
    return status


@pytest.mark.parametrize("service", ["", AGENTS, CATALOG, RESIDENCY])
async def test_services_serve_until_the_host_drains(desk: Desk, service: str) -> None:
    assert await check(desk, service) == SERVING
    watch = desk.health.Watch(pb.HealthCheckRequest(service=service))
    assert (await watch.read()).status == SERVING
    async for _ in desk.residency.Drain(residency_pb.DrainRequest()):
        pass
    assert (await watch.read()).status == NOT_SERVING
    assert await check(desk, service) == NOT_SERVING
    await desk.residency.Undrain(residency_pb.UndrainRequest())
    assert (await watch.read()).status == SERVING
    watch.cancel()


async def test_an_unknown_service_is_not_found_but_can_be_watched(
    desk: Desk, server: Server
) -> None:
    refused = await refusal(desk.health.Check(pb.HealthCheckRequest(service="later.Service")))
    assert (refused[0], refused[2]) == ("NOT_FOUND", ["service"])
    watch = desk.health.Watch(pb.HealthCheckRequest(service="later.Service"))
    assert (await watch.read()).status == SERVICE_UNKNOWN
    server._healths[0].add("later.Service")
    assert (await watch.read()).status == SERVING
    watch.cancel()


async def test_all_services_are_listed(desk: Desk) -> None:
    channel = desk.channel
    call: Any = channel.unary_unary(
        "/grpc.health.v1.Health/List", response_deserializer=ListResponse.FromString
    )
    answer = await call(b"")
    assert {name: each.status for name, each in answer.statuses.items()} == dict.fromkeys(
        ["", AGENTS, CATALOG, RESIDENCY], SERVING
    )
    assert b"\n\x06\n\x00\x12\x02\x08\x01" in answer.SerializeToString()  # as it is specified


async def test_nothing_serves_before_it_was_told_to() -> None:
    health = Health(Boundary(max_message_bytes=1 << 20), Ending(), [AGENTS])
    assert (health.status(""), health.status(AGENTS)) == (NOT_SERVING, NOT_SERVING)


async def test_a_watch_ends_with_the_server(gate: Gate) -> None:
    async with serving(registry=registry_with(gate)) as server, Desk(server.address) as desk:
        watches = [
            desk.health.Watch(pb.HealthCheckRequest()),
            desk.residency.WatchResidency(residency_pb.WatchResidencyRequest(after=0)),
        ]
        assert (await watches[0].read()).status == SERVING
        stop = asyncio.create_task(server.stop())
        assert (await watches[0].read()).status == NOT_SERVING
        for watch in watches:
            assert await watch.read() is grpc.aio.EOF
            assert await watch.code() is grpc.StatusCode.OK
        assert await stop


async def test_an_open_session_does_not_hold_up_a_stop(gate: Gate) -> None:
    """It has nothing in flight, so nothing is cut, and its client is told to come back."""
    async with serving(registry=registry_with(gate)) as server, Desk(server.address) as desk:
        talk = desk.agents.Session()
        opening = agent_pb.ClientFrame(open=agent_pb.OpenFrame(agent=ref("a")))
        await talk.write(agent_pb.SessionRequest(frames=[opening]))
        assert (await talk.read()).frames[0].WhichOneof("frame") == "opened"
        assert await server.stop()

        async def rest() -> None:
            while await talk.read() is not grpc.aio.EOF:
                pass

        assert (await refusal(rest()))[:2] == ("UNAVAILABLE", "DRAINING")


async def test_a_host_that_does_not_keep_time_is_not_serving(desk: Desk, server: Server) -> None:
    pulse = server.pulse
    watch = desk.health.Watch(pb.HealthCheckRequest())
    assert (await watch.read()).status == SERVING
    pulse.beat(due=100.0, now=100.0 + TOO_LATE)
    assert (await watch.read()).status == NOT_SERVING
    pulse.beat(due=200.0, now=200.0)
    assert (await watch.read()).status == SERVING
    watch.cancel()


async def test_a_host_that_sleeps_through_its_deadlines_is_not_serving(
    desk: Desk, server: Server
) -> None:
    """Its timer is gone, as after a defect: nobody is refused in time, and nobody leaves."""
    await desk.agents.Invoke(agent_pb.InvokeRequest(agent=ref("a"), action="add"))
    due = server.host.account.next_deadline()
    server.pulse.beat(due, due)
    assert await check(desk) == SERVING
    server.pulse.beat(due + TOO_LATE, due + TOO_LATE)
    assert await check(desk) == NOT_SERVING


async def test_a_host_that_is_stopping_cannot_be_opened_again(gate: Gate) -> None:
    limits = Limits(drain_timeout=FUSE)
    async with (
        serving(registry=registry_with(gate), limits=limits) as server,
        Desk(server.address) as desk,
    ):
        call = desk.agents.Invoke(agent_pb.InvokeRequest(agent=ref("a"), action="hold"))
        await gate.reached.wait()
        watch = desk.health.Watch(pb.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        stop = asyncio.create_task(server.stop())
        assert (await watch.read()).status == NOT_SERVING
        refused = await refusal(desk.residency.Undrain(residency_pb.UndrainRequest()))
        assert refused[:2] == ("UNAVAILABLE", "DRAINING")
        gate.opened.set()
        assert (await call).output.text == "let go"
        assert await stop


async def test_a_check_is_answered_while_agents_are_busy(desk: Desk, gate: Gate) -> None:
    calls = [
        desk.agents.Invoke(agent_pb.InvokeRequest(agent=ref(f"a{n}"), action="hold"))
        for n in range(50)
    ]
    await gate.reached.wait()
    assert await check(desk, AGENTS) == SERVING
    gate.opened.set()
    await asyncio.gather(*calls)


def test_lag_is_remembered_for_a_minute_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    changes: list[bool] = []
    pulse = Pulse(lambda: math.inf, lambda: changes.append(pulse.steady))
    pulse.beat(due=1.0, now=1.25)
    assert (pulse.lag, caplog.records) == (0.25, [])
    pulse.beat(due=2.0, now=4.0)
    assert "the loop stood still for 2.0 s" in caplog.text
    for _ in range(59):
        pulse.beat(due=5.0, now=4.0)
    assert pulse.lag == 2.0
    pulse.beat(due=5.0, now=5.0)
    assert (pulse.lag, pulse.steady, changes) == (0.0, True, [])


async def test_a_stalled_watcher_holds_up_nobody(desk: Desk, server: Server) -> None:
    """It reads nothing; the others hear of every change at once, and miss none."""
    stalled = desk.health.Watch(pb.HealthCheckRequest())
    watch = desk.health.Watch(pb.HealthCheckRequest())
    assert (await watch.read()).status == SERVING
    for _ in range(1_000):
        server.host.drains.begin()
        assert (await watch.read()).status == NOT_SERVING
        server.host.undrain()
        assert (await watch.read()).status == SERVING
    assert await check(desk) == SERVING
    assert (await stalled.read()).status in (SERVING, NOT_SERVING)
    for each in (stalled, watch):
        each.cancel()


async def test_there_are_so_many_watchers_at_most() -> None:
    here = asyncio.Event()
    bounded = at_most(2, here.wait)  # type: ignore[arg-type]
    two = [asyncio.create_task(bounded()) for _ in range(2)]  # type: ignore[arg-type]
    await asyncio.sleep(0)
    with pytest.raises(TooManyWaiting) as caught:
        await bounded()
    assert caught.value.metadata == {"limit": "2"}
    here.set()
    await asyncio.gather(*two)
    await bounded()


async def test_what_must_answer_beside_the_rest_has_a_lane_of_its_own(gate: Gate) -> None:
    """A lane more costs every call a little, so there are few."""

    class Lanes:
        quick: ClassVar[list[str]] = []

        def add_registered_method_handlers(self, service: str, handlers: Handlers) -> None:
            self.quick += [f"{service}/{name}" for name in handlers]

        def add_generic_rpc_handlers(self, handlers: Any) -> None:
            pass

    any_handler: Any = None
    services = {
        AGENTS: dict.fromkeys(("Invoke", "StreamChat", "Cancel", "Session"), any_handler),
        RESIDENCY: {"Evict": any_handler},
        SERVICE: dict.fromkeys(("Check", "Watch", "List"), any_handler),
    }
    lanes: Any = Lanes()
    register(lanes, Boundary(max_message_bytes=1 << 20), services)
    assert lanes.quick == [f"{AGENTS}/Cancel", f"{SERVICE}/Check"]


async def listed(desk: Desk, version: str = "v1alpha") -> list[str]:
    if version == "v1alpha":
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(desk.channel)
        call = stub.ServerReflectionInfo()
    else:
        method: Any = desk.channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        call = method()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    answer = await call.read()
    names = [service.name for service in answer.list_services_response.service]
    for name in names:  # each can be looked up
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=name))
        found = await call.read()
        assert found.file_descriptor_response.file_descriptor_proto
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    return names


@pytest.mark.parametrize("version", ["v1alpha", "v1"])
async def test_reflection_lists_every_service(desk: Desk, version: str) -> None:
    assert await listed(desk, version) == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        AGENTS,
        CATALOG,
        RESIDENCY,
    ]


async def test_an_idle_reflection_does_not_hold_up_a_stop(gate: Gate) -> None:
    async with serving(registry=registry_with(gate)) as server, Desk(server.address) as desk:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(desk.channel)
        call = stub.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        await call.read()
        assert await server.stop()
        assert await call.code() is grpc.StatusCode.OK


async def test_a_method_that_nobody_knows_is_said_to_be_unknown(desk: Desk) -> None:
    for path in ("/innkeeper.v1.AgentService/Dance", "/no.Such/Thing"):
        call: Any = desk.channel.unary_unary(path)
        assert (await refusal(call(b"")))[:2] == ("UNIMPLEMENTED", "UNKNOWN_METHOD")


async def test_operators_can_have_a_door_of_their_own(gate: Gate) -> None:
    settings = Settings(listen="127.0.0.1:0", admin_listen="127.0.0.1:0", store="memory:")
    async with (
        serving(settings, registry=registry_with(gate)) as server,
        Desk(server.address) as public,
        Desk(server.admin_address) as admin,
    ):
        assert server.address != server.admin_address
        totals = await admin.residency.GetResidency(residency_pb.GetResidencyRequest())
        assert totals.capacity == 1000
        refused = await refusal(public.residency.GetResidency(residency_pb.GetResidencyRequest()))
        assert refused[:2] == ("UNIMPLEMENTED", "UNKNOWN_METHOD")
        request = agent_pb.InvokeRequest(agent=ref("a"), action="add")
        assert (await public.agents.Invoke(request)).output.json.number_value == 1
        assert (await refusal(admin.agents.Invoke(request)))[0] == "UNIMPLEMENTED"
        assert await check(admin, RESIDENCY) == SERVING
        assert RESIDENCY in await listed(admin)
        assert RESIDENCY not in await listed(public)


async def test_reflection_can_be_off(gate: Gate) -> None:
    settings = Settings(listen="127.0.0.1:0", store="memory:", reflection=False)
    async with (
        serving(settings, registry=registry_with(gate)) as server,
        Desk(server.address) as desk,
    ):
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(desk.channel)
        call = stub.ServerReflectionInfo(iter([]))
        assert (await refusal(call))[0] == "UNIMPLEMENTED"


async def http(address: str, request: bytes) -> tuple[str, str]:
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(FUSE):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request)
        raw = (await reader.read()).decode()
        writer.close()
        await writer.wait_closed()
    head, _, body = raw.partition("\r\n\r\n")
    return head.split("\r\n")[0], body


async def test_metrics_and_health_are_told_over_http(gate: Gate) -> None:
    settings = Settings(listen="127.0.0.1:0", metrics_listen="127.0.0.1:0", store="memory:")
    async with (
        serving(settings, registry=registry_with(gate)) as server,
        Desk(server.address) as desk,
    ):
        await desk.agents.Invoke(agent_pb.InvokeRequest(agent=ref("a"), action="add"))
        where = server.metrics_address
        status, body = await http(where, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status == "HTTP/1.1 200 OK"
        assert 'innkeeper_residents{state="resident"} 1.0' in body
        assert "innkeeper_capacity 1000.0" in body
        assert "innkeeper_loop_lag_seconds 0.0" in body
        method = f"{AGENTS}/Invoke"
        assert f'innkeeper_rpcs_total{{code="OK",method="{method}"}} 1.0' in body
        assert (await http(where, b"GET /healthz HTTP/1.1\r\n\r\n"))[1] == "serving\n"
        server.host.drains.begin()
        status, _ = await http(where, b"GET /healthz HTTP/1.1\r\n\r\n")
        assert status.startswith("HTTP/1.1 503")
        assert (await http(where, b"GET /else HTTP/1.1\r\n\r\n"))[0].startswith("HTTP/1.1 404")
        assert (await http(where, b"POST / HTTP/1.1\r\n\r\n"))[0].startswith("HTTP/1.1 405")
        assert await http(where, b"x" * 20_000) == ("", "")
