"""The agents that the benchmarks call."""

from __future__ import annotations

from pydantic import BaseModel

from innkeeper_server import Agent, action


class Plain(BaseModel):
    """A small state."""

    count: int = 0


class Echo(Agent[Plain]):
    """Gives back what it gets; its state does not change."""

    @action
    async def say(self, text: str) -> str:
        return text
