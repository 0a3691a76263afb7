"""The Innkeeper host. What an agent's author needs is here; the rest lives in the modules.

The names are looked up when they are first used, so that a client command, which needs none of
them, does not wait for them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from innkeeper_server.agent import Agent, Alarm, Turn, action
    from innkeeper_server.content import Blob
    from innkeeper_server.errors import AgentError
    from innkeeper_server.events import Custom

__all__ = ["Agent", "AgentError", "Alarm", "Blob", "Custom", "Turn", "action"]

_HOMES = {
    "Agent": "agent",
    "AgentError": "errors",
    "Alarm": "agent",
    "Blob": "content",
    "Custom": "events",
    "Turn": "agent",
    "action": "agent",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
