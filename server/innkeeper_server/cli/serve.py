"""`innkeeper serve`."""

from __future__ import annotations


def serve() -> None:
    """Run a host."""
    raise NotImplementedError
