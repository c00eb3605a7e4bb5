"""The agent's metrics, /healthz and /readyz, on one address.

Gauges are computed when they are scraped. If the address is taken, the agent runs on without metrics and tries again.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import structlog

from tessera import __version__
from tessera.node.fleet import Fleet
from tessera.services.common_settings import ListenerLimits
from tessera.services.exposition import Counter, MetricFamily, Registry, counter, gauge, info
from tessera.services.listener import Listener, health_routes, metrics_route
from tessera.services.value_types import Address

log = structlog.get_logger(__name__)

GRACE_S = 2.0
"""for a scrape in progress at the end"""
LISTEN_AGAIN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStatus:
    """The state of the agent at one moment."""

    fleet: Fleet
    faults: Mapping[str, int] = field(default_factory=dict)
    """since the start, by card"""
    missing: str = ""
    """why it is not ready; empty if it is"""
    registered: bool = False
    """whether kubelet can use the plugin"""
    registration_failures: int = 0
    """in a row"""
    events_dropped: int = 0
    watch_ages: Mapping[str, float] = field(default_factory=dict)
    """by resource, seconds since its watch last said something"""


class AgentMetrics:
    """The registry of the process. Parts of the agent add their own metrics."""

    def __init__(self, status: Callable[[], AgentStatus]) -> None:
        self._status = status
        self.registry = Registry()
        self.registry.register(self._collect)
        self.reloads = Counter(
            self.registry,
            "tessera_agent_reloads_total",
            "Configurations that were read again.",
            label="result",
            values=("taken", "unchanged", "refused"),
        )
        self.restarts = Counter(
            self.registry, "tessera_agent_faults_total", "Faults that made the agent start its parts again."
        )

    def render(self) -> bytes:
        return self.registry.render()

    def _collect(self) -> Iterator[MetricFamily]:
        """Reads the status once per scrape, so that all gauges agree."""
        status = self._status()
        healthy = MetricFamily(
            "gauge", "tessera_agent_card_healthy", "1 where the card takes new work.", ["uuid", "index", "model"]
        )
        for card in status.fleet:
            facts = card.facts
            healthy.add(card.healthy, [facts.uuid, str(facts.index), facts.name])
        yield healthy
        yield counter("tessera_agent_card_faults_total", "Faults of the card so far.", status.faults, label="uuid")
        text = "Seconds since the watch of a resource last said something."
        yield gauge("tessera_agent_watch_age_seconds", text, status.watch_ages, label="resource")
        yield gauge("tessera_agent_ready", "1 where nothing is missing.", not status.missing)
        text = "1 where the cards can be asked."
        yield gauge("tessera_agent_hardware_readable", text, not status.fleet.problem)
        yield gauge("tessera_agent_kubelet_registered", "1 where kubelet can use the plugin.", status.registered)
        text = "Failed writes of the node in a row."
        yield gauge("tessera_agent_registration_failures", text, status.registration_failures)
        text = "Events given up under pressure."
        yield counter("tessera_agent_events_dropped_total", text, status.events_dropped)
        yield info("tessera_build_info", "What runs.", {"version": __version__, "python": platform.python_version()})


async def serve(
    address: Address,
    metrics: AgentMetrics,
    *,
    limits: ListenerLimits,
    missing: Callable[[], str],
    on_listening: Callable[[Address], None],
) -> None:
    """Serves until cancelled; calls `on_listening` with the address."""
    while True:
        routes = [metrics_route(metrics.render), *health_routes(missing)]
        listener = Listener(address, routes, limits=limits, grace=GRACE_S)
        try:
            await listener.start()
            log.info("listening", what="metrics", address=str(listener.address))
            on_listening(listener.address)
            await asyncio.Event().wait()
        except OSError as error:
            log.error("no metrics: cannot listen", address=str(address), error=str(error), again_in_s=LISTEN_AGAIN_S)
        finally:
            await listener.stop()
        await asyncio.sleep(LISTEN_AGAIN_S)
