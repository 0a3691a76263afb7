"""Points at which a test holds whoever comes, until it lets go.

Owns gates. A gate stands open until it is shut, so scenarios shut only those they are about.
"""

from __future__ import annotations

import asyncio

from innkeeper_server.testing.loop import VirtualLoop

FUSE = 100_000.0  # seconds, virtual ones as a rule; a scenario that waits longer hangs


class Gate:
    """One point. `held` counts who stands there, `passed` who went by. `pauses`: how often whoever
    passes lets others go first, also where the gate is open; a search needs such moments."""

    def __init__(self, pauses: int = 0) -> None:
        self._pauses = pauses
        self._open = asyncio.Event()
        self._open.set()
        self._here = asyncio.Event()
        self.held = 0
        self.passed = 0

    def shut(self) -> Gate:
        """Hold whoever comes from now on."""
        self._open.clear()
        self._here.clear()
        return self

    def open(self) -> None:
        """Let go whoever stands here, and whoever comes."""
        self._open.set()

    async def reached(self) -> None:
        """Wait until somebody has come since the gate was shut."""
        async with asyncio.timeout(FUSE):
            await self._here.wait()

    async def pass_through(self) -> None:
        """Come to the gate, and go by once it is open."""
        self.held += 1
        self._here.set()
        try:
            for _ in range(self._pauses):
                await asyncio.sleep(0)
            await self._open.wait()
        finally:
            self.held -= 1
        self.passed += 1

    async def pass_stubbornly(self) -> None:
        """As `pass_through`, but deaf to cancellation, like code that swallows it."""
        self.held += 1
        self._here.set()
        while not self._open.is_set():
            try:
                await self._open.wait()
            except asyncio.CancelledError:
                continue
        self.held -= 1
        self.passed += 1


class Gates:
    """Gates by name, made when first asked for."""

    def __init__(self, pauses: int = 0) -> None:
        self._pauses = pauses
        self._gates: dict[str, Gate] = {}

    def __getitem__(self, name: str) -> Gate:
        return self._gates.setdefault(name, Gate(self._pauses))

    def open_all(self) -> None:
        """Let everybody go."""
        for gate in self._gates.values():
            gate.open()


async def settle() -> None:
    """Let everything go on that needs no time to pass. On virtual time only."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop), "whether all is quiet can only be told on virtual time"
    await loop.quiet()
