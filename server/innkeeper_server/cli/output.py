"""What a command prints.

Owns the two forms: for people (tables on a terminal, tab-separated lines in a pipe) and JSON. Data
goes to standard output, everything about it to standard error.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import typer

from innkeeper_client import AgentRef, Blob, Custom, InnkeeperError
from innkeeper_server.cli.exits import exit_of, hint_of


class Output:
    """Prints one command's results, as JSON if `as_json`.

    `story`: everything is read from top to bottom by a person, in one stream.
    """

    def __init__(self, as_json: bool, *, story: bool = False) -> None:
        self.as_json = as_json
        self._story = story

    def document(self, value: object) -> None:
        """One JSON document."""
        typer.echo(json.dumps(plain(value), indent=2, ensure_ascii=False))

    def line(self, value: object) -> None:
        """One JSON document on one line, at once."""
        typer.echo(json.dumps(plain(value), ensure_ascii=False))

    def text(self, text: str) -> None:
        """One line for people."""
        typer.echo(text)

    def piece(self, text: str) -> None:
        """Part of a line, at once."""
        sys.stdout.write(_tame(text))
        sys.stdout.flush()

    def aside(self, text: str) -> None:
        """One line about the data, to standard error."""
        self._aside(typer.style(_one_line(text), dim=True))

    def custom(self, event: Custom) -> None:
        """What an agent said beside its text."""
        self.aside(f"[{event.name}] {json.dumps(plain(event.data), ensure_ascii=False)}")

    def value(self, value: Any) -> None:
        """What an agent returned: text and bytes as they are, the rest as JSON, None as nothing."""
        if isinstance(value, Blob):
            sys.stdout.flush()
            sys.stdout.buffer.write(value)
        elif isinstance(value, str):
            typer.echo(_tame(value))
        elif value is not None:
            self.document(value)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Rows under a heading; columns that end in '>' are set to the right.

        For people, columns in which nothing stands are left out; in a pipe all are there.
        """
        lines = [[_cell(cell) for cell in row] for row in rows]
        if self._story or sys.stdout.isatty():
            _draw(columns, lines)
            return
        for line in [[column.rstrip(">") for column in columns], *lines]:
            typer.echo("\t".join(line))

    def error(self, error: InnkeeperError) -> None:
        """A failure: a line on standard error, and the JSON form where JSON is wanted."""
        hint = hint_of(error)
        fields = [f"{field}: {description}" for field, description in error.violations]
        self.complaint(
            f"{error.message} [{error.reason or error.code.name}]",
            # A single field is what the message is made of already.
            *(fields if [error.message] != fields else ()),
            *([f"hint: {hint}"] if hint else []),
        )
        if self.as_json:
            told = {**plain(error), "hint": hint, "exit_code": int(exit_of(error))}
            self.line({"error": told})

    def complaint(self, message: str, *details: str) -> None:
        """A line on standard error, and more below it."""
        head = typer.style("error:", fg="red", bold=True)
        self._aside(f"{head} {_one_line(message)}")
        for detail in details:
            self._aside(f"  {_one_line(detail)}")

    def _aside(self, line: str) -> None:
        sys.stdout.flush()  # Both may be the same terminal.
        typer.echo(line, err=not self._story)


def _draw(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    # Half of what this module costs to import, and of no use in a pipe.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    used = [at for at in range(len(columns)) if not lines or any(line[at] for line in lines)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for at in used:
        justify: Literal["left", "right"] = "right" if columns[at].endswith(">") else "left"
        table.add_column(columns[at].rstrip(">"), justify=justify, overflow="fold")
    for line in lines:
        # Text, not str: what agents are named must not be read as markup.
        table.add_row(*(Text(line[at]) for at in used))
    Console().print(table)


def plain(value: Any) -> Any:
    """The JSON form of what the client gives."""
    if isinstance(value, InnkeeperError):
        return {
            "code": value.code.name,
            "reason": value.reason,
            "message": value.message,
            "metadata": value.metadata,
            "violations": [{"field": f, "description": d} for f, d in value.violations],
            "retry_after": value.retry_after,
        }
    if isinstance(value, Blob):
        data = base64.b64encode(value).decode("ascii")
        return {"data": data, "content_type": value.content_type}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def span(seconds: float | None) -> str:
    """A length of time for people: 0.4 s, 12 s, 3 min, 2.5 h, 4 d. "" for None."""
    if seconds is None:
        return ""
    for unit, size in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{round(seconds / size, 1):g} {unit}"
    return f"{round(seconds, 1):g} s"


def clock(moment: datetime | None) -> str:
    """A moment for people, in local time, without the date where it is near. "" for None."""
    if moment is None:
        return ""
    near = abs((datetime.now(UTC) - moment).total_seconds()) < 12 * 3600
    return moment.astimezone().strftime("%H:%M:%S" if near else "%Y-%m-%d %H:%M:%S")


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, float):
        return span(value)
    if isinstance(value, datetime):
        return clock(value)
    if isinstance(value, AgentRef):
        return _one_line(str(value))
    return "" if value is None else _one_line(str(value))


def _tame(text: str) -> str:
    """An agent's text; on a terminal without what would command it."""
    if not sys.stdout.isatty():
        return text
    return "".join(char for char in text if char.isprintable() or char in "\n\t")


def _one_line(text: str) -> str:
    """Without what would break a line, or talk to the terminal."""
    return "".join(char if char.isprintable() else " " for char in text).strip()
