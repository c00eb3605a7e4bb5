"""Finds quotas that limit nothing, though they name our resources: wrong prefixes, and numbers in the wrong unit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from tessera.core.quota import QuotaFacts
from tessera.inspect.checks.findings import Area, Finding
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.vendors.base import Vendor
from tessera.vendors.node_reader import QUOTA_PREFIX, quota_facts
from tessera.wire.objects import QuantityText, ResourceQuota

AREA = Area("quotas")
FAR_ABOVE = 100
"""times what the whole cluster has: a quota for a cluster that is meant to grow may well be above it"""


def check_quotas(cluster: OfflineCluster) -> Iterator[Finding]:
    count = 0
    for document in cluster.state.quotas:
        quota = msgspec.convert(document, ResourceQuota)
        facts = quota_facts(quota, cluster.vendors)
        where = f"{quota.metadata.namespace}/{quota.metadata.name}"
        found = list(_check(cluster, where, quota.spec.hard or {}, facts))
        yield from found
        count += bool(facts.limits) and not found
    if count:
        yield AREA.fine(f"{count} quota(s) limit devices")


def _check(
    cluster: OfflineCluster, where: str, hard: Mapping[str, QuantityText], facts: QuotaFacts
) -> Iterator[Finding]:
    vendors = cluster.vendors.values()
    limited = {name for vendor in vendors for name in (vendor.quota_memory, vendor.quota_cores) if name}
    counted = {vendor.names.count for vendor in vendors if vendor.names.count} - limited
    for name, text in sorted(hard.items()):
        resource = name.removeprefix(QUOTA_PREFIX)
        if name in limited:
            yield AREA.warning(
                f"{where}: {name} limits nothing without the prefix {QUOTA_PREFIX}",
                why="neither Tessera nor Kubernetes reads it: pods of the namespace get all they ask for",
                fix=f"write {QUOTA_PREFIX}{name}: {text!r}",
            )
        elif resource in counted and name != f"requests.{resource}":
            yield AREA.warning(
                f"{where}: {name} limits nothing",
                why="Kubernetes counts devices by their requests, and Tessera limits memory and cores only",
                fix=f"write requests.{resource}: {text!r}",
            )
        elif name.startswith(QUOTA_PREFIX) and resource in facts.limits:
            yield from _check_amount(cluster, where, resource, text, facts.limits[resource])


def _check_amount(
    cluster: OfflineCluster, where: str, resource: str, text: QuantityText, limit: int
) -> Iterator[Finding]:
    vendors = [vendor for vendor in cluster.vendors.values() if resource in (vendor.quota_memory, vendor.quota_cores)]
    total = sum(_amount(cluster, vendor, resource) for vendor in vendors)
    has_unit = isinstance(text, str) and not text.isdecimal()
    if not total or limit <= total * (1 if has_unit else FAR_ABOVE):
        return
    vendor, amount, fix = vendors[0], f"{limit:,} per cent", "write a plain number, 100 for each card"
    if resource == vendor.quota_memory:
        unit = f"{vendor.quota_factor} MiB" if vendor.quota_factor > 1 else "MiB"
        amount = f"{limit:,} times {unit}"
        fix = f"write a plain number in units of {unit}"
        if has_unit and (meant := limit // (2**20 * vendor.quota_factor)):
            fix += f"; {text} of memory is {QUOTA_PREFIX}{resource}: {str(meant)!r}"
    yield AREA.warning(
        f"{where}: {QUOTA_PREFIX}{resource}: {text} limits nothing: it means {amount}",
        why=f"all cards of the cluster together have {total:,}",
        fix=fix,
    )


def _amount(cluster: OfflineCluster, vendor: Vendor, resource: str) -> int:
    """What all cards of a vendor have, in units of the quota."""
    found = [
        device
        for name in cluster.ledger.node_names()
        for device in cluster.ledger.devices(name).values()
        if device.vendor == vendor.key
    ]
    if resource == vendor.quota_memory:
        return sum(device.memory for device in found) // vendor.quota_factor
    return sum(device.cores.bit_count() if vendor.core_masks else device.cores for device in found)
