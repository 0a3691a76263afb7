"""The test kit: a host on virtual time, gates, and a search through schedules.

For authors of agents, and what Innkeeper's own tests are made of:

    from innkeeper_server.testing import hosted, run

    def test_my_agent_keeps_its_count() -> None:
        async def scenario() -> None:
            async with hosted(Counter, capacity=1) as host:
                assert await host.invoke("counter", "a", "add", n=2) == 2
                await asyncio.sleep(3600)            # no time passes for you
                assert host.residents() == []        # it left, long ago
                assert await host.invoke("counter", "a", "add", n=2) == 4

        run(scenario())

`run` plays a scenario on virtual time, which jumps to the next timer when nothing else can go on,
and says where everybody stands if nothing ever can. `Gate` holds whoever comes to it. `explore`
plays a scenario in many orders, with cancellations, and prints the one that fails as a string that
`replay` takes.
"""

from innkeeper_server.testing.explorer import Explored, Scene, explore, replay
from innkeeper_server.testing.fakes import GatedStore
from innkeeper_server.testing.gates import Gate, Gates, settle
from innkeeper_server.testing.hosting import Hosted, hosted
from innkeeper_server.testing.loop import Deadlock, Livelock, VirtualLoop, run

__all__ = [
    "Deadlock",
    "Explored",
    "Gate",
    "GatedStore",
    "Gates",
    "Hosted",
    "Livelock",
    "Scene",
    "VirtualLoop",
    "explore",
    "hosted",
    "replay",
    "run",
    "settle",
]
