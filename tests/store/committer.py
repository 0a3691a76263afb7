"""A process that commits without end and says on stdout what was acknowledged; made to be killed.

python committer.py DATABASE AGENTS
"""

from __future__ import annotations

import asyncio
import os
import sys

from innkeeper_server.identity import AgentKey
from innkeeper_server.store import SQLiteStore


async def count(store: SQLiteStore, key: AgentKey) -> None:
    life = await store.hydrate(key)
    version = life.version
    while True:
        version = await store.commit(
            key, epoch=life.epoch, version=version, state=b"%d" % (version + 1)
        )
        os.write(1, f"{key.id} {version}\n".encode())


async def main() -> None:
    store = SQLiteStore(sys.argv[1])
    await store.open()
    await asyncio.gather(
        *(count(store, AgentKey("t", "counter", str(n))) for n in range(int(sys.argv[2])))
    )


asyncio.run(main())
