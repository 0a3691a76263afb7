"""A server that is frozen, blocked, starved of disk, locked out of its file, or shrunk in mid-work;
in a process of its own, where it can be."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from sqlite3 import Connection

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2
from server_kit import FUSE, Desk, Gate, ref, refusal, registry_with
from test_server_process import Place, invoke, place  # noqa: F401

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import catalog_service_pb2 as catalog_pb
from innkeeper.v1 import residency_service_pb2 as residency_pb
from innkeeper_server.server import serving
from innkeeper_server.store.database import Database
from innkeeper_server.store.sqlite import SQLiteStore

SERVING = health_pb2.HealthCheckResponse.SERVING

# Give up the two capabilities with which root passes by the permissions of files.
WITHOUT_RIGHTS = """
import ctypes
libc = ctypes.CDLL(None)
head, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
assert libc.capget(head, sets) == 0
sets[0] &= ~(1 << 1 | 1 << 2)
assert libc.capset(head, sets) == 0
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="uses what only Linux has")


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


@linux
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


async def test_a_database_that_is_read_only_for_a_while_refuses_work_by_name_and_nothing_else(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Every connection that is opened from now on may only read, and the open one too.
    2. Work is refused by that name, however often it is tried; health and reads are answered.
    3. It can be written again: so it is, by the same server, and nothing was half-done.
    """
    real, read_only = Database._connect, asyncio.Event()

    def connect(self: Database, *preparations: Callable[[Connection], object]) -> Connection:
        connection = real(self, *preparations)
        if read_only.is_set():
            connection.execute("PRAGMA query_only = ON")
        return connection

    monkeypatch.setattr(Database, "_connect", connect)
    store = SQLiteStore(str(tmp_path / "agents.db"))
    async with (
        serving(registry=registry_with(gate), store=store) as server,
        Desk(server.address) as desk,
    ):
        assert await add(desk, "a") == 1
        read_only.set()
        await store.write(lambda connection: connection.execute("PRAGMA query_only = ON"))
        for id in "abab":
            with pytest.raises(grpc.aio.AioRpcError, match="the database is read-only"):
                await add(desk, id)
        seen = await refusal(invoke(desk, "add"))
        assert seen[:2] == ("UNAVAILABLE", "STORE_UNAVAILABLE")
        health = await desk.health.Check(health_pb2.HealthCheckRequest())
        assert health.status == SERVING
        assert await kept(desk, "a") == 1
        read_only.clear()
        assert await add(desk, "a") == 2
        assert await kept(desk, "a") == 2


@linux
async def test_a_file_that_is_read_only_keeps_a_server_from_starting(
    place: Place,  # noqa: F811
) -> None:
    place.before = WITHOUT_RIGHTS
    async with place.run() as running, Desk(running.address) as desk:
        assert await add(desk, "a") == 1
        running.process.terminate()
        assert await running.ended() == 0
    path = place.path / "innkeeper.db"
    path.chmod(0o444)
    failed = await place.start()
    assert await failed.ended() == 1
    (line,) = failed.rest[1].decode().splitlines()
    assert "cannot open the store" in line
    assert "read-only" in line
    path.chmod(0o644)
    async with place.run() as running, Desk(running.address) as desk:
        assert await add(desk, "a") == 2


async def test_a_loop_that_is_blocked_for_a_moment_answers_everybody_after_it(
    place: Place,  # noqa: F811
) -> None:
    """Whoever waits no longer than the moment is lost, and nobody else."""
    async with place.run() as running, Desk(running.address) as desk:
        blocking = invoke(desk, "block")
        _, agent = await place.reported()
        hasty = desk.health.Check(health_pb2.HealthCheckRequest(), timeout=0.1)
        assert await hasty.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        patient = desk.health.Check(health_pb2.HealthCheckRequest())
        others = [asyncio.ensure_future(add(desk, id)) for id in "bcbc"]
        agent.write(b"!")
        assert (await blocking).output.text == "let go"
        assert (await patient).status == SERVING
        assert await asyncio.gather(*others) == [1, 1, 2, 2]
        running.process.terminate()
        assert await running.ended() == 0


async def test_a_signal_into_a_blocked_loop_is_heeded_after_it(place: Place) -> None:  # noqa: F811
    async with place.run() as running, Desk(running.address) as desk:
        blocking = invoke(desk, "block")
        _, agent = await place.reported()
        running.process.terminate()
        agent.write(b"!")
        assert (await blocking).output.text == "let go"
        assert await running.ended() == 0


async def test_a_limit_that_is_lowered_while_agents_start_costs_none_of_them(
    place: Place,  # noqa: F811
) -> None:
    """1. Three agents start, of three at most. The limit becomes one; a fourth is called.
    2. They start: each call is answered. Two leave, then the third, for the fourth.
    """

    def call(desk: Desk, id: str) -> asyncio.Future[agent_pb.InvokeResponse]:
        request = agent_pb.InvokeRequest(agent=ref(id, "sleeper"), action="add")
        return asyncio.ensure_future(desk.agents.Invoke(request))

    async def totals(desk: Desk) -> residency_pb.GetResidencyResponse:
        answer: residency_pb.GetResidencyResponse = await desk.residency.GetResidency(
            residency_pb.GetResidencyRequest()
        )
        return answer

    async with place.run(capacity=3, admission_timeout=FUSE) as running:
        async with Desk(running.address) as desk:
            calls = [call(desk, id) for id in "abc"]
            starts = dict([await place.reported() for _ in calls])
            assert starts.keys() == {f"starting {id}" for id in "abc"}
            request = residency_pb.SetCapacityRequest(capacity=1)
            lowered = await desk.residency.SetCapacity(request)
            assert (lowered.capacity, lowered.used) == (1, 3)
            fourth = call(desk, "d")
            assert (await totals(desk)).loading == 3
            for start in starts.values():
                start.write(b"go on\n")
            assert [(await each).output.json.number_value for each in calls] == [1, 1, 1]
            name, start = await place.reported()
            assert name == "starting d"
            now = await totals(desk)
            assert (now.used, now.loading) == (1, 1)
            start.write(b"go on\n")
            assert (await fourth).output.json.number_value == 1
            assert not (await desk.residency.Reconcile(residency_pb.ReconcileRequest())).defects
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
