"""What the agent shows of itself: metrics, /healthz and /readyz on one address.

Gauges are read when somebody asks. An address that is taken costs the metrics, never the agent: it is tried again.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tessera import __version__
from tessera.node.fleet import Fleet
from tessera.services import exposition as exposing
from tessera.services.addresses import Address
from tessera.services.listener import Listener, health_routes

log = structlog.get_logger(__name__)

GRACE_S = 2.0
"""for a scrape that is under way at the end"""
LISTEN_AGAIN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """How the agent is at one moment."""

    fleet: Fleet
    faults: Mapping[str, int] = field(default_factory=dict)
    """counted since the start, by card"""
    missing: str = ""
    """why it is not ready; empty = it is"""
    registered: bool = False
    """whether kubelet can use the plugin"""
    registration_failures: int = 0
    """in a row"""
    events_dropped: int = 0


class Metrics:
    """The agent's registry, for as long as the process lives. Parts of the agent add theirs."""

    def __init__(self, look: Callable[[], Seen]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Gauges(look))
        reloads = Counter(
            "tessera_agent_reloads", "Configurations that were read again.", ["result"], registry=self.registry
        )
        self.restarts = Counter(
            "tessera_agent_faults", "Faults that made the agent start its parts again.", registry=self.registry
        )
        self.reloaded = {result: reloads.labels(result) for result in ("taken", "unchanged", "refused")}

    def render(self) -> bytes:
        return exposing.render(self.registry)


class _Gauges(Collector):
    """One look for all gauges, so that they agree with each other."""

    def __init__(self, look: Callable[[], Seen]) -> None:
        self._look = look

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        seen = self._look()
        healthy = GaugeMetricFamily(
            "tessera_agent_card_healthy", "1 where the card takes new work.", labels=["uuid", "index", "model"]
        )
        for card in seen.fleet:
            facts = card.facts
            healthy.add_metric([facts.uuid, str(facts.index), facts.name], card.healthy)
        faults = CounterMetricFamily("tessera_agent_card_faults", "Faults of the card so far.", labels=["uuid"])
        for uuid, count in seen.faults.items():
            faults.add_metric([uuid], count)
        yield from (healthy, faults)
        for name, text, value in (
            ("ready", "1 where nothing is missing.", not seen.missing),
            ("hardware_readable", "1 where the cards can be asked.", not seen.fleet.problem),
            ("kubelet_registered", "1 where kubelet can use the plugin.", seen.registered),
            ("registration_failures", "Failed writes of the node in a row.", seen.registration_failures),
        ):
            yield GaugeMetricFamily(f"tessera_agent_{name}", text, value=value)
        yield CounterMetricFamily(
            "tessera_agent_events_dropped", "Events given up under pressure.", value=seen.events_dropped
        )
        yield InfoMetricFamily(
            "tessera_build", "What runs.", value={"version": __version__, "python": platform.python_version()}
        )


async def serve(
    address: Address, metrics: Metrics, *, missing: Callable[[], str], on_listening: Callable[[Address], None]
) -> None:
    """Until cancelled; says where it listens as soon as it does."""
    while True:
        listener = Listener(address, [*_metrics_routes(metrics), *health_routes(missing)], grace=GRACE_S)
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


def _metrics_routes(metrics: Metrics) -> list[web.RouteDef]:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=metrics.render(), headers={"Content-Type": exposing.CONTENT_TYPE})

    return [web.get("/metrics", answer)]
