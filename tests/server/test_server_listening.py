"""Starting: what is wrong is said in one line, and nothing is left behind."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from server_kit import Desk, Gate, ref, registry_with

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper_server.config import Settings
from innkeeper_server.server import Server, StartError, build, serving


async def add(address: str) -> float:
    async with Desk(address) as desk:
        request = agent_pb.InvokeRequest(agent=ref("a"), action="add")
        number: float = (await desk.agents.Invoke(request)).output.json.number_value
        return number


async def test_a_port_in_use_is_named(server: Server, gate: Gate) -> None:
    settings = Settings(listen=server.address, store="memory:")
    with pytest.raises(StartError, match=f"cannot listen on {server.address}: .* in use"):
        async with serving(settings, registry=registry_with(gate)):
            pass
    assert await add(server.address) == 1


@pytest.mark.parametrize("which", ["admin_listen", "metrics_listen"])
async def test_a_start_that_fails_half_way_leaves_nothing_open(
    server: Server, gate: Gate, tmp_path: Path, which: str
) -> None:
    store = f"sqlite:///{tmp_path}/i.db"
    path = f"unix:{tmp_path}/i.sock"
    wrong = Settings(listen=path, store=store, **{which: server.address})  # type: ignore[arg-type]
    with pytest.raises(StartError, match="in use"):
        async with serving(wrong, registry=registry_with(gate)):
            pass
    right = Settings(listen=path, store=store)
    async with serving(right, registry=registry_with(gate)):
        assert await add(path) == 1


async def test_a_unix_socket_is_served_for_its_owner_alone(gate: Gate, tmp_path: Path) -> None:
    path = tmp_path / "i.sock"
    settings = Settings(listen=f"unix:{path}", store="memory:")
    async with serving(settings, registry=registry_with(gate)) as server:
        assert server.address == f"unix:{path}"
        assert path.stat().st_mode & 0o077 == 0
        assert await add(server.address) == 1
        with pytest.raises(StartError, match="another server answers there"):
            async with serving(settings, registry=registry_with(gate)):
                pass
        assert await add(server.address) == 2
    assert not path.exists()


async def test_the_socket_file_of_a_dead_server_is_taken_away(gate: Gate, tmp_path: Path) -> None:
    path = tmp_path / "i.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists()
    settings = Settings(listen=f"unix:{path}", store="memory:")
    async with serving(settings, registry=registry_with(gate)) as server:
        assert await add(server.address) == 1


async def test_another_file_is_never_taken_away(gate: Gate, tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("kept")
    settings = Settings(listen=f"unix:{path}", store="memory:")
    with pytest.raises(StartError, match="is no socket"):
        async with serving(settings, registry=registry_with(gate)):
            pass
    assert path.read_text() == "kept"
    settings = Settings(listen=f"unix:{tmp_path}/none/i.sock", store="memory:")
    with pytest.raises(StartError, match="no such file or directory"):
        async with serving(settings, registry=registry_with(gate)):
            pass


async def test_a_store_that_is_in_use_is_named(gate: Gate, tmp_path: Path) -> None:
    settings = Settings(listen="127.0.0.1:0", store=f"sqlite:///{tmp_path}/i.db")
    async with serving(settings, registry=registry_with(gate)):
        with pytest.raises(StartError, match=r"i\.db: another host has it open"):
            async with serving(settings, registry=registry_with(gate)):
                pass


async def test_agents_that_cannot_be_loaded_are_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="no agents to serve"):
        build(Settings(store="memory:"))
    with pytest.raises(StartError, match=r"'no\.such\.module'"):
        build(Settings(store="memory:", agents=("no.such.module",)))


async def test_stopping_twice_is_stopping_once(server: Server) -> None:
    assert await server.stop()
    assert await server.stop()
