"""The outgoing queue of a session: order, batches, bounds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from rpc_kit import Gate, soon, until

from innkeeper.v1 import agent_service_pb2 as agent_pb
from innkeeper_server.errors import SlowReader, TooLarge
from innkeeper_server.rpc.frames import (
    HARD_FRAMES,
    MAX_BYTES,
    MAX_FRAMES,
    SOFT_BYTES,
    SOFT_FRAMES,
    Outgoing,
)

LIMIT = 4 << 20
LONG = 3600.0


class Paper:
    """What was written, through a gate."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.messages: list[agent_pb.SessionResponse] = []
        self.sizes: list[int] = []

    async def write(self, raw: Any) -> None:
        await self.gate.pass_through()
        self.messages.append(agent_pb.SessionResponse.FromString(raw))
        self.sizes.append(len(raw))

    def nonces(self) -> list[int]:
        return [frame.pong.nonce for message in self.messages for frame in message.frames]


def pong(nonce: int, size: int = 0) -> agent_pb.ServerFrame:
    return agent_pb.ServerFrame(call_id="x" * size, pong=agent_pb.PongFrame(nonce=nonce))


async def test_frames_keep_their_order_and_share_messages() -> None:
    out, paper = Outgoing(LONG, LIMIT), Paper()
    for n in range(200):
        out.put(pong(n))
    out.end()
    await soon(out.write_all(paper.write))
    assert paper.nonces() == list(range(200))
    assert [len(message.frames) for message in paper.messages] == [MAX_FRAMES] * 3 + [8]


async def test_a_message_stays_below_its_bytes_unless_one_frame_is_larger() -> None:
    out, paper = Outgoing(LONG, LIMIT), Paper()
    for n, size in enumerate((400_000, 400_000, 400_000, 2_000_000, 10)):
        out.put(pong(n, size))
    out.end()
    await soon(out.write_all(paper.write))
    assert [len(message.frames) for message in paper.messages] == [2, 1, 1, 1]
    assert sorted(paper.sizes)[-2] <= MAX_BYTES


async def test_a_frame_that_no_message_can_carry_is_refused() -> None:
    out = Outgoing(LONG, LIMIT)
    with pytest.raises(TooLarge):
        out.put(pong(1, LIMIT))
    assert not out.is_full


async def test_a_producer_waits_for_room_and_goes_on() -> None:
    out, paper = Outgoing(LONG, LIMIT), Paper()
    paper.gate.shut()
    writer = asyncio.create_task(out.write_all(paper.write))

    async def produce() -> None:
        for n in range(3 * SOFT_FRAMES):
            await out.room()
            out.put(pong(n))
        out.end()

    producer = asyncio.create_task(produce())
    await paper.gate.reached()
    await until(lambda: out.is_full)
    assert not producer.done()
    paper.gate.open()
    await soon(producer)
    await soon(writer)
    assert paper.nonces() == list(range(3 * SOFT_FRAMES))


async def test_bytes_count_as_well_as_frames() -> None:
    out = Outgoing(LONG, 2 * SOFT_BYTES)
    out.put(pong(1, SOFT_BYTES))
    assert out.is_full


async def test_a_client_that_takes_nothing_is_let_go_after_the_producers_patience() -> None:
    out, paper = Outgoing(0.0, LIMIT), Paper()
    paper.gate.shut()
    writer = asyncio.create_task(out.write_all(paper.write))
    for n in range(SOFT_FRAMES + 2 * MAX_FRAMES):
        out.put(pong(n))
    await paper.gate.reached()
    await soon(out.room())
    out.put(pong(-1))
    assert not out.is_full
    paper.gate.open()
    with pytest.raises(SlowReader):
        await soon(writer)
    assert len(paper.messages) <= 1


async def test_the_hard_bound_holds_without_anybody_waiting() -> None:
    out = Outgoing(LONG, LIMIT)
    for n in range(HARD_FRAMES + 1):
        out.put(pong(n))
    with pytest.raises(SlowReader):
        await soon(out.write_all(Paper().write))
