"""A host as a user starts it: a process of its own.

Owns the process, from its first line to its end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "import sys; from innkeeper_server.cli import main; sys.exit(main())"
FUSE = 60.0  # seconds after which a process that does not answer is ended


class Served:
    """One process that serves; `address` is where."""

    def __init__(self, *flags: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, "serve", "--listen", "127.0.0.1:0", *flags],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        assert self.process.stdout is not None
        fuse = threading.Timer(FUSE, self.process.kill)
        fuse.start()
        try:
            lines = iter(self.process.stdout.readline, "")
            line = next((line for line in lines if "serving on" in line), "")
        finally:
            fuse.cancel()
        assert line, "the host did not come up"
        self.address = line.split("serving on ")[1].split()[0].rstrip(",")

    def kill(self) -> None:
        """SIGKILL: nothing is said, nothing is saved."""
        self.process.kill()
        self.process.wait(FUSE)

    def pause(self) -> None:
        """SIGSTOP: it takes part in nothing until it is told to go on."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """SIGTERM; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(FUSE)


def environment() -> dict[str, str]:
    """As the tests see it, for processes that the tests start."""
    roots = ":".join(str(ROOT / root) for root in ("protos", "server", "client"))
    return {**os.environ, "PYTHONPATH": roots}
