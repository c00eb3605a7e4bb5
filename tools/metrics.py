"""Every metric of the three services, as their collectors describe it: for the reference in the docs.

The collectors are asked with stand-ins for what they would read, so no service has to run. HAMi's old names
(`--legacy-metrics`) are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from unittest.mock import MagicMock

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from tessera.monitor.metrics import MonitorMetrics, ScrapeView
from tessera.monitor.used_time import UsedTime
from tessera.node.handover.assembly import NodeHandover
from tessera.node.metrics import AgentMetrics
from tessera.scheduler.metrics import card_series
from tessera.scheduler.metrics.granted_time import GRANTED, IDLE
from tessera.scheduler.metrics.quota_series import QUOTAS
from tessera.scheduler.metrics.service_metrics import Metrics
from tessera.scheduler.metrics.service_readings import add_readings
from tessera.scheduler.metrics.text_format import Series

ENDINGS = {"counter": "_total", "info": "_info"}
"""that the text format adds to names"""
UNLABELLED = frozenset({"histogram", "info"})
"""whose labels are those of the format"""


class DescribedMetric(NamedTuple):
    """A family as a scrape shows it."""

    name: str
    kind: str
    text: str


def scheduler_metrics() -> list[DescribedMetric]:
    metrics = Metrics()
    add_readings(metrics, MagicMock(), MagicMock(), MagicMock())
    own: tuple[Series[Any], ...] = (GRANTED, IDLE, *card_series.CARDS, *card_series.INSTANCES, *card_series.SLICES)
    return [*_described(metrics.registry.collect()), *map(_of_series, (*own, *QUOTAS))]


def agent_metrics() -> list[DescribedMetric]:
    metrics = AgentMetrics(MagicMock())
    NodeHandover(
        MagicMock(),
        MagicMock(),
        cluster=MagicMock(),
        resources=None,
        report=MagicMock(),
        registry=metrics.registry,
        checkpoint=MagicMock(),
    )
    return [*_described(metrics.registry.collect())]


def monitor_metrics() -> list[DescribedMetric]:
    registry = CollectorRegistry()
    registry.register(MonitorMetrics(lambda: ScrapeView(node="", now=0.0)))
    registry.register(UsedTime("", MagicMock(return_value=0.0)))
    return [*_described(registry.collect())]


def _described(families: Iterable[Metric]) -> Iterator[DescribedMetric]:
    for family in families:
        labels = "" if family.type in UNLABELLED else ",".join(_labels(family))
        name = family.name + ENDINGS.get(family.type, "") + (f"{{{labels}}}" if labels else "")
        yield DescribedMetric(name, family.type, _sentence(family.documentation))


def _labels(family: Metric) -> Iterable[str]:
    """As a collector declares them, or as the first series of a counter has them."""
    declared: Iterable[str] = getattr(family, "_labelnames", ())
    return declared or (family.samples[0].labels if family.samples else ())


def _of_series(series: Series[Any]) -> DescribedMetric:
    return DescribedMetric(series.name, series.kind, _sentence(series.help))


def _sentence(text: str) -> str:
    return text.rstrip(".")
