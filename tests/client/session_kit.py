"""The host's side of a scripted session.

Owns the desk at which a script hears and says frames, and the frames that a host says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from scripted import World, status

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import common_pb2 as common_pb
from innkeeper_client import Session
from innkeeper_client.values import to_payload

Frame = agent_pb.ServerFrame
OPENED = Frame(
    opened=agent_pb.OpenedFrame(
        session_id="s1", agent=common_pb.AgentRef(type="counter", id="a"), runtime_id="r1"
    )
)
CLOSED = Frame(closed=agent_pb.ClosedFrame())


class Desk:
    """The host's side of one session."""

    def __init__(self, requests: Any, context: Any) -> None:
        self._requests = requests
        self._context = context
        self._heard: deque[agent_pb.ClientFrame] = deque()
        self.batches: list[int] = []

    async def hears(self, kind: str) -> agent_pb.ClientFrame:
        """The next frame, which must be of this kind."""
        while not self._heard:
            request = await anext(aiter(self._requests))
            self.batches.append(len(request.frames))
            self._heard.extend(request.frames)
        frame = self._heard.popleft()
        assert frame.WhichOneof("frame") == kind
        return frame

    async def says(self, *frames: Frame) -> None:
        """One message with these frames."""
        await self._context.write(agent_pb.SessionResponse(frames=frames))

    async def opens(self) -> None:
        await self.hears("open")
        await self.says(OPENED)

    async def closes(self) -> None:
        await self.hears("close")
        await self.says(CLOSED)


def host(play: Callable[[Desk], Awaitable[None]]) -> Callable[[Any, Any], Awaitable[None]]:
    """A script for one session."""

    async def answer(requests: Any, context: Any) -> None:
        await play(Desk(requests, context))

    return answer


def result(call_id: str, output: Any) -> Frame:
    done = agent_pb.InvokeResponse(output=to_payload(output), turn_id="t", runtime_id="r1")
    return Frame(call_id=call_id, result=agent_pb.ResultFrame(invoke=done))


def text(call_id: str, delta: str) -> Frame:
    return Frame(call_id=call_id, event=common_pb.Event(text_delta=delta))


def completed(call_id: str, output: Any) -> Frame:
    done = common_pb.Completed(output=to_payload(output))
    return Frame(call_id=call_id, event=common_pb.Event(completed=done))


def refused(call_id: str, *args: Any, **kwargs: Any) -> Frame:
    return Frame(call_id=call_id, error=status(*args, **kwargs))


def session(it: World, *plays: Callable[[Desk], Awaitable[None]], **settings: Any) -> Session:
    it.agents.will(*map(host, plays))
    return it.client.agent("counter", "a").session(**settings)
