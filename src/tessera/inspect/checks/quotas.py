"""Checks that quotas which name our resources limit something."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tessera.inspect.checks.findings import Area, Finding
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.usage import count_cores
from tessera.vendors.base import Vendor
from tessera.vendors.node_reader import quota_facts
from tessera.vendors.quota_mistakes import find_quota_mistakes
from tessera.wire.objects import ResourceQuota

AREA = Area("quotas")


def check_quotas(cluster: OfflineCluster) -> Iterator[Finding]:
    count = 0
    for document in cluster.state.quotas:
        quota = msgspec.convert(document, ResourceQuota)
        where = f"{quota.metadata.namespace}/{quota.metadata.name}"
        found = [
            AREA.warning(f"{where}: {mistake.what}", why=mistake.why, fix=mistake.fix)
            for mistake in find_quota_mistakes(
                quota.spec.hard or {}, cluster.vendors, lambda vendor: _capacity(cluster, vendor)
            )
        ]
        yield from found
        count += bool(quota_facts(quota, cluster.vendors).limits) and not found
    if count:
        yield AREA.fine(f"{count} quota(s) limit devices")


def _capacity(cluster: OfflineCluster, vendor: Vendor) -> tuple[int, int]:
    found = [
        device
        for name in cluster.ledger.node_names()
        for device in cluster.ledger.devices(name).values()
        if device.vendor == vendor.key
    ]
    return sum(device.memory for device in found), sum(count_cores(vendor, device.cores) for device in found)
