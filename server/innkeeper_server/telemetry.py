"""What the host tells about itself: logs and metrics.

Owns the set-up of logging and the names of the metrics. Metrics are read from the host when
somebody asks for them, so they cost nothing on the way of a call. No agent's id is ever a label.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Literal, TextIO

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from structlog.typing import Processor

from innkeeper_server.host import Host
from innkeeper_server.rpc.boundary import Boundary
from innkeeper_server.rpc.pulse import Pulse

__all__ = ["Metrics", "set_up_logging"]

LogFormat = Literal["auto", "text", "json"]
Family = GaugeMetricFamily | CounterMetricFamily


# -- logs ---------------------------------------------------------------------------------------


def set_up_logging(level: str, format: LogFormat = "auto", stream: TextIO | None = None) -> None:
    """Send the logs of the host, of agents and of libraries to `stream` (default: stderr): as
    lines to read where that is a terminal, else as one JSON object a line."""
    stream = stream or sys.stderr
    terminal = stream.isatty()
    as_text = format == "text" or (format == "auto" and terminal)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    last: list[Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if as_text:
        plain = structlog.dev.plain_traceback
        last += [structlog.dev.ConsoleRenderer(colors=terminal, exception_formatter=plain)]
    else:
        last += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=last)
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


# -- metrics ------------------------------------------------------------------------------------


class Metrics:
    """The metrics of one host. To be read on its loop."""

    def __init__(self, host: Host, boundary: Boundary, pulse: Pulse) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_OfHost(host))
        self._registry.register(_OfCalls(boundary, pulse))
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """All of them, in Prometheus' text format."""
        return generate_latest(self._registry)


class _OfHost(Collector):
    def __init__(self, host: Host) -> None:
        self._host = host

    def collect(self) -> Iterator[Family]:
        totals = self._host.operators.totals()
        by_state = GaugeMetricFamily(
            "innkeeper_residents", "Runtimes in memory, by state of their slots.", labels=["state"]
        )
        for phase, count in totals.by_phase.items():
            by_state.add_metric([phase.value], count)
        yield by_state
        depth = sum(len(runtime.mailbox) for runtime in self._host.driver.runtimes.values())
        yield _gauge("innkeeper_capacity", "Runtimes that may be in memory.", totals.capacity)
        yield _gauge("innkeeper_idle_residents", "Runtimes that nobody owns.", totals.idle)
        yield _gauge("innkeeper_claims", "Evictions that may be revoked.", _claims(self._host))
        yield _gauge("innkeeper_admission_waiting", "Callers waiting for a slot.", totals.waiting)
        yield _gauge("innkeeper_mailbox_depth", "Envelopes waiting in all mailboxes.", depth)
        ill = self._host.driver.quarantine.count(self._host.now())
        yield _gauge("innkeeper_quarantined", "Agents that failed to start too often.", ill)
        yield _gauge("innkeeper_draining", "1 while nothing new is taken.", totals.draining)
        yield _counter("innkeeper_activations", "Lives begun.", totals.loaded_total)
        yield _counter("innkeeper_evictions", "Lives ended.", totals.evicted_total)
        yield _counter("innkeeper_admission_refused", "Admissions refused.", totals.refused_total)
        yield _counter("innkeeper_eviction_overrun", "Stops that overran.", totals.overrun_total)
        yield _counter("innkeeper_reconciled", "Differences mended.", totals.reconciled_total)
        lost = self._host.lives.lost_total
        yield _counter("innkeeper_states_lost", "Evictions that lost uncommitted state.", lost)


class _OfCalls(Collector):
    def __init__(self, boundary: Boundary, pulse: Pulse) -> None:
        self._boundary = boundary
        self._pulse = pulse

    def collect(self) -> Iterator[Family]:
        lag = self._pulse.lag
        yield _gauge("innkeeper_loop_lag_seconds", "Longest of the last minute.", lag)
        yield _gauge("innkeeper_rpcs_running", "Calls under way.", len(self._boundary.running))
        ended = CounterMetricFamily("innkeeper_rpcs", "Calls ended.", labels=["method", "code"])
        for (method, code), count in self._boundary.finished.items():
            ended.add_metric([method, code], count)
        yield ended


def _claims(host: Host) -> int:
    return sum(1 for slot in host.account.slots.values() if slot.claim is not None)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)
