"""Finding agents in an author's module.

Owns imports by name or by path, and what counts as an agent of a module: its public `Agent`
subclasses and async generator functions that are defined there, or for a package anywhere inside
it. What a module merely imports, abstract classes and names with a leading underscore do not count.

As with `python file.py`, the directory of a file can be imported from: it is put at the head of
`sys.path`, so `import sibling` works. For a module given by name the working directory is.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from innkeeper_server.agent import Agent

__all__ = ["agents_of", "load_module"]


def load_module(spec: str) -> ModuleType:
    """Import a module by its dotted name, or a file by its path. Raises ValueError naming it."""
    try:
        if spec.endswith(".py") or os.sep in spec:
            return _load_file(spec)
        _importable(Path.cwd())
        return importlib.import_module(spec)
    except (Exception, SystemExit) as fault:  # a script may end itself when it is imported
        raise ValueError(
            f"cannot load agents from {spec!r}: {type(fault).__name__}: {fault}"
        ) from fault


def agents_of(module: ModuleType) -> list[type[Agent[Any]] | Callable[..., Any]]:
    """A module's agents, in the order of their definition. Raises ValueError if it has none."""
    found: dict[int, Any] = {}
    for name, value in vars(module).items():
        if not name.startswith("_") and _is_agent(value) and _is_inside(value, module):
            found[id(value)] = value
    if not found:
        raise ValueError(
            "no agents here: neither a public subclass of Agent nor a public async generator "
            "function is defined in this module"
        )
    return list(found.values())


def _is_agent(value: Any) -> bool:
    if isinstance(value, type):
        return issubclass(value, Agent) and not inspect.isabstract(value)
    return inspect.isasyncgenfunction(value)


def _is_inside(value: Any, module: ModuleType) -> bool:
    home = str(value.__module__)
    return home == module.__name__ or home.startswith(f"{module.__name__}.")


def _load_file(spec: str) -> ModuleType:
    """A file always has the same module name, which no other file has."""
    path = Path(spec).expanduser().resolve(strict=True)
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
    name = f"innkeeper_agents_{digest}_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise ImportError("a file of agents ends in .py")
    _importable(path.parent)
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _importable(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
