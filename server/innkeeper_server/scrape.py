"""/metrics and /healthz over HTTP, for those who speak no gRPC.

Owns just enough of HTTP/1.1 for a scraper and a probe: one GET a connection, bounded in size and
time, answered on the host's loop from what is in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from innkeeper_server.listening import split

MAX_HEAD = 8192  # bytes
PATIENCE = 5.0  # seconds, for each connection
MAX_CONNECTIONS = 64

TEXT = "text/plain; charset=utf-8"
METRICS = "text/plain; version=0.0.4; charset=utf-8"


class Scrape:
    """Answers on one address from `start` to `close`."""

    def __init__(self, metrics: Callable[[], bytes], healthy: Callable[[], bool]) -> None:
        self._metrics = metrics
        self._healthy = healthy
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, address: str) -> int:
        """Listen on HOST:PORT; return the port that was taken."""
        host, port = split(address)
        self._server = await asyncio.start_server(self._connected, host, port, limit=MAX_HEAD)
        taken: int = self._server.sockets[0].getsockname()[1]
        return taken

    async def close(self) -> None:
        """Stop listening. What is being answered is cut."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(set(self._connections), timeout=PATIENCE)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._connections.add(task)
        try:
            async with asyncio.timeout(PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head.split(b"\r\n", 1)[0].decode("latin-1")))
                await writer.drain()
            writer.close()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()
        finally:
            writer.close()
            self._connections.discard(task)

    def _answer(self, line: str) -> bytes:
        method, _, rest = line.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in ("GET", "HEAD"):
            status, kind, body = "405 Method Not Allowed", TEXT, b"only GET\n"
        elif path == "/metrics":
            status, kind, body = "200 OK", METRICS, self._metrics()
        elif path == "/healthz" and self._healthy():
            status, kind, body = "200 OK", TEXT, b"serving\n"
        elif path == "/healthz":
            status, kind, body = "503 Service Unavailable", TEXT, b"not serving\n"
        else:
            status, kind, body = "404 Not Found", TEXT, b"/metrics or /healthz\n"
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        return head.encode() + (b"" if method == "HEAD" else body)
