"""The client stays light."""

from __future__ import annotations

import subprocess
import sys

FOREIGN = {"innkeeper_server", "pydantic", "typer", "rich", "structlog", "uvloop"}


def test_the_client_imports_neither_the_server_nor_what_only_that_needs() -> None:
    show = "import innkeeper_client, sys; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", show], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(done.stdout.split())
    assert {"grpc", "google", "innkeeper"} <= loaded
    assert not loaded & FOREIGN
