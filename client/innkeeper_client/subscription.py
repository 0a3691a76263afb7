"""Hearing an agent for as long as one wants.

Owns `subscription`: streams of Subscribe calls, put together behind the last event that was seen.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping

from grpc import aio

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper.v1 import agent_service_pb2_grpc as agent_rpc

from .calls import Caller, Deadline, may_repeat, typed_errors
from .errors import InnkeeperError, OutcomeUnknown, SlowReader
from .events import Event, from_event

_Call = aio.UnaryStreamCall[agent_pb.SubscribeRequest, agent_pb.SubscribeResponse]


async def subscription(
    caller: Caller,
    stub: agent_rpc.AgentServiceAsyncStub,
    request: agent_pb.SubscribeRequest,
    *,
    timeout: float | None,
    metadata: Mapping[str, str],
) -> AsyncIterator[Event]:
    """The events of an agent, each of them once, however often the connection is lost.

    Gives up after as many calls in a row as the client's retries allow that brought nothing.
    """
    deadline = caller.deadline(math.inf if timeout is None else timeout)
    sent = caller.metadata(metadata)
    made = 0
    while True:
        with typed_errors():
            call: _Call = stub.Subscribe(request, timeout=deadline.left(), metadata=sent)
        try:
            while True:
                response = await _read(call)
                made = 0
                if not response.event.HasField("gap"):
                    request = _behind(request, response)
                if (event := from_event(response.event)) is not None:
                    yield event
        except InnkeeperError as error:
            made += 1
            again = may_repeat(error, harmless=True) or isinstance(error, SlowReader)
            if made >= caller.retry.attempts or not again:
                raise
            await _pause(caller, made, error, deadline)
        finally:
            if not call.done():
                call.cancel()


async def _pause(caller: Caller, made: int, error: InnkeeperError, deadline: Deadline) -> None:
    pause = caller.retry.pause(made, error.retry_after)
    left = deadline.left()
    if left is not None and pause >= left:
        raise error
    await caller.retry.sleep(pause)


def _behind(
    request: agent_pb.SubscribeRequest, response: agent_pb.SubscribeResponse
) -> agent_pb.SubscribeRequest:
    return agent_pb.SubscribeRequest(agent=request.agent, after=response.event.cursor)


async def _read(call: _Call) -> agent_pb.SubscribeResponse:
    with typed_errors():
        message = await call.read()
    if isinstance(message, agent_pb.SubscribeResponse):
        return message
    raise OutcomeUnknown("the stream of events ended")
