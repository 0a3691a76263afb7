"""The `innkeeper` command.

Commands that talk to a host need nothing of the server but this package, so they import no more;
`serve` and `demo` import the rest when they run.
"""

from innkeeper_server.cli.app import main

__all__ = ["main"]
