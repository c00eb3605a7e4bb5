"""The samples of a scrape, read by Prometheus' own parser."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tessera.scheduler.metrics.exposition import Exposition
from tests.support.builders import Cluster


async def samples(exposition: Exposition) -> list[Sample]:
    text = (await exposition.render()).decode()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


async def shown(world: Cluster | Exposition, name: str, *labels: str, legacy: bool = False) -> dict[Any, float]:
    """The values of one family, by these labels."""
    exposition = world if isinstance(world, Exposition) else Exposition(world.ledger, legacy=legacy)
    found = [sample for sample in await samples(exposition) if sample.name == name]
    values = {tuple(sample.labels[label] for label in labels): sample.value for sample in found}
    assert len(values) == len(found), "the labels do not tell the series apart"
    return {key[0] if len(key) == 1 else key: value for key, value in values.items()}
