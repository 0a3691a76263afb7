"""Commands that change what is in memory: evict, pin, unpin, capacity, drain, undrain, delete.

Owns the operator's side of the command line.
"""

from __future__ import annotations

import getpass
from enum import StrEnum
from typing import Annotated

import typer

from innkeeper_client import Client
from innkeeper_client.records import DrainPlan, DrainProgress, DrainReport
from innkeeper_client.residency import DrainStep
from innkeeper_server.cli.asking import HERE, AgentArgument, Json, Target, Timeout, ask
from innkeeper_server.cli.exits import Exit
from innkeeper_server.cli.output import Output, span


class Mode(StrEnum):
    """How insistent an eviction is."""

    if_idle = "if-idle"
    graceful = "graceful"
    force = "force"


def evict(
    agent: AgentArgument,
    mode: Annotated[
        Mode,
        typer.Option(
            "--mode",
            help="Only if nobody owns it; let accepted work finish first; or stop its turn too.",
        ),
    ] = Mode.if_idle,
    runtime: Annotated[
        str, typer.Option("--runtime", metavar="ID", help="Only this life of the agent.")
    ] = "",
    deadline: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="How long a graceful eviction may take."),
    ] = None,
    target: Target = HERE,
    json: Json = False,
    timeout: Timeout = None,
) -> None:
    """Take an agent out of memory. Its state stays; the next call brings it back.

    \b
    innkeeper evict counter/a
    innkeeper evict concierge/lobby --mode graceful --deadline 30
    """

    async def work(client: Client, output: Output) -> None:
        evicted = await client.residency.evict(
            agent,
            runtime_id=runtime,
            mode=mode.value.replace("-", "_"),  # type: ignore[arg-type]
            deadline=deadline,
        )
        if output.as_json:
            output.document(evicted)
        else:
            still = "" if evicted.stopped else ", but its code still runs"
            output.text(f"{agent} left memory (runtime {evicted.runtime_id}){still}")

    ask(target, json, timeout, work)


def pin(
    agent: AgentArgument,
    ttl: Annotated[
        float, typer.Option("--ttl", metavar="SECONDS", min=0.001, help="For how long.")
    ] = 3600.0,
    owner: Annotated[
        str, typer.Option("--owner", metavar="NAME", help="Who asks. Default: your user name.")
    ] = "",
    target: Target = HERE,
    json: Json = False,
    timeout: Timeout = None,
) -> None:
    """Keep an agent in memory for a time, and bring it there if needed.

    \b
    innkeeper pin concierge/lobby --ttl 600
    """

    async def work(client: Client, output: Output) -> None:
        pinned = await client.residency.pin(agent, ttl=ttl, owner=owner or _me())
        if output.as_json:
            output.document(pinned)
        else:
            output.text(f"{agent} stays for {span(ttl)} (runtime {pinned.runtime_id})")

    ask(target, json, timeout, work)


def unpin(
    agent: AgentArgument,
    owner: Annotated[
        str, typer.Option("--owner", metavar="NAME", help="Whose pins. Default: your user name.")
    ] = "",
    everybody: Annotated[bool, typer.Option("--all", help="Everybody's pins.")] = False,
    target: Target = HERE,
    json: Json = False,
    timeout: Timeout = None,
) -> None:
    """Take pins back, so that the agent may leave memory again."""
    if owner and everybody:
        raise typer.BadParameter("give --owner or --all, not both")

    async def work(client: Client, output: Output) -> None:
        taken = await client.residency.unpin(agent, owner="" if everybody else owner or _me())
        if output.as_json:
            output.document({"unpinned": taken})
        else:
            output.text(f"took back {taken} {'pin' if taken == 1 else 'pins'} of {agent}")
            if not taken and not everybody:
                output.aside("hint: that is only your own; --owner NAME or --all for others'")

    ask(target, json, timeout, work)


def capacity(
    limit: Annotated[
        int | None, typer.Argument(metavar="[N]", min=1, help="The new limit; none: show it.")
    ] = None,
    target: Target = HERE,
    json: Json = False,
    timeout: Timeout = None,
) -> None:
    """Show how many agents may be in memory at once, or change it.

    After a decrease idle agents leave first, owned ones when they are free.
    """

    async def work(client: Client, output: Output) -> None:
        if limit is not None:
            changed = await client.residency.set_capacity(limit)
            now, used = changed.capacity, changed.used
        else:
            totals = await client.residency.get()
            now, used = totals.capacity, totals.used
        if output.as_json:
            output.document({"capacity": now, "used": used})
        else:
            output.text(f"{used} of {now} slots used")

    ask(target, json, timeout, work)


def drain(
    deadline: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="How long accepted work may take."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be.")] = False,
    target: Target = HERE,
    json: Json = False,
) -> None:
    """Take no new work, let accepted work finish, then empty the host. It stays up.

    Exit code 0 if nothing was cut and nothing is left, 1 if not.
    """

    async def work(client: Client, output: Output) -> Exit:
        clean = dry_run
        async for step in client.residency.drain(deadline=deadline, dry_run=dry_run):
            if output.as_json:
                output.line({"step": _STEPS[type(step)], **_fields(step)})
            else:
                _show(step, output)
            if isinstance(step, DrainReport):
                clean = step.clean
        return Exit.OK if clean else Exit.FAILED

    ask(target, json, None, work)


def undrain(target: Target = HERE, json: Json = False, timeout: Timeout = None) -> None:
    """Take work again after a drain."""

    async def work(client: Client, output: Output) -> None:
        was_draining = await client.residency.undrain()
        if output.as_json:
            output.document({"was_draining": was_draining})
        else:
            output.text("takes work again" if was_draining else "was not draining")

    ask(target, json, timeout, work)


def delete(
    agent: AgentArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    target: Target = HERE,
    json: Json = False,
    timeout: Timeout = None,
) -> None:
    """End an agent for ever, with its state. Nothing brings it back."""
    if not yes and not typer.confirm(f"End {agent} and its state for ever?", err=True):
        raise typer.Exit(Exit.FAILED)

    async def work(client: Client, output: Output) -> None:
        deleted = await client.catalog.delete(agent)
        if output.as_json:
            output.document({"deleted": deleted})
        else:
            output.text(f"{agent} is gone" if deleted else f"{agent} was gone already")

    ask(target, json, timeout, work)


_STEPS: dict[type[DrainStep], str] = {
    DrainPlan: "plan",
    DrainProgress: "progress",
    DrainReport: "report",
}


def _fields(step: DrainStep) -> dict[str, object]:
    return {name: getattr(step, name) for name in step.__slots__}


def _show(step: DrainStep, output: Output) -> None:
    if isinstance(step, DrainPlan):
        output.text(
            f"{step.idle} idle leave, {step.owned} owned finish, {step.waiting} are refused"
        )
        for resident in step.blockers:
            output.text(f"  {resident.agent}: {'; '.join(resident.blockers)}")
    elif isinstance(step, DrainProgress):
        output.text(f"{step.remaining} left, {step.owned} owned, {span(step.time_left)} to go")
    else:
        cut = f", {step.cut} turns cut, {step.zombies} still running" if not step.clean else ""
        output.text(f"{step.evicted} left in {span(step.took)}{cut}")


def _me() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "innkeeper"
