"""Runs the benchmarks and prints what they say. See the package."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import account, cpu, memory

PARTS = ("cpu", "memory", "account")
console = Console()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    chosen = parser.parse_args()
    figures: dict[str, Any] = {}
    for part in chosen.parts or PARTS:
        with console.status(f"measuring {part}…"):
            figures[part] = {"cpu": _cpu, "memory": _memory, "account": account.compare}[part]()
        _show(part, figures[part])
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n")


def _cpu() -> dict[str, Any]:
    return cpu.compare()


def _memory() -> list[dict[str, Any]]:
    return [memory.weigh(count) for count in (10_000, 100_000)]


def _show(part: str, figures: Any) -> None:
    if part == "cpu":
        _table(
            "Invoke, state unchanged",
            [{"server": name, **figures[name]} for name in ("bare", "innkeeper")],
        )
        spread = f"{figures['ratios'][0]}-{figures['ratios'][-1]}"
        console.print(
            f"server CPU a call: [bold]{figures['ratio']} x[/] bare grpc.aio "
            f"(rounds {spread}; budget {figures['budget']})\n"
        )
    elif part == "memory":
        _table("an idle agent, beyond its own object and state", figures)
    else:
        shown = [{k: v for k, v in row.items() if k != "ratios"} for row in figures]
        _table("decisions of the account, CPU", shown)


def _table(title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(
            name.replace("_", " "), justify="left" if name in ("server", "operation") else "right"
        )
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    console.print(table)


if __name__ == "__main__":
    main()
