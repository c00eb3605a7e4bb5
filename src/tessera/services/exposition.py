"""Renders metrics in the Prometheus text format."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(*registries: CollectorRegistry) -> bytes:
    """Text format 0.0.4, without the `_created` samples."""
    return b"".join(generate_latest(_WithoutCreated(registry)) for registry in registries)


class _WithoutCreated(CollectorRegistry):
    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__()
        self._inner = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._inner.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
