"""A real process is killed in the middle of commits."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from store_kit import FUSE, key

from innkeeper_server.store import SQLiteStore

AGENTS = 8


async def acknowledged_until_killed(path: Path, lines: int) -> dict[str, int]:
    """Let a process commit until it has acknowledged `lines` commits, and kill it: the last
    version that each agent was told of, also those told between our decision and its end.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("committer.py")),
        str(path),
        str(AGENTS),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    told: dict[str, int] = {}
    try:
        async with asyncio.timeout(FUSE):
            for _ in range(lines):
                id, version = (await process.stdout.readline()).split()
                told[id.decode()] = int(version)
    finally:
        process.kill()
    async for line in process.stdout:
        if line.endswith(b"\n"):
            id, version = line.split()
            told[id.decode()] = int(version)
    assert await process.wait() == -signal.SIGKILL
    return told


async def test_every_acknowledged_commit_is_there_after_a_kill(path: Path) -> None:
    """Three lives over one database, each killed in mid-commit: what was acknowledged is there,
    whole, and at most the one commit more that was under way.
    """
    for life in range(1, 4):
        told = await acknowledged_until_killed(path, 400)
        assert len(told) == AGENTS
        store = SQLiteStore(str(path))
        await store.open()
        for id, version in told.items():
            record = await store.read(key(id))
            assert record is not None
            assert record.version - version in (0, 1)
            assert record.state == b"%d" % record.version
            assert record.epoch == life
        await store.close()
