"""What HAMi's metrics say about namespace quotas, use and limit in one unit: the one that the user wrote.

The label `limit` is HAMi's and stays, although a changed limit starts a new series (Prometheus ends the old one at the
next scrape); `hami_resource_quota_limit` is the one to calculate with. Where nothing is limited the label is empty,
since 0 is a limit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from tessera.core.fit.device_rules import Rules
from tessera.core.fit.quota import QuotaBook, QuotaFacts
from tessera.core.model.grants import Use
from tessera.scheduler.metrics.card_series import ZONE
from tessera.services.exposition import Series, escaped


@dataclass(frozen=True, slots=True)
class QuotaSample:
    """One resource in one namespace."""

    namespace: str
    resource: str
    used: int | float
    limit: int | None


def quota_samples(book: QuotaBook, rules: Mapping[str, Rules]) -> list[QuotaSample]:
    """Every resource that is limited or used, sorted."""
    objects, uses = cast("tuple[dict[tuple[str, str], QuotaFacts], dict[tuple[str, str], Use]]", book.state())
    used: dict[tuple[str, str], float] = defaultdict(int)
    for facts in objects.values():
        for resource in facts.limits:
            used[facts.namespace, resource] += 0
    for (namespace, vendor), use in uses.items():
        rule = rules.get(vendor)
        if rule is None:
            continue
        if rule.quota_memory:
            used[namespace, rule.quota_memory] += in_units(use.memory, rule.quota_factor)
        if rule.quota_cores:
            used[namespace, rule.quota_cores] += use.cores
    return [
        QuotaSample(escaped(namespace), escaped(resource), amount, book.limit(namespace, resource))
        for (namespace, resource), amount in sorted(used.items())
    ]


def in_units(memory: int, factor: int) -> int | float:
    """MiB in the quota's unit, of `factor` MiB each."""
    if factor <= 1:
        return memory
    return memory // factor if memory % factor == 0 else memory / factor


def _limit(sample: QuotaSample) -> str:
    return "" if sample.limit is None else str(sample.limit)


QUOTAS: tuple[Series[QuotaSample], ...] = (
    Series(
        "hami_resource_quota_used",
        "Granted in the namespace, in the unit of the quota.",
        lambda s: f'{{namespace="{s.namespace}",quota_name="{s.resource}",limit="{_limit(s)}",{ZONE}}} {s.used}',
    ),
    Series(
        "hami_resource_quota_limit",
        "The strictest limit in the namespace.",
        lambda s: (
            "" if s.limit is None else f'{{namespace="{s.namespace}",quota_name="{s.resource}",{ZONE}}} {s.limit}'
        ),
    ),
)

LEGACY_QUOTAS: tuple[Series[QuotaSample], ...] = (
    Series(
        "QuotaUsed",
        "Old name of hami_resource_quota_used.",
        lambda s: f'{{quotanamespace="{s.namespace}",quotaName="{s.resource}",limit="{_limit(s)}",{ZONE}}} {s.used}',
    ),
)
