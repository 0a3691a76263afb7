"""What becomes of an exception that nobody raised on purpose.

Owns the error id that ties what the caller sees to what the log holds. The text of the exception
goes to the log alone.
"""

from __future__ import annotations

import logging
import secrets

from innkeeper_server.errors import AgentError, HandlerFailed, InnkeeperError, Internal
from innkeeper_server.identity import AgentKey

log = logging.getLogger("innkeeper.host")


def handler_failed(agent: AgentKey, where: str, fault: BaseException) -> HandlerFailed:
    """The agent's own code raised, in `where`."""
    error_id = _record(f"the code of {agent} raised in {where}", fault)
    return HandlerFailed(
        f"{agent} failed in {where}; the host's log has more under error id {error_id}",
        metadata={"agent": str(agent), "error_id": error_id},
    )


def host_failed(where: str, fault: BaseException) -> Internal:
    """The host has a defect."""
    error_id = _record(f"the host failed in {where}", fault)
    return Internal(
        f"the host failed; its log has more under error id {error_id}",
        metadata={"error_id": error_id},
    )


def passed_through(agent: AgentKey, error: InnkeeperError) -> InnkeeperError:
    """An error of a nested call that a handler let pass keeps its meaning, but says whose it was,
    and promises no good of a retry: the handler may have acted on the world before it."""
    if isinstance(error, AgentError):
        return error
    metadata = {"through": str(agent), **error.metadata}
    passed = type(error)(error.message, metadata=metadata, violations=error.violations)
    passed.retry_after = None
    return passed


def _record(what: str, fault: BaseException) -> str:
    error_id = secrets.token_hex(6)
    log.error("%s (error id %s)", what, error_id, exc_info=fault)
    return error_id
