"""Every metric of the three services, as their collectors describe it: for the reference in the docs.

The collectors are asked with stand-ins for what they would read, so no service has to run. HAMi's old names
(`--legacy-metrics`) are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from unittest.mock import MagicMock

from tessera.monitor.metrics import MonitorMetrics, ScrapeView, UsedTime
from tessera.node.handover.assembly import NodeHandover
from tessera.node.metrics import AgentMetrics
from tessera.scheduler.metrics import hami_series
from tessera.scheduler.metrics.granted_time import GRANTED, IDLE
from tessera.scheduler.metrics.hami_series import QUOTAS
from tessera.scheduler.metrics.service_metrics import Metrics, add_readings
from tessera.services.exposition import MetricFamily, Registry, Series

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
    own: tuple[Series[Any], ...] = (GRANTED, IDLE, *hami_series.CARDS, *hami_series.INSTANCES, *hami_series.SLICES)
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
    registry = Registry()
    registry.register(MonitorMetrics(lambda: ScrapeView(node="", now=0.0)).collect)
    registry.register(UsedTime("", MagicMock(return_value=0.0)).collect)
    return [*_described(registry.collect())]


def _described(families: Iterable[MetricFamily]) -> Iterator[DescribedMetric]:
    for family in families:
        labels = "" if family.kind in UNLABELLED else ",".join(family.labels)
        name = family.name + (f"{{{labels}}}" if labels else "")
        yield DescribedMetric(name, family.kind, _sentence(family.help))


def _of_series(series: Series[Any]) -> DescribedMetric:
    return DescribedMetric(series.name, series.kind, _sentence(series.help))


def _sentence(text: str) -> str:
    return text.rstrip(".")
