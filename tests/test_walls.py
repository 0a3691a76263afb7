"""The walls of the house: which module may know which. An import that crosses one fails here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SERVER = ROOT / "server/innkeeper_server"
CLIENT = ROOT / "client/innkeeper_client"

# From the inside out: a module may import its own layer and those before it.
LAYERS = [
    {"errors", "patience", "signals", "limits"},
    {"identity", "content", "faults", "threads"},
    {"events", "slots"},
    {"ledger", "waiting", "moves", "leaving", "residency", "explain", "audit"},
    {"agent", "calls", "store"},
    {"arguments", "state", "work", "agent_type", "loading", "registry", "mailbox", "demo"},
    {
        "runtime",
        "quarantine",
        "resting",
        "driver",
        "letters",
        "journal",
        "ends",
        "turns",
        "cancelling",
        "receipts",
        "live",
        "repeats",
        "followups",
        "alarms",
        "forgetting",
        "visits",
        "following",
        "lives",
        "nested",
        "operators",
        "drain",
        "host",
    },
    {"rpc", "testing", "telemetry"},
    {"config", "scrape", "listening"},
    {"server", "process"},
    {"cli"},
]
LEVEL = {module: level for level, modules in enumerate(LAYERS) for module in modules}


def imports(path: Path) -> set[str]:
    """What a file imports when it runs; imports for type checkers do not count."""
    tree = ast.parse(path.read_text())
    found = set()
    for node in _runtime_nodes(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _runtime_nodes(node: ast.AST) -> list[ast.AST]:
    found: list[ast.AST] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        found += [child, *_runtime_nodes(child)]
    return found


def modules(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


@pytest.mark.parametrize("path", modules(SERVER), ids=lambda p: str(p.relative_to(SERVER)))
def test_imports_point_inwards(path: Path) -> None:
    name = path.relative_to(SERVER).parts[0].removesuffix(".py")
    if name == "__init__":
        return
    assert name in LEVEL, f"{name} has no place in the house"
    for imported in imports(path):
        parts = imported.split(".")
        if parts[0] == "innkeeper_server" and len(parts) > 1 and parts[1] in LEVEL:
            lazy = name in ("config", "cli", "process")
            assert LEVEL[parts[1]] <= LEVEL[name] or lazy, f"{name} imports {imported}"


@pytest.mark.parametrize("path", modules(CLIENT), ids=lambda p: p.name)
def test_the_client_knows_nothing_of_the_server(path: Path) -> None:
    known = {name.split(".")[0] for name in imports(path)}
    assert not known & {"innkeeper_server", "pydantic", "typer", "rich", "structlog"}


@pytest.mark.parametrize(
    "path", [*modules(SERVER), *modules(CLIENT)], ids=lambda p: str(p.relative_to(ROOT))
)
def test_every_file_says_what_it_is_and_has_one_subject(path: Path) -> None:
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text)), f"{path} does not say what it owns"
    lines = len(text.splitlines())
    assert lines <= 400, f"{path}: {lines} lines"
