"""A server in a process of its own that is stopped, starved of disk, or shrunk in mid-work."""

from __future__ import annotations

import asyncio
import signal
import sys

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2
from server_kit import FUSE, Desk, ref, refusal
from test_server_process import Place, invoke, place  # noqa: F401

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import catalog_service_pb2 as catalog_pb
from innkeeper.v1 import residency_service_pb2 as residency_pb

SERVING = health_pb2.HealthCheckResponse.SERVING


async def add(desk: Desk, id: str) -> float:
    request = agent_pb.InvokeRequest(agent=ref(id), action="add")
    reply = await desk.agents.Invoke(request, timeout=FUSE)
    return float(reply.output.json.number_value)


async def kept(desk: Desk, id: str) -> float:
    """What the store has."""
    shown = await desk.catalog.GetAgent(catalog_pb.GetAgentRequest(agent=ref(id)))
    return float(shown.agent.state.struct_value["count"])


async def test_a_server_that_was_frozen_goes_on_where_it_was(place: Place) -> None:  # noqa: F811
    """1. A turn runs; the process is stopped. Calls come meanwhile.
    2. It goes on: everything is answered, in order, and it serves.
    """
    async with place.run() as running, Desk(running.address) as desk:
        held = invoke(desk, "hold")
        _, agent = await place.reported()
        running.process.send_signal(signal.SIGSTOP)
        process = psutil.Process(running.process.pid)
        while process.status() != psutil.STATUS_STOPPED:  # noqa: ASYNC110 -- nothing tells of it
            await asyncio.sleep(0)
        calls = [asyncio.ensure_future(add(desk, id)) for id in "aabb"]
        agent.write(b"go on\n")
        running.process.send_signal(signal.SIGCONT)
        assert (await held).output.text == "let go"
        assert await asyncio.gather(*calls) == [1, 2, 1, 2]
        health = await desk.health.Check(health_pb2.HealthCheckRequest())
        assert health.status == SERVING
        running.process.terminate()
        assert await running.ended() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="limits of other processes are Linux's")
async def test_a_full_disk_refuses_what_it_cannot_keep_and_nothing_else(
    place: Place,  # noqa: F811
) -> None:
    """1. Nothing more can be written. Each call is refused by name, and keeps nothing.
    2. Health and reads are answered meanwhile. There is room again: calls work, and the state is
       what was acknowledged.
    """
    async with place.run() as running, Desk(running.address) as desk:
        assert await add(desk, "a") == 1
        process = psutil.Process(running.process.pid)
        before = process.rlimit(psutil.RLIMIT_FSIZE)
        process.rlimit(psutil.RLIMIT_FSIZE, (1, before[1]))
        for _ in range(3):
            seen = await refusal(invoke(desk, "add"))
            assert seen[:2] == ("UNAVAILABLE", "STORE_UNAVAILABLE")
        health = await desk.health.Check(health_pb2.HealthCheckRequest())
        assert health.status == SERVING
        assert await kept(desk, "a") == 1
        process.rlimit(psutil.RLIMIT_FSIZE, before)
        assert await add(desk, "a") == 2
        assert await kept(desk, "a") == 2
        running.process.terminate()
        assert await running.ended() == 0


async def test_a_server_that_is_shrunk_under_load_loses_nothing(place: Place) -> None:  # noqa: F811
    """Eight agents are called all the time while the limit goes from eight to one and back."""
    async with place.run(capacity=8, admission_timeout=FUSE) as running:
        async with Desk(running.address) as desk:

            async def count(id: str) -> float:
                for _ in range(25):
                    last = await add(desk, id)
                return last

            counting = [asyncio.ensure_future(count(f"a{n}")) for n in range(8)]
            for capacity in (1, 4, 2, 8):
                request = residency_pb.SetCapacityRequest(capacity=capacity)
                await desk.residency.SetCapacity(request)
                await add(desk, "b")
            assert await asyncio.gather(*counting) == [25] * 8
            assert await add(desk, "b") == 5
            request = residency_pb.ReconcileRequest()
            assert not (await desk.residency.Reconcile(request)).defects
        running.process.terminate()
        assert await running.ended() == 0


async def test_a_caller_that_is_frozen_holds_up_nobody(place: Place) -> None:  # noqa: F811
    """A deadline that passes while the work runs ends the call, and not the work."""
    async with place.run() as running, Desk(running.address) as desk:
        request = agent_pb.InvokeRequest(agent=ref("a"), action="hold")
        held = desk.agents.Invoke(request, timeout=0.2)
        _, agent = await place.reported()
        assert await held.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        waiting = asyncio.ensure_future(add(desk, "a"))
        assert await add(desk, "b") == 1
        agent.write(b"go on\n")
        assert await waiting == 1
        running.process.terminate()
        assert await running.ended() == 0
