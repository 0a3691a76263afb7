"""The server as a process: its loop, its signals, its ready line, its exit code.

Owns what only a process has. The first signal asks for a gentle stop, the second for a quick one,
the third ends the process at once. Code that will not end cannot keep the process from ending.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from innkeeper_server.config import Settings
from innkeeper_server.listening import StartError
from innkeeper_server.telemetry import set_up_logging

if TYPE_CHECKING:
    from innkeeper_server.server import Server

__all__ = ["CUT", "FAILED", "main"]

FAILED = 1  # it could not start
CUT = 3  # it stopped, but not everything that was accepted could be finished

LINGER = 1.0  # seconds for tasks that are about to end anyway
TEARDOWN = 5.0  # seconds for the loop to close

log = logging.getLogger("innkeeper.server")


def main(settings: Settings, build: Callable[[Settings], Server]) -> int:
    """Build, serve until a signal comes, stop; 0 for a clean end, else FAILED or CUT."""
    set_up_logging(settings.log_level, settings.log_format)
    runner = asyncio.Runner(loop_factory=_loop_factory(settings.uvloop))
    code = CUT
    try:
        code = runner.run(_serve(settings, build))
    finally:
        with _fuse(code):
            runner.close()
    return code


async def _serve(settings: Settings, build: Callable[[Settings], Server]) -> int:
    signals = _Signals()
    try:
        server = build(settings)
        await server.start()
    except StartError as fault:
        log.error("cannot start: %s", fault)
        return FAILED
    # What was imported and built stays: the collector need not look through it again and again.
    gc.collect()
    gc.freeze()
    signals.hurry = server.hurry.set
    _announce(server)
    await signals.stop.wait()
    log.info("stopping, because of %s", signals.first)
    code = 0 if await server.stop() else CUT
    if not await _nobody_left():
        log.error("code that would not stop is left behind")
        _end_now(code)
    log.info("stopped" if code == 0 else "stopped; not everything could be finished")
    return code


class _Signals:
    """SIGTERM and SIGINT, counted."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.first = ""
        self.hurry: Callable[[], None] = lambda: None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._came, number)
        self._count = 0

    def _came(self, number: signal.Signals) -> None:
        self._count += 1
        if self._count == 1:
            self.first = signal.Signals(number).name
            self.stop.set()
        elif self._count == 2:
            self.hurry()
        else:
            log.error("a third signal: ending at once")
            _end_now(CUT)


def _announce(server: Server) -> None:
    """Tell that calls are taken: in the log, and in the one line of stdout, for scripts."""
    line = f"innkeeper is serving on {server.address}"
    if server.admin_address:
        line += f", operators on {server.admin_address}"
    if server.metrics_address:
        line += f", metrics on {server.metrics_address}"
    names = ", ".join(type.name for type in server.host.registry.types())
    log.info("%s; agents: %s", line, names)
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _loop_factory(fast: bool) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if not fast:
        return None
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _nobody_left() -> bool:
    """Whether every task has ended, or does so very soon."""
    this = asyncio.current_task()
    if others := asyncio.all_tasks() - {this}:
        await asyncio.wait(others, timeout=LINGER)
    return asyncio.all_tasks() == {this}


@contextmanager
def _fuse(code: int) -> Iterator[None]:
    """End the process if the body does not end: closing a loop waits for threads of agents."""
    fuse = threading.Timer(TEARDOWN, _end_now, (code,))
    fuse.daemon = True
    fuse.start()
    try:
        yield
    finally:
        fuse.cancel()


def _end_now(code: int) -> NoReturn:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
