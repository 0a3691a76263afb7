"""Commands that only look: types, agents, residents, why, watch, health, version.

Owns how what the host tells is laid out for people.
"""

from __future__ import annotations

import platform
from enum import StrEnum
from importlib import metadata
from typing import Annotated

import grpc
import typer

from innkeeper_client import AgentRef, Client
from innkeeper_client.records import CatalogEntry, Explanation, Residency, Resident, Transition
from innkeeper_server.cli.asking import HERE, AgentArgument, Json, Target, Timeout, address, ask
from innkeeper_server.cli.exits import Exit
from innkeeper_server.cli.output import Output, clock, span

Type = Annotated[str, typer.Option("--type", metavar="TYPE", help="Only agents of this type.")]
Prefix = Annotated[
    str, typer.Option("--prefix", metavar="TEXT", help="Only ids that begin with this.")
]
Limit = Annotated[int, typer.Option("--limit", min=1, metavar="N", help="At most so many.")]

PAGE = 1000


class State(StrEnum):
    """Where a runtime stands."""

    any = ""
    loading = "loading"
    resident = "resident"
    claimed = "claimed"
    stopping = "stopping"
    zombie = "zombie"


class Order(StrEnum):
    """How residents are sorted."""

    agent = "agent"
    idle = "idle"
    age = "age"
    active = "active"


def types(target: Target = HERE, json: Json = False, timeout: Timeout = None) -> None:
    """List the types of agents that the host serves, and what they can do."""

    async def work(client: Client, output: Output) -> None:
        served = await client.catalog.types()
        if output.as_json:
            output.document({"agent_types": served})
            return
        rows = []
        for kind in served:
            can = ["chat"] if kind.chat else []
            can += [_signature(action.name, action.input_schema) for action in kind.actions]
            rows.append((kind.type, ", ".join(can), kind.description))
        output.table(["type", "can", "description"], rows)

    ask(target, json, timeout, work)


def agents(
    agent: Annotated[
        AgentRef | None,
        typer.Argument(parser=address, metavar="[TYPE/ID]", help="Show this one, with its state."),
    ] = None,
    type: Type = "",
    prefix: Prefix = "",
    limit: Limit = PAGE,
    target: Target = HERE,
    json: Json = False,
    timeout: Timeout = None,
) -> None:
    """List the agents that exist, in memory or not; or show one with its state.

    \b
    innkeeper agents --type counter
    innkeeper agents counter/a
    """

    async def one(client: Client, output: Output) -> None:
        assert agent is not None
        entry = await client.catalog.get(agent)
        if output.as_json:
            output.document({"agent": entry})
        else:
            output.table(_ENTRY, [_entry(entry)])
            output.value({"state": entry.state})

    async def all_of_them(client: Client, output: Output) -> None:
        entries: list[CatalogEntry] = []
        listing = client.catalog.list(type, prefix=prefix, page_size=min(limit + 1, PAGE))
        async for entry in listing:
            if len(entries) == limit:
                output.aside(f"there are more than {limit}; see --limit, --type and --prefix")
                break
            entries.append(entry)
        if output.as_json:
            output.document({"agents": entries})
        else:
            output.table(_ENTRY, map(_entry, entries))

    ask(target, json, timeout, one if agent is not None else all_of_them)


def residents(
    type: Type = "",
    prefix: Prefix = "",
    state: Annotated[State, typer.Option("--state", help="Only runtimes in this state.")] = (
        State.any
    ),
    order: Annotated[
        Order,
        typer.Option(
            "--order", help="By name, longest idle first, oldest first, longest turn first."
        ),
    ] = Order.agent,
    limit: Limit = PAGE,
    target: Target = HERE,
    json: Json = False,
    timeout: Timeout = None,
) -> None:
    """List the agents in memory: who they are, who owns them, how long they have been idle.

    \b
    innkeeper residents
    innkeeper residents --order idle        # the order in which they would leave
    """

    async def work(client: Client, output: Output) -> None:
        totals = await client.residency.get()
        listed: list[Resident] = []
        listing = client.residency.list(
            type, prefix=prefix, state=state.value, order=order.value,
            page_size=min(limit + 1, PAGE),
        )  # fmt: skip
        async for resident in listing:
            if len(listed) == limit:
                output.aside(f"there are more than {limit}; see --limit, --type and --prefix")
                break
            listed.append(resident)
        if output.as_json:
            output.document({"residency": totals, "residents": listed})
        else:
            show_residents(totals, listed, output)

    ask(target, json, timeout, work)


def why(
    agent: AgentArgument,
    target: Target = HERE,
    json: Json = False,
    timeout: Timeout = None,
) -> None:
    """Tell why an agent is in memory or not, who owns it, and what became of it so far.

    \b
    innkeeper why counter/a
    """

    async def work(client: Client, output: Output) -> None:
        explanation = await client.residency.explain(agent)
        if output.as_json:
            output.document(explanation)
        else:
            show_explanation(explanation, output)

    ask(target, json, timeout, work)


def watch(
    after: Annotated[
        int | None,
        typer.Option(metavar="SEQ", help="Begin with what the host remembers after this number."),
    ] = None,
    target: Target = HERE,
    json: Json = False,
) -> None:
    """Print every change of residency as it happens, until interrupted."""

    async def work(client: Client, output: Output) -> None:
        async for transition in client.residency.watch(after=after):
            if output.as_json:
                output.line(transition)
            else:
                output.text("\t".join(map(str, _transition(transition))))

    ask(target, json, None, work)


def health(
    service: Annotated[
        str, typer.Argument(metavar="[SERVICE]", help="One service by its full name; else all.")
    ] = "",
    target: Target = HERE,
    json: Json = False,
    timeout: Timeout = 5.0,
) -> None:
    """Ask if the host takes work: exit code 0 if it does, 5 if it does not.

    \b
    until innkeeper health; do sleep 1; done
    """

    async def work(client: Client, output: Output) -> Exit:
        status = await client.health.check(service)
        if output.as_json:
            output.document({"service": service, "status": status})
        else:
            output.text(status)
        return Exit.OK if status == "serving" else Exit.UNAVAILABLE

    ask(target, json, timeout, work)


def version(json: Json = False) -> None:
    """Print the versions that are at work here."""
    versions = {
        "innkeeper": _installed(),
        "python": platform.python_version(),
        "grpc": grpc.__version__,
    }
    output = Output(json)
    if json:
        output.document(versions)
    else:
        output.text(" · ".join(f"{name} {number}" for name, number in versions.items()))


def _installed() -> str:
    try:
        return metadata.version("innkeeper")
    except metadata.PackageNotFoundError:
        return "from source"


def show_residents(totals: Residency, listed: list[Resident], output: Output) -> None:
    """The account in a line, and a table of runtimes."""
    draining = ", draining" if totals.draining else ""
    output.aside(
        f"{totals.used} of {totals.capacity} slots used, {totals.idle} idle, "
        f"{totals.waiting} waiting{draining}"
    )
    output.table(
        ["agent", "runtime", "epoch>", "state", "owned by", "queued>", "turn", "idle>", "age>"],
        [
            (
                r.agent, r.runtime_id, r.epoch, r.state, _owners(r), r.queued or "",
                span(r.active_turn_age), r.idle_for, r.resident_for,
            )
            for r in listed
        ],
    )  # fmt: skip


def show_explanation(explanation: Explanation, output: Output) -> None:
    """The sentence that says it all, then the particulars."""
    output.text(explanation.summary)
    if explanation.waits_for and explanation.waits_for not in explanation.summary:
        output.text(f"waits for {explanation.waits_for}")
    resident = explanation.resident
    if resident is not None and resident.leases:
        rows = [(o.kind, o.count, o.oldest, ", ".join(o.names)) for o in resident.leases]
        output.table(["owners", "count>", "oldest>", "who"], rows)
    if explanation.story:
        # All of one agent, so its name is left out.
        output.table(
            ["seq>", "at", "runtime", "from", "to", "why"],
            [(row[0], row[1], *row[3:]) for row in map(_transition, explanation.story)],
        )


_ENTRY = ["agent", "version>", "epoch>", "runtime", "queued>", "last turn", "updated"]


def _entry(entry: CatalogEntry) -> tuple[object, ...]:
    return (
        entry.agent, entry.version, entry.epoch, entry.runtime_id, entry.queued or "",
        "running" if entry.active else entry.last_status, entry.updated_at,
    )  # fmt: skip


def _transition(t: Transition) -> tuple[object, ...]:
    return (
        t.seq, clock(t.at), t.agent, t.runtime_id,
        t.from_state or "absent", t.to_state or "absent", t.reason,
    )  # fmt: skip


def _owners(resident: Resident) -> str:
    return ", ".join(f"{owner.count} {owner.kind}" for owner in resident.leases)


def _signature(name: str, schema: dict[str, object] | None) -> str:
    properties = (schema or {}).get("properties")
    return f"{name or 'invoke'}({', '.join(properties) if isinstance(properties, dict) else ''})"
