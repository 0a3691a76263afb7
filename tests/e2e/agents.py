"""Agents for the end-to-end tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pydantic import BaseModel

from innkeeper_server import Agent, action


class Count(BaseModel):
    count: int = 0


class Counter(Agent[Count]):
    """Counts, by every ingress that there is."""

    @action
    async def add(self, n: int = 1) -> int:
        self.state.count += n
        return self.state.count

    @action
    def add_in_thread(self, n: int = 1) -> int:
        count = self.state.count
        self.state.count = count + n
        return self.state.count

    @action
    async def get(self) -> int:
        return self.state.count

    async def chat(self, message: str) -> AsyncIterator[str]:
        for word in message.split():
            yield word + " "
        self.state.count += 1

    async def followup(self, message: str) -> None:
        self.state.count += 1


class Seen(BaseModel):
    bits: str = "0"  # in hexadecimal: whole numbers travel exactly up to 2**53 only
    twice: bool = False


class Bits(Agent[Seen]):
    """Notes which bits came, and whether one came twice."""

    async def followup(self, message: dict[str, int]) -> None:
        self._note(message["bit"])

    async def chat(self, message: dict[str, int]) -> AsyncIterator[str]:
        yield "noting "
        self._note(message["bit"])
        yield str(message["bit"])

    @action
    async def note(self, bit: int) -> int:
        self._note(bit)
        return bit

    @action
    async def remind(self, bit: int) -> None:
        """Have it noted some time soon: perhaps by another host."""
        self.set_alarm(bit % 5 / 10, {"bit": bit}, name=f"bit {bit}")

    @action
    async def waiting(self) -> int:
        """How many alarms have yet to come."""
        return len(await self.alarms())

    def _note(self, number: int) -> None:
        seen, bit = int(self.state.bits, 16), 1 << number
        self.state.twice = self.state.twice or bool(seen & bit)
        self.state.bits = f"{seen | bit:x}"

    @action
    async def get(self) -> tuple[str, bool]:
        return self.state.bits, self.state.twice
