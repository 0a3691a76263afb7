"""The server: a host behind its listeners, from the first bind to the last byte.

Owns the order of start and stop. A stop is gentle first: not serving, take nothing new, finish
what was accepted, let replies leave; then it cuts, and says so. Each of its steps is bounded.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import grpc

from innkeeper_server.config import UNIX, Settings
from innkeeper_server.drain import DrainPlan, DrainProgress, DrainReport
from innkeeper_server.errors import InnkeeperError
from innkeeper_server.faults import host_failed
from innkeeper_server.host import Host
from innkeeper_server.limits import Limits
from innkeeper_server.listening import StartError, is_local, joined, make_free
from innkeeper_server.process import main
from innkeeper_server.registry import Registry
from innkeeper_server.rpc import agents, catalog, health, residency
from innkeeper_server.rpc.boundary import Boundary
from innkeeper_server.rpc.ending import Ending
from innkeeper_server.rpc.pulse import Pulse
from innkeeper_server.rpc.register import Handlers, reflect, register
from innkeeper_server.scrape import Scrape
from innkeeper_server.store import Store, open_store
from innkeeper_server.telemetry import Metrics

__all__ = ["Server", "StartError", "build", "run", "serving"]

log = logging.getLogger("innkeeper.server")

# A stop, in its order. Until the lame-duck time is over, calls are refused by name (DRAINING, with
# a time to retry after) and health is NOT_SERVING, so that whoever heeds either goes elsewhere.
# That time is a setting, 0 unless it is given: how long balancers take to notice is theirs to know,
# and a host that stands alone has nowhere to send anybody. Then callers that do not pause are held,
# until none has come for so many turns of the loop (of 0.01 s):
QUIET = 5  # if none had to be held
CALM = 25  # if some had
NO_CALM = 2.0  # seconds after which that is waited for no more: callers may come and come
LAST_WORDS = 2.0  # seconds for handlers to end once their work has
FAREWELL = 0.05  # seconds from closing the port until who was held is told: they know by then
GRACE = 1.0  # seconds that gRPC waits for calls, once the port is closed, before it cuts them
PROGRESS_EVERY = 1.0  # seconds between two lines of the log about a drain


class Server:
    """One host and its listeners. Make it inside a running loop; `start`, then `stop`, once."""

    def __init__(
        self, settings: Settings, registry: Registry, store: Store, limits: Limits | None = None
    ) -> None:
        self.settings = settings
        self.host = Host(registry, store, limits or settings.limits())
        self.boundary = Boundary(
            max_message_bytes=settings.max_message_bytes,
            reader_timeout=self.host.limits.reader_timeout,
        )
        self.ending = Ending()
        self.pulse = Pulse(self.host.account.next_deadline, self._say)
        self.hurry = asyncio.Event()  # set: whatever is being waited for is cut now
        self.address = ""  # where it really listens, once started
        self.admin_address = ""
        self.metrics_address = ""
        self._healths: list[health.Health] = []
        self._listeners: list[grpc.aio.Server] = []
        self._scrape: Scrape | None = None
        self._serves = False  # started
        self._stopped: asyncio.Task[bool] | None = None

    # -- start ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store, listen, serve. Raises StartError, with nothing left open."""
        try:
            await self._open_store()
            await self._listen()
        except BaseException:
            await self._abandon()
            raise
        self.host.drains.listeners.append(lambda _: self._say())
        self._serves = True
        self._say()
        self.pulse.start()

    async def _open_store(self) -> None:
        try:
            await self.host.start()
        except InnkeeperError as error:
            raise StartError(
                f"cannot open the store {self.settings.store}: {error.message}"
            ) from None

    async def _listen(self) -> None:
        works = agents.AgentService(self.host, self.boundary, self.ending)
        agent = {agents.SERVICE: works.handlers()}
        kept = {catalog.SERVICE: catalog.CatalogService(self.host, self.boundary).handlers()}
        desk = residency.ResidencyService(self.host, self.boundary, self.ending)
        steered = {residency.SERVICE: desk.handlers()}
        settings = self.settings
        if settings.admin_listen is None:
            self.address = await self._serve(settings.listen, {**agent, **kept, **steered})
        else:
            self.admin_address = await self._serve(settings.admin_listen, steered)
            self.address = await self._serve(settings.listen, {**agent, **kept})
        if settings.metrics_listen is not None:
            self.metrics_address = await self._serve_metrics(settings.metrics_listen)

    async def _serve(self, address: str, services: dict[str, Handlers]) -> str:
        """Serve on one address; return where it really is."""
        checked = health.Health(self.boundary, self.ending, services)
        services = {**services, health.SERVICE: checked.handlers()}
        if self.settings.reflection:
            services |= reflect(self.boundary, self.ending, list(services))
        listener = grpc.aio.server(options=_options(self.settings.max_message_bytes))
        register(listener, self.boundary, services)
        port = _bind(listener, address)
        self._listeners.append(listener)
        self._healths.append(checked)
        await listener.start()
        if not is_local(address):
            log.warning("%s is open to other machines, and nobody is asked who they are", address)
        return joined(address, port)

    async def _serve_metrics(self, address: str) -> str:
        make_free(address)
        self._scrape = Scrape(
            Metrics(self.host, self.boundary, self.pulse).text, lambda: self._healths[0].serving
        )
        try:
            return joined(address, await self._scrape.start(address))
        except OSError as fault:
            raise StartError(f"cannot listen on {address}: {fault.strerror or fault}") from None

    async def _abandon(self) -> None:
        """A start that failed leaves nothing behind."""
        for listener in self._listeners:
            await listener.stop(None)
        try:
            await self.host.close()
        except InnkeeperError:
            pass  # the store never opened

    def _say(self) -> None:
        """Tell whoever asks for our health whether work is taken."""
        closed = self.host.draining or self.ending.begun
        for checked in self._healths:
            checked.set(self._serves and self.pulse.steady and not closed)

    # -- stop -----------------------------------------------------------------------------------

    async def stop(self, patience: float | None = None) -> bool:
        """Drain for at most `patience` seconds (default: the drain timeout), then end everything.

        True if nothing had to be cut. Whoever comes later waits for the same end. `hurry` shortens
        it.
        """
        if self._stopped is None:
            self._stopped = asyncio.create_task(self._stop(patience), name="stop")
        return await asyncio.shield(self._stopped)

    async def _stop(self, patience: float | None) -> bool:
        self.ending.begun = True
        self._say()
        self.pulse.stop()
        gone = self.host.now() + self.settings.lame_duck
        clean = await self._drain(patience)
        await self._limp(gone - self.host.now())
        self.boundary.hold()
        self.ending.end()
        await self.boundary.quiet(QUIET, CALM, NO_CALM)
        clean = await self.boundary.finish(LAST_WORDS) and clean
        ends = [asyncio.create_task(listener.stop(GRACE)) for listener in self._listeners]
        await asyncio.wait(ends, timeout=FAREWELL)
        self.boundary.dismiss()
        await asyncio.wait(ends, timeout=2 * GRACE)
        await self.boundary.finish(GRACE)
        if self._scrape is not None:
            await self._scrape.close()
        return await self._close_host() and clean

    async def _limp(self, seconds: float) -> None:
        """Go on refusing. Once the port is closed, callers get only gRPC's UNAVAILABLE."""
        if seconds > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.hurry.wait()

    async def _drain(self, patience: float | None) -> bool:
        """Drain until the deadline, or until somebody is in a hurry; True if nothing was cut."""
        gentle = asyncio.create_task(self._drained(patience), name="drain")
        hurry = asyncio.create_task(self.hurry.wait(), name="hurry")
        await asyncio.wait((gentle, hurry), return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if gentle.done():
            return gentle.result()
        gentle.cancel()
        await asyncio.wait((gentle,))
        log.warning("in a hurry: what still runs is cut now")
        return await self._drained(0.0)

    async def _drained(self, patience: float | None) -> bool:
        told = float("-inf")
        clean = False
        async for step in self.host.drains.run(patience):
            if isinstance(step, DrainPlan):
                log.info("draining: %d idle, %d owned", step.idle, step.owned)
            elif isinstance(step, DrainReport):
                clean = step.clean
                _log_report(step)
            elif isinstance(step, DrainProgress) and self.host.now() - told >= PROGRESS_EVERY:
                told = self.host.now()
                log.info("draining: %d still here, %.1f s to go", step.remaining, step.time_left)
        return clean

    async def _close_host(self) -> bool:
        try:
            return await self.host.close()
        except InnkeeperError as error:
            log.error("the store could not be closed: %s", error)
        except Exception as fault:
            host_failed("its close", fault)
        return False


def build(settings: Settings) -> Server:
    """A server as the settings want it, yet to be started. Raises StartError."""
    try:
        registry = Registry.load(settings.agents)
        store = open_store(settings.store, events_kept=settings.events_kept)
    except ValueError as fault:
        raise StartError(str(fault)) from fault
    if not registry.types():
        raise StartError("no agents to serve: name modules or files of agents")
    return Server(settings, registry, store)


@asynccontextmanager
async def serving(
    settings: Settings | None = None,
    *,
    registry: Registry | None = None,
    store: Store | None = None,
    limits: Limits | None = None,
) -> AsyncIterator[Server]:
    """A server in this process, for tests and demonstrations: started, and stopped at the end.

    Without settings it listens on a free port of this machine and keeps states in memory.
    """
    settings = settings or Settings(listen="127.0.0.1:0", store="memory:")
    server = Server(
        settings,
        registry if registry is not None else Registry.load(settings.agents),
        store
        if store is not None
        else open_store(settings.store, events_kept=settings.events_kept),
        limits,
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def run(settings: Settings) -> int:
    """Serve until a signal comes; return the exit code of the process: 0 for a clean end, 1 if it
    could not start, 3 if something that was accepted had to be cut."""
    return main(settings, build)


def _log_report(report: DrainReport) -> None:
    level = logging.INFO if report.clean else logging.WARNING
    log.log(
        level,
        "drained in %.1f s: %d evicted, %d cut, %d would not stop",
        report.took,
        report.evicted,
        report.cut,
        report.zombies,
    )


def _bind(listener: grpc.aio.Server, address: str) -> int:
    make_free(address)
    mask = os.umask(0o177) if address.startswith(UNIX) else None  # a socket file is its owner's
    try:
        return listener.add_insecure_port(address)
    except RuntimeError:
        raise StartError(f"cannot listen on {address}: it is in use, or cannot be used") from None
    finally:
        if mask is not None:
            os.umask(mask)


def _options(max_message_bytes: int) -> list[tuple[str, int]]:
    """What gRPC must be told; its defaults are not safe for a server of this kind."""
    return [
        ("grpc.so_reuseport", 0),  # else a second server on the port takes a share in silence
        ("grpc.server.max_pending_requests", 100_000),  # else calls beyond 1,000 are lost
        ("grpc.server.max_pending_requests_hard_limit", 200_000),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_concurrent_streams", 1000),
        ("grpc.keepalive_time_ms", 30_000),  # a frozen client is noticed after 40 s
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.ping_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ]
