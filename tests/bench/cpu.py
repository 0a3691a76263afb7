"""Server CPU for one Invoke, against a bare grpc.aio echo with the same messages.

Both servers live through the whole run and are loaded in turn by the same client; the figure is
the median of the rounds' ratios. CPU is user and system time of the server's process, so what the
client and the machine do besides hardly counts.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

TESTS = Path(__file__).resolve().parents[1]
ROUNDS = 7
CALLS = 6_000
IN_FLIGHT = 64
AGENTS = 64
BUDGET = 1.35
SERVE = "from innkeeper_server.cli import main; main()"


@contextmanager
def server(*command: str) -> Iterator[tuple[psutil.Process, str]]:
    """A server of ours and its address, from the line that it prints once it serves."""
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=TESTS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=_environment(),
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        for line in process.stdout:
            if "serving on" in line:
                yield psutil.Process(process.pid), line.split("serving on ")[1].split()[0]
                break
        else:
            raise RuntimeError(f"{command} did not serve")
    finally:
        process.stdin.close()
        process.terminate()
        process.wait(30)


def compare() -> dict[str, Any]:
    """Microseconds of server CPU for each call, and the ratios of the rounds."""
    with tempfile.TemporaryDirectory() as folder:
        host = ("-c", SERVE, "serve", "--agents", str(TESTS / "bench/agents.py"))
        store = ("--store", f"sqlite:///{folder}/bench.db", "--listen", "127.0.0.1:0")
        with server("-m", "bench.bare") as bare, server(*host, *store) as hosted:
            _round(*bare)
            _round(*hosted)
            rounds = [(_round(*bare), _round(*hosted)) for _ in range(ROUNDS)]
    ratios = sorted(b["cpu_us"] / a["cpu_us"] for a, b in rounds)
    return {
        "calls_a_round": CALLS,
        "in_flight": IN_FLIGHT,
        "bare": _middle([a for a, _ in rounds]),
        "innkeeper": _middle([b for _, b in rounds]),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "budget": BUDGET,
    }


def _round(process: psutil.Process, address: str) -> dict[str, float]:
    client = subprocess.Popen(
        [sys.executable, "-m", "bench.load", address, str(CALLS), str(IN_FLIGHT), str(AGENTS)],
        cwd=TESTS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=_environment(),
    )
    assert client.stdout is not None
    assert client.stdin is not None
    assert client.stdout.readline() == "ready\n"
    before = _cpu(process)
    client.stdin.write("go\n")
    client.stdin.flush()
    result: dict[str, float] = json.loads(client.stdout.readline())
    used = _cpu(process) - before
    client.wait(30)
    return {"cpu_us": used / CALLS * 1e6, **result}


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _middle(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(statistics.median(r[key] for r in rounds), 2) for key in rounds[0]}


def _environment() -> dict[str, str]:
    roots = [str(TESTS), *(str(TESTS.parent / root) for root in ("protos", "server", "client"))]
    return {**os.environ, "PYTHONPATH": ":".join(roots)}
