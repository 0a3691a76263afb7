"""The file that a store is exported to and imported from.

Owns its form: lines of JSON, UTF-8. The first says what it is, when it was taken, and how many rows
of each table follow. Then each row is an object by the names of its columns, with bytes in base64.
The last has the SHA-256 of all lines before it, so that a file that was cut or changed is told from
a whole one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Protocol

from innkeeper_server.store.upkeep.tables import TABLES, Column, Row, Table

__all__ = ["ArchiveFault", "ArchiveReader", "ArchiveWriter", "Sink", "Source"]

FORMAT = 1
_MARK = "innkeeper-store"


class Sink(Protocol):
    """What an archive is written to."""

    def write(self, data: bytes, /) -> object: ...


class Source(Protocol):
    """What an archive is read from."""

    def readline(self) -> bytes: ...


class ArchiveFault(ValueError):
    """The file is no archive, or not a whole one. The words name the line."""


class ArchiveWriter:
    """Writes an archive, from the first line to the last."""

    def __init__(self, file: Sink, rows: dict[str, int]) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        taken = datetime.now(UTC).isoformat(timespec="seconds")
        self._line({"archive": _MARK, "format": FORMAT, "taken_at": taken, "rows": rows})

    def row(self, table: Table, row: Row) -> None:
        """One row of a table."""
        values = {c.name: _plain(v) for c, v in zip(table.columns, row, strict=True)}
        self._line({"table": table.name, **values})

    def end(self) -> None:
        """The last line."""
        self._line({"sha256": self._digest.hexdigest()})

    def _line(self, value: dict[str, Any]) -> None:
        line = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        self._digest.update(line)
        self._file.write(line)


class ArchiveReader:
    """Reads an archive. `rows` tells how many of each table it says it has."""

    def __init__(self, file: Source) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._number = 0
        head = self._next()
        if head.get("archive") != _MARK:
            raise ArchiveFault("it is no export of a store: its first line does not say so")
        if head.get("format") != FORMAT:
            raise ArchiveFault(
                f"it has format {head.get('format')!r}; this Innkeeper reads {FORMAT}"
            )
        self.rows = _counts(head.get("rows"))

    def read(self) -> Iterator[tuple[Table, Row]]:
        """All rows, table after table, and the last line checked."""
        for table in TABLES:
            for _ in range(self.rows[table.name]):
                yield table, self._row(table)
        digest = self._digest.hexdigest()
        if self._next().get("sha256") != digest:
            raise ArchiveFault(f"line {self._number}: the file was changed, or is damaged")
        if self._file.readline():
            raise ArchiveFault(f"line {self._number + 1}: nothing may follow the last line")

    def _row(self, table: Table) -> Row:
        found = self._next()
        if found.pop("table", None) != table.name:
            raise ArchiveFault(f"line {self._number}: a row of {table.name} was to come")
        if set(found) != set(table.names):
            odd = ", ".join(sorted(set(found) ^ set(table.names)))
            raise ArchiveFault(f"line {self._number}: wrong columns of {table.name}: {odd}")
        return tuple(self._value(table, column, found[column.name]) for column in table.columns)

    def _value(self, table: Table, column: Column, value: Any) -> Any:
        try:
            return _read(column, value)
        except ValueError as fault:
            where = f"line {self._number}: {table.name}.{column.name}"
            raise ArchiveFault(f"{where}: {fault}") from None

    def _next(self) -> dict[str, Any]:
        try:
            line = self._file.readline()
        except (OSError, EOFError, zlib.error) as fault:  # a compressed one, cut or damaged
            raise ArchiveFault(f"line {self._number + 1}: cannot be read: {fault}") from None
        if not line:
            raise ArchiveFault(f"it breaks off after line {self._number}")
        self._number += 1
        self._digest.update(line)
        try:
            value = json.loads(line)
        except ValueError:
            raise ArchiveFault(f"line {self._number}: is no JSON") from None
        if not isinstance(value, dict):
            raise ArchiveFault(f"line {self._number}: is no JSON object")
        return value


def _counts(value: Any) -> dict[str, int]:
    names = {table.name for table in TABLES}
    if (
        not isinstance(value, dict)
        or set(value) != names
        or not all(_is(count, int) and count >= 0 for count in value.values())
    ):
        raise ArchiveFault("line 1: it must say how many rows of each table follow")
    return value


def _plain(value: Any) -> Any:
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value


def _read(column: Column, value: Any) -> Any:
    if value is None and column.nullable:
        return None
    if column.type is bytes and isinstance(value, str):
        return base64.b64decode(value, validate=True)
    if column.type is float and _is(value, int):
        value = float(value)
    if not _is(value, column.type) or (column.type is float and not math.isfinite(value)):
        raise ValueError(f"must be {_NAMES[column.type]}{' or null' if column.nullable else ''}")
    return value


_NAMES = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    bytes: "base64",
}


def _is(value: Any, type: type) -> bool:
    return isinstance(value, type) and isinstance(value, bool) == (type is bool)
