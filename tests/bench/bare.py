"""The yardstick: a bare grpc.aio server with the same messages, which only echoes.

python -m bench.bare        prints its port, serves until its input ends
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import uvloop

from innkeeper.v1 import agent_service_pb2, agent_service_pb2_grpc


class Echo(agent_service_pb2_grpc.AgentServiceServicer):
    """Answers with the text that came."""

    async def Invoke(self, request: Any, context: Any) -> Any:
        text = request.input.json.struct_value.fields["text"].string_value
        return agent_service_pb2.InvokeResponse(
            output={"text": text}, turn_id="0badcafe-t1234", runtime_id="0badcafe-7"
        )


async def serve() -> None:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    agent_service_pb2_grpc.add_AgentServiceServicer_to_server(Echo(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sys.stdout.write(f"serving on 127.0.0.1:{port}\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(0)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())
