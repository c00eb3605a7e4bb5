"""The agent's metrics, /healthz and /readyz, on one address.

Gauges are computed when they are scraped. If the address is taken, the agent runs on without metrics and tries again.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import structlog
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tessera import __version__
from tessera.node.fleet import Fleet
from tessera.services import exposition
from tessera.services.addresses import Address
from tessera.services.common_settings import ListenerLimits
from tessera.services.listener import Listener, health_routes, metrics_route

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
        self.registry = CollectorRegistry()
        self.registry.register(_Gauges(status))
        reloads = Counter(
            "tessera_agent_reloads", "Configurations that were read again.", ["result"], registry=self.registry
        )
        self.restarts = Counter(
            "tessera_agent_faults", "Faults that made the agent start its parts again.", registry=self.registry
        )
        self.reloaded = {result: reloads.labels(result) for result in ("taken", "unchanged", "refused")}

    def render(self) -> bytes:
        return exposition.render(self.registry)


class _Gauges(Collector):
    """Reads the status once per scrape, so that all gauges agree."""

    def __init__(self, status: Callable[[], AgentStatus]) -> None:
        self._status = status

    def collect(self) -> Iterable[Metric]:
        status = self._status()
        healthy = GaugeMetricFamily(
            "tessera_agent_card_healthy", "1 where the card takes new work.", labels=["uuid", "index", "model"]
        )
        for card in status.fleet:
            facts = card.facts
            healthy.add_metric([facts.uuid, str(facts.index), facts.name], card.healthy)
        faults = CounterMetricFamily("tessera_agent_card_faults", "Faults of the card so far.", labels=["uuid"])
        for uuid, count in status.faults.items():
            faults.add_metric([uuid], count)
        ages = GaugeMetricFamily(
            "tessera_agent_watch_age_seconds",
            "Seconds since the watch of a resource last said something.",
            labels=["resource"],
        )
        for resource, age in status.watch_ages.items():
            ages.add_metric([resource], age)
        yield from (healthy, faults, ages)
        for name, text, value in (
            ("ready", "1 where nothing is missing.", not status.missing),
            ("hardware_readable", "1 where the cards can be asked.", not status.fleet.problem),
            ("kubelet_registered", "1 where kubelet can use the plugin.", status.registered),
            ("registration_failures", "Failed writes of the node in a row.", status.registration_failures),
        ):
            yield GaugeMetricFamily(f"tessera_agent_{name}", text, value=value)
        yield CounterMetricFamily(
            "tessera_agent_events_dropped", "Events given up under pressure.", value=status.events_dropped
        )
        yield InfoMetricFamily(
            "tessera_build", "What runs.", value={"version": __version__, "python": platform.python_version()}
        )


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
