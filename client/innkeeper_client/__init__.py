"""An asynchronous client for Innkeeper hosts.

Needs only grpc and protobuf; nothing of the server.
"""

from . import errors
from .agent import RemoteAgent
from .calls import Retry
from .client import Client
from .conversation import Session
from .errors import InnkeeperError
from .events import Cancelled, Completed, Cursor, Custom, Event, Failed, Gap, GoingAway, Push, Text
from .records import AgentRef, Receipt
from .reply import Reply
from .values import Blob

__all__ = [
    "AgentRef",
    "Blob",
    "Cancelled",
    "Client",
    "Completed",
    "Cursor",
    "Custom",
    "Event",
    "Failed",
    "Gap",
    "GoingAway",
    "InnkeeperError",
    "Push",
    "Receipt",
    "RemoteAgent",
    "Reply",
    "Retry",
    "Session",
    "Text",
    "errors",
]
