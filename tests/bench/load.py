"""A bounded load of Invoke calls on one server of this machine.

python -m bench.load ADDRESS CALLS IN_FLIGHT AGENTS     prints one JSON line
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import grpc
import uvloop

from innkeeper.v1 import agent_service_pb2

METHOD = "/innkeeper.v1.AgentService/Invoke"


async def load(address: str, calls: int, in_flight: int, agents: int) -> None:
    requests = []
    for number in range(agents):
        request = agent_service_pb2.InvokeRequest(
            agent={"type": "echo", "id": f"agent-{number}"}, action="say"
        )
        request.input.json.struct_value.fields["text"].string_value = "x" * 100
        requests.append(request.SerializeToString())
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(METHOD)  # bytes in, bytes out: the client is not measured
        for request in requests:
            await call(request, timeout=30)
        left = iter(range(calls))
        latencies: list[float] = []

        async def caller() -> None:
            for number in left:
                begun = time.perf_counter()
                reply = await call(requests[number % agents], timeout=30)
                latencies.append(time.perf_counter() - begun)
                assert len(reply) > 100, "no echo"

        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        begun = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(in_flight)))
        took = time.perf_counter() - begun
    latencies.sort()
    result = {
        "calls": len(latencies),
        "rate": round(calls / took),
        "p50_ms": round(latencies[len(latencies) // 2] * 1e3, 2),
        "p99_ms": round(latencies[len(latencies) * 99 // 100] * 1e3, 2),
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    address, *counts = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(load(address, *map(int, counts)))
