"""Clients that are not ours: Node's @grpc/grpc-js, and buf curl through reflection."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
AGENTS = str(HERE / "agents.py")
GOOGLE = sysconfig.get_path("purelib")  # holds google/rpc/status.proto
FUSE = 300.0


@pytest.fixture(scope="session")
def node_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Node program with its packages installed beside it."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("Node and npm are not here")
    folder = tmp_path_factory.mktemp("node")
    for name in ("client.js", "package.json"):
        shutil.copy(HERE / "node" / name, folder)
    installed = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "--no-package-lock"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=FUSE,
        check=False,
    )
    if installed.returncode:
        pytest.skip(f"npm could not install the packages: {installed.stderr[-300:]}")
    return folder / "client.js"


def test_a_node_program_runs_every_agent_rpc(serve: Callable[..., Any], node_client: Path) -> None:
    served = serve("--agents", AGENTS, "--store", "memory:")
    ran = subprocess.run(
        ["node", str(node_client), served.address, str(ROOT / "protos"), GOOGLE],
        capture_output=True,
        text=True,
        timeout=FUSE,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    steps = [json.loads(line) for line in ran.stdout.splitlines()]
    assert {step["step"]: step["value"] for step in steps} == {
        "invoke": 2,
        "chat": [["one ", "two "], "completed"],
        "followup": "RECEIPT_STATE_ACCEPTED",
        "receipt": "RECEIPT_STATE_COMPLETED",
        "session": [4, 7],
        "cancel": 0,
        "refused": [5, 1],
    }


def find_buf() -> str:
    """buf, from the environment that checks the protos."""
    for place in (Path(sys.executable).parent, ROOT / ".venv-stubs/bin"):
        if (place / "buf").exists():
            return str(place / "buf")
    pytest.skip("buf is not here; tests/run installs it")


class Curl:
    """buf curl on one host, with nothing but what reflection tells."""

    def __init__(self, address: str) -> None:
        self.command = [find_buf(), "curl", "--http2-prior-knowledge", "--protocol", "grpc"]
        self.url = f"http://{address}"

    def run(self, method: str, *messages: object, ok: bool = True) -> list[Any]:
        body = "\n".join(json.dumps(message) for message in messages)
        ran = subprocess.run(
            [*self.command, "-d", "@-", f"{self.url}/{method}"],
            input=body,
            capture_output=True,
            text=True,
            timeout=FUSE,
            check=False,
        )
        assert (ran.returncode == 0) is ok, ran.stderr
        return list(documents(ran.stdout if ok else ran.stderr))

    def methods(self) -> list[str]:
        listed = subprocess.run(
            [*self.command, "--list-methods", self.url],
            capture_output=True,
            text=True,
            timeout=FUSE,
            check=True,
        )
        return listed.stdout.split()


def documents(text: str) -> list[Any]:
    """The JSON documents that follow one another in a text."""
    found, decoder, rest = [], json.JSONDecoder(), text.strip()
    while rest:
        document, end = decoder.raw_decode(rest)
        found.append(document)
        rest = rest[end:].strip()
    return found


def test_buf_curl_runs_every_agent_rpc_through_reflection(serve: Callable[..., Any]) -> None:
    served = serve("--agents", AGENTS, "--store", "memory:")
    curl = Curl(served.address)
    service = "innkeeper.v1.AgentService"
    agent = {"type": "counter", "id": "from-curl"}
    offered = curl.methods()
    for name in ("Invoke", "StreamChat", "Followup", "GetReceipt", "Session", "Cancel"):
        assert f"{service}/{name}" in offered
    assert "grpc.health.v1.Health/Check" in offered

    (invoked,) = curl.run(
        f"{service}/Invoke", {"agent": agent, "action": "add", "input": {"json": {"n": 2}}}
    )
    assert invoked["output"] == {"json": 2}
    events = curl.run(f"{service}/StreamChat", {"agent": agent, "message": {"text": "one two"}})
    assert [event["event"].get("textDelta") for event in events] == ["one ", "two ", None]
    assert events[-1]["event"]["completed"]["output"] == {"text": "one two "}
    (followup,) = curl.run(f"{service}/Followup", {"agent": agent, "message": {"text": "later"}})
    assert followup["receipt"]["state"] == "RECEIPT_STATE_ACCEPTED"
    asked = {"receiptId": followup["receipt"]["receiptId"], "wait": True}
    (ended,) = curl.run(f"{service}/GetReceipt", asked)
    assert ended["receipt"]["state"] == "RECEIPT_STATE_COMPLETED"
    answers = curl.run(
        f"{service}/Session",
        {"frames": [{"open": {"agent": agent}}]},
        {"frames": [{"callId": "1", "invoke": {"action": "get"}}, {"close": {}}]},
    )
    frames = [frame for answer in answers for frame in answer["frames"]]
    assert [frame["result"]["invoke"]["output"] for frame in frames if "result" in frame] == [
        {"json": 4}
    ]
    assert "closed" in frames[-1]
    assert curl.run(f"{service}/Cancel", {"agent": agent, "scope": "CANCEL_SCOPE_ALL"}) == [{}]
    (health,) = curl.run("grpc.health.v1.Health/Check", {})
    assert health == {"status": "SERVING"}
    (refused,) = curl.run(f"{service}/Invoke", {"agent": {"type": "nobody", "id": "x"}}, ok=False)
    assert refused["code"] == "not_found"
