"""`innkeeper store`: the store without a host.

Owns the commands that bring a store's schema up to date, look for what is wrong with it, and move
what it holds into a file and back. How that is done is store/upkeep's.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from innkeeper_server.cli.asking import Json
from innkeeper_server.cli.exits import Exit
from innkeeper_server.cli.output import Output

if TYPE_CHECKING:
    from innkeeper_server.store.upkeep import Counts, Progress, Sink, Source, Upkeep

app = typer.Typer(
    help="Look after a store: its schema, its health, its move elsewhere.",
    no_args_is_help=True,
)

Url = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="sqlite:///PATH|postgresql://…",
        help="Which store; default: as `innkeeper serve` finds it.",
        show_default=False,
    ),
]
Config = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Settings file; default: innkeeper.toml if there."),
]
Archive = Annotated[
    str, typer.Argument(metavar="FILE", help="Where; - is a pipe. Compressed where it ends in .gz.")
]


@app.command()
def migrate(store: Url = None, config: Config = None, as_json: Json = False) -> None:
    """Bring the schema up to date, from nothing too.

    A host does so by itself when it starts; this is for those who want it done before. Hosts and
    commands that start at once make each step once.

    \b
    innkeeper store migrate --store postgresql://innkeeper@db/innkeeper
    """

    async def work(upkeep: Upkeep, output: Output) -> Exit:
        before, after = await upkeep.migrate()
        if as_json:
            output.document({"before": before, "after": after})
        elif before == after:
            output.text(f"the schema is up to date: version {after}")
        else:
            output.text(f"the schema was brought from version {before} to {after}")
        return Exit.OK

    _tend(store, config, as_json, work)


@app.command()
def check(store: Url = None, config: Config = None, as_json: Json = False) -> None:
    """Count what a store holds, and look for what is wrong with it. Changes nothing.

    A host may have the store open. Exit code 1 if anything is wrong.

    \b
    innkeeper store check
    innkeeper store check --store sqlite:////var/lib/innkeeper/agents.db --json
    """

    async def work(upkeep: Upkeep, output: Output) -> Exit:
        from innkeeper_server.store.upkeep import inspect

        with _progress(output) as progress:
            counts, findings = await inspect(upkeep, progress)
        if as_json:
            found = [{"what": finding.what, "times": finding.times} for finding in findings]
            output.document({"schema": upkeep.known, "rows": counts, "findings": found})
        else:
            _counted(output, counts)
            for finding in findings:
                output.complaint(f"{finding.what}: {finding.times}")
            output.aside("something is wrong" if findings else "nothing is wrong")
        return Exit.FAILED if findings else Exit.OK

    _tend(store, config, as_json, work)


@app.command("export")
def export_(
    file: Archive,
    store: Url = None,
    config: Config = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE.")] = False,
    as_json: Json = False,
) -> None:
    """Write all that a store holds into a file.

    That is agents with their states, tombstones too; follow-ups, ended or not; outcomes of calls
    with an idempotency key; events; and alarms.

    A host may have the store open; the file has what the store held at one moment. Stop the host
    first where the file is to move it elsewhere: what is accepted later is not in it.

    \b
    innkeeper store export backup.jsonl.gz
    innkeeper store export - --store sqlite:///old.db |
      innkeeper store import - --store sqlite:///new.db
    """

    async def work(upkeep: Upkeep, output: Output) -> Exit:
        from innkeeper_server.store.upkeep import export_to

        with _written(file, force=force) as target, _progress(output) as progress:
            counts = await export_to(upkeep, target, progress)
        if file != "-":  # else standard output is the file
            _moved(output, counts)
        return Exit.OK

    _tend(store, config, as_json, work)


@app.command("import")
def import_(file: Archive, store: Url = None, config: Config = None, as_json: Json = False) -> None:
    """Fill an empty store with an exported file: all of it, or nothing.

    The store may be of another kind than the one that was exported. No host may have it open.

    \b
    innkeeper store import backup.jsonl.gz --store postgresql://innkeeper@db/innkeeper
    """

    async def work(upkeep: Upkeep, output: Output) -> Exit:
        from innkeeper_server.store.upkeep import import_from

        with _read(file) as source, _progress(output) as progress:
            counts = await import_from(upkeep, source, progress)
        _moved(output, counts)
        return Exit.OK

    _tend(store, config, as_json, work)


def _tend(
    url: str | None,
    config: str | None,
    as_json: bool,
    work: Callable[[Upkeep, Output], Awaitable[Exit]],
) -> None:
    """Run a command's work on a store, and end with its exit code."""
    from innkeeper_server.config import ConfigError, load
    from innkeeper_server.errors import StoreUnavailable
    from innkeeper_server.store.upkeep import ArchiveFault, upkeep_of

    output = Output(as_json)
    try:
        upkeep = upkeep_of(load(config, store=url).store)
        code = asyncio.run(_run(work, upkeep, output))
    except StoreUnavailable as error:
        code = _failed(output, Exit.UNAVAILABLE, str(error))
    except ArchiveFault as fault:
        code = _failed(output, Exit.FAILED, f"the import left the store as it was: {fault}")
    except (ConfigError, ValueError) as fault:
        code = _failed(output, Exit.USAGE, *str(fault).splitlines())
    except OSError as fault:
        code = _failed(output, Exit.FAILED, f"{fault.filename or 'the file'}: {fault.strerror}")
    except KeyboardInterrupt:
        code = Exit.INTERRUPTED
    raise typer.Exit(code)


async def _run(
    work: Callable[[Upkeep, Output], Awaitable[Exit]], upkeep: Upkeep, output: Output
) -> Exit:
    return await work(upkeep, output)


def _failed(output: Output, code: Exit, *lines: str) -> Exit:
    output.complaint(*lines)
    if output.as_json:
        output.line({"error": {"message": " ".join(lines), "exit_code": int(code)}})
    return code


def _moved(output: Output, counts: Counts) -> None:
    if output.as_json:
        output.document({"rows": counts})
    else:
        _counted(output, counts)


def _counted(output: Output, counts: Counts) -> None:
    output.table(["table", "rows>"], counts.items())


@contextmanager
def _written(file: str, *, force: bool) -> Iterator[Sink]:
    """A file that has its name once it is whole, and that its owner alone can read."""
    if file == "-":
        if sys.stdout.isatty():
            raise ValueError("'-' writes into a pipe or a file, and this is a terminal")
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if not force and os.path.exists(file):
        raise ValueError(f"{file} is there already; --force replaces it")
    part = Path(f"{file}.part")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as raw:
            if file.endswith(".gz"):
                with gzip.GzipFile("", "wb", fileobj=raw) as packed:
                    yield packed
            else:
                yield raw
            raw.flush()
            os.fsync(raw.fileno())
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _read(file: str) -> Iterator[Source]:
    if file == "-":
        if sys.stdin.isatty():
            raise ValueError("'-' reads a pipe or a file, and this is a terminal")
        yield sys.stdin.buffer
    elif file.endswith(".gz"):
        with gzip.open(file, "rb") as packed:
            yield packed
    else:
        with open(file, "rb") as raw:
            yield raw


@contextmanager
def _progress(output: Output) -> Iterator[Progress]:
    """A bar on a terminal, for each thing that is counted; nothing elsewhere."""
    if output.as_json or not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns: list[Any] = [TextColumn("{task.description:<10}", markup=False), BarColumn()]
    columns += [MofNCompleteColumn(), TimeRemainingColumn()]
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("")
        yield lambda what, done, total: bars.update(
            bar, description=what, completed=done, total=total
        )
