"""The server as a process: ready line, signals, exit codes, states that outlive it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2
from server_kit import FUSE, Desk, ref, refusal

from innkeeper.v1 import agent_service_pb2 as agent_pb

AGENTS = Path(__file__).with_name("process_agents.py")
RUN = """
import json, sys
from innkeeper_server import config, server
sys.exit(server.run(config.load(**json.loads(sys.argv[1]))))
"""


class Place:
    """Where servers run, what their processes do before, and where their agents report."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.before = ""
        self.reports: asyncio.Queue[tuple[str, asyncio.StreamWriter]] = asyncio.Queue()

    async def reported(self) -> tuple[str, asyncio.StreamWriter]:
        async with asyncio.timeout(FUSE):
            return await self.reports.get()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reports.put_nowait(((await reader.readline()).decode().strip(), writer))
        await reader.read()  # until the agent goes
        writer.close()

    @asynccontextmanager
    async def run(self, **flags: Any) -> AsyncIterator[Running]:
        """A server with these settings, once it says that it serves."""
        running = await self.start(**flags)
        try:
            async with asyncio.timeout(FUSE):
                running.ready = (await running.process.stdout.readline()).decode()  # type: ignore[union-attr]
            assert running.ready.startswith("innkeeper is serving on "), running.ready
            yield running
        finally:
            if running.process.returncode is None:
                running.process.kill()
                await running.process.wait()

    async def start(self, **flags: Any) -> Running:
        given = {"agents": [str(AGENTS)], "listen": "127.0.0.1:0", "log_format": "json", **flags}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            self.before + RUN,
            json.dumps(given),
            cwd=self.path,
            env={
                **{k: v for k, v in os.environ.items() if not k.startswith("INNKEEPER_")},
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "TEST_SOCKET": str(self.path / "test.sock"),
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        return Running(process)


class Running:
    """One server process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.ready = ""

    @property
    def address(self) -> str:
        return self.ready.split()[4].rstrip(",")

    async def logged(self, words: str) -> dict[str, Any]:
        """Wait for a line of the log with these words."""
        assert self.process.stderr is not None
        async with asyncio.timeout(FUSE):
            while raw := await self.process.stderr.readline():
                line: dict[str, Any] = json.loads(raw)
                if words in line["event"]:
                    return line
        raise AssertionError(f"never logged: {words}")

    async def ended(self) -> int:
        """The exit code."""
        async with asyncio.timeout(FUSE):
            self.rest = await self.process.communicate()
        code = self.process.returncode
        assert code is not None
        return code


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path)
    server = await asyncio.start_unix_server(place._connected, tmp_path / "test.sock")
    yield place
    server.close()


def invoke(desk: Desk, action: str) -> Any:
    return desk.agents.Invoke(agent_pb.InvokeRequest(agent=ref("a"), action=action))


@pytest.mark.parametrize("uvloop", [True, False])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_an_idle_server_cleanly(
    place: Place, number: signal.Signals, uvloop: bool
) -> None:
    async with place.run(uvloop=uvloop) as running:
        async with Desk(running.address) as desk:
            assert (await invoke(desk, "add")).output.json.number_value == 1
            running.process.send_signal(number)
            assert (await running.logged("stopping"))["event"].endswith(number.name)
            assert await running.ended() == 0
        assert running.rest[0] == b""  # one line of stdout, and no more


async def test_the_ready_line_has_every_address(place: Place) -> None:
    admin = f"unix:{place.path}/admin.sock"
    async with place.run(admin_listen=admin, metrics_listen="127.0.0.1:0") as running:
        assert f", operators on {admin}, metrics on 127.0.0.1:" in running.ready
        running.process.terminate()
        assert await running.ended() == 0


async def test_a_call_in_flight_is_finished_before_the_end(place: Place) -> None:
    async with place.run() as running, Desk(running.address) as desk:
        call = invoke(desk, "hold")
        _, agent = await place.reported()
        running.process.terminate()
        await running.logged("draining")
        assert (await refusal(invoke(desk, "add")))[:2] == ("UNAVAILABLE", "DRAINING")
        agent.write(b"go on\n")
        assert (await call).output.text == "let go"
        assert await running.ended() == 0


async def test_a_lame_duck_refuses_by_name_until_its_time_is_over(place: Place) -> None:
    """Everything has ended, and the port is still open; a second signal shortens it."""
    async with place.run(lame_duck=10_000) as running, Desk(running.address) as desk:
        await invoke(desk, "add")
        running.process.terminate()
        await running.logged("drained in")
        health = await desk.health.Check(health_pb2.HealthCheckRequest())
        assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
        for _ in range(50):
            seen = await refusal(invoke(desk, "add"))
            assert seen[:2] == ("UNAVAILABLE", "DRAINING")
        assert running.process.returncode is None
        running.process.terminate()
        assert await running.ended() == 0


async def test_a_call_that_does_not_end_is_cut_at_the_deadline(place: Place) -> None:
    async with place.run(drain_timeout=0.1) as running, Desk(running.address) as desk:
        call = invoke(desk, "hold")
        await place.reported()
        running.process.terminate()
        assert (await refusal(call))[:2] == ("ABORTED", "EVICTED")
        assert await running.ended() == 3


async def test_a_second_signal_cuts_at_once(place: Place) -> None:
    async with place.run(drain_timeout=10_000) as running, Desk(running.address) as desk:
        call = invoke(desk, "hold")
        await place.reported()
        running.process.terminate()
        await running.logged("draining")
        running.process.terminate()
        assert (await refusal(call))[:2] == ("ABORTED", "EVICTED")
        assert await running.ended() == 3


async def test_a_third_signal_waits_for_nothing(place: Place) -> None:
    limits = {"drain_timeout": 10_000, "stop_timeout": 10_000}
    async with place.run(**limits) as running, Desk(running.address) as desk:
        call = invoke(desk, "stubborn")
        await place.reported()
        running.process.terminate()
        await running.logged("draining")
        running.process.terminate()
        await running.logged("in a hurry")
        running.process.send_signal(signal.SIGINT)
        assert await running.ended() == 3
        assert (await refusal(call))[0] == "UNAVAILABLE"


@pytest.mark.parametrize("action", ["stubborn", "blocked"])
async def test_code_that_never_ends_does_not_keep_the_process(place: Place, action: str) -> None:
    limits = {"drain_timeout": 0.0, "stop_timeout": 0.1}
    async with place.run(**limits) as running, Desk(running.address) as desk:
        call = invoke(desk, action)
        await place.reported()
        running.process.terminate()
        assert (await refusal(call))[0] in ("ABORTED", "UNAVAILABLE")
        assert await running.ended() == 3


async def test_a_state_outlives_the_process(place: Place) -> None:
    for expected in (1, 2):
        async with place.run() as running, Desk(running.address) as desk:
            assert (await invoke(desk, "add")).output.json.number_value == expected
            running.process.terminate()
            assert await running.ended() == 0


async def test_a_state_outlives_a_process_that_was_killed(place: Place) -> None:
    for expected in (1, 2):
        async with place.run() as running, Desk(running.address) as desk:
            assert (await invoke(desk, "add")).output.json.number_value == expected
            running.process.kill()
            assert await running.ended() == -signal.SIGKILL


async def test_what_hinders_the_start_is_one_line_and_exit_code_1(place: Place) -> None:
    async with place.run() as running:
        for flags, words in (
            ({"store": "memory:", "listen": running.address}, f"listen on {running.address}"),
            ({}, "another host has it open"),
            ({"agents": ["none.py"]}, "cannot load agents from 'none.py'"),
        ):
            failed = await place.start(**flags)
            assert await failed.ended() == 1
            (line,) = failed.rest[1].decode().splitlines()
            assert words in json.loads(line)["event"]
