"""The Innkeeper host. What an agent's author needs is here; the rest lives in the modules."""

from innkeeper_server.agent import Agent, Turn, action
from innkeeper_server.content import Blob
from innkeeper_server.errors import AgentError
from innkeeper_server.events import Custom

__all__ = ["Agent", "AgentError", "Blob", "Custom", "Turn", "action"]
