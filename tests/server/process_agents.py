"""Agents for a server in a process of its own; they tell the test where they are, over a socket."""

from __future__ import annotations

import asyncio
import os
import socket
import threading

from pydantic import BaseModel

from innkeeper_server import Agent, action


class Ledger(BaseModel):
    """What a guest keeps."""

    count: int = 0


class Guest(Agent[Ledger]):
    """Counts, and can be held in more or less good manners."""

    @action
    async def add(self, n: int = 1) -> int:
        """Add to the count."""
        self.state.count += n
        return self.state.count

    @action
    async def hold(self) -> str:
        """Wait until the test says so."""
        reader, writer = await _report("held")
        try:
            await reader.readline()
        finally:
            writer.close()
        return "let go"

    @action
    async def stubborn(self) -> None:
        """Never end."""
        await _report("stubborn")
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    @action
    async def blocked(self) -> None:
        """Wait for a thread that never ends."""
        await _report("blocked")
        await asyncio.to_thread(threading.Event().wait)

    @action
    async def block(self) -> str:
        """Hold up the whole loop until the test says so."""
        with socket.socket(socket.AF_UNIX) as told:
            told.connect(os.environ["TEST_SOCKET"])
            told.sendall(b"blocking\n")
            told.recv(1)
        return "let go"


class Sleeper(Agent[Ledger]):
    """Starts when the test says so."""

    async def on_start(self) -> None:
        """Wait."""
        reader, writer = await _report(f"starting {self.id}")
        try:
            await reader.readline()
        finally:
            writer.close()

    @action
    async def add(self, n: int = 1) -> int:
        """Add to the count."""
        self.state.count += n
        return self.state.count


async def _report(what: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(os.environ["TEST_SOCKET"])
    writer.write(f"{what}\n".encode())
    return reader, writer
