"""`innkeeper demo`."""

from __future__ import annotations


def demo() -> None:
    """Run a demo."""
    raise NotImplementedError
