"""The command line as a whole.

Owns which commands there are and how they are grouped.
"""

from __future__ import annotations

import typer

from innkeeper_server.cli import listen, look, steer, store, talk
from innkeeper_server.cli.demo import demo
from innkeeper_server.cli.exits import HELP
from innkeeper_server.cli.serve import serve

app = typer.Typer(
    name="innkeeper",
    help="Innkeeper hosts agents behind gRPC: they come to life on their first call, keep their "
    "state, and leave memory when nobody owns them any more.\n\n"
    "Start with `innkeeper demo`, or with a host of your own:\n\n"
    "\b\ninnkeeper serve --agents my_agents.py\ninnkeeper types\n"
    "innkeeper invoke counter/a add n=2\ninnkeeper chat concierge/lobby hello",
    epilog=HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_GROUPS = {
    "Run a host": (serve, demo),
    "Talk to agents": (
        talk.invoke, talk.chat, listen.events, talk.followup, talk.receipt, talk.cancel,
    ),
    "Look": (
        look.types, look.agents, look.residents, look.why, look.watch, look.health, look.version,
    ),
    "Steer": (
        steer.evict, steer.pin, steer.unpin, steer.capacity, steer.drain, steer.undrain,
        steer.delete,
    ),
}  # fmt: skip

for _group, _commands in _GROUPS.items():
    for _command in _commands:
        app.command(rich_help_panel=_group)(_command)

app.add_typer(store.app, name="store", rich_help_panel="Run a host")


def main() -> None:
    """Run the command line; ends the process with its exit code."""
    app()
