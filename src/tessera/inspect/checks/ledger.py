"""Checks that the ledger adds up, and that quotas which name our resources limit something.

The ledger is replayed from the API and audited as the running scheduler audits itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tessera.core.ledger.audit import BROKEN, audit
from tessera.core.ledger.holders import HolderKind, kind_of
from tessera.core.model.requests import PodRequest
from tessera.inspect.checks.findings import Area, Finding
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.usage import count_cores
from tessera.vendors.base import Vendor
from tessera.vendors.mistakes import find_quota_mistakes
from tessera.vendors.node_reader import quota_facts
from tessera.vendors.pod_reader import ENDED, pod_request
from tessera.wire import keys
from tessera.wire.objects import Pod, ResourceQuota

LEDGER = Area("ledger")
STUCK = 300.0
"""seconds after which a handover that has not ended is reported"""

QUOTAS = Area("quotas")


def check_ledger(cluster: OfflineCluster) -> Iterator[Finding]:
    found = audit(cluster.ledger)
    for each in found:
        where = f"{each.node} / {each.card}" if each.card else each.node or "quotas"
        if each.kind == BROKEN:
            why = "the accounting contradicts itself, which is a bug in Tessera"
            fix = "report it with a snapshot (tessera snapshot --hash-names)"
        else:
            why = "more is granted than exists: another scheduler placed pods there, or the registration shrank"
            fix = f"delete some of its pods: tessera top pods --node {each.node}"
        yield LEDGER.broken(f"{where}: {each.text}", why=why, fix=fix)
    for entry in cluster.ledger.pods():
        facts = entry.facts
        if facts.problem:
            kind = "ResourceClaim" if kind_of(facts) is HolderKind.CLAIM else "pod"
            why = f"{facts.node} takes no new pods while this {kind} exists"
            fix = f"delete {kind} {facts.namespace}/{facts.name} and create it again"
            yield LEDGER.broken(facts.problem, why=why, fix=fix)
    for key, pod in sorted(cluster.pods.items()):
        yield from _pod(cluster, key, pod)
    if not found:
        pods, nodes = len(cluster.ledger.pods()), len(cluster.ledger.node_names())
        yield LEDGER.fine(f"it adds up: {pods} pod(s) or claim(s) with slices on {nodes} node(s)")


def _pod(cluster: OfflineCluster, key: str, pod: Pod) -> Iterator[Finding]:
    if pod.status.phase in ENDED or not pod.spec.node_name:
        return
    if cluster.ledger.pod(pod.metadata.uid) is None:
        request = pod_request(pod, cluster.vendors)
        if isinstance(request, PodRequest) and request.asks_for_devices:
            yield LEDGER.warning(
                f"{key} requests devices and runs on {pod.spec.node_name}, but has no allocation",
                why="another scheduler placed it; its use is not counted, and other pods may get the same card",
                fix="create it again while Tessera's webhook works, so that it gets schedulerName "
                + cluster.settings.scheduler_name,
            )
        return
    began = pod.annotations.get(keys.BIND_TIME, "")
    allocating = pod.annotations.get(keys.BIND_PHASE) == keys.PHASE_ALLOCATING and pod.status.phase == "Pending"
    if allocating and began.isdigit() and cluster.state.taken - int(began) > STUCK:
        minutes = int((cluster.state.taken - int(began)) // 60)
        yield LEDGER.warning(
            f"{key} was bound to {pod.spec.node_name} {minutes} minutes ago and still has no devices",
            why="the node's plugin has not answered kubelet's Allocate",
            fix=f"kubectl describe pod -n {pod.metadata.namespace} {pod.metadata.name}; the plugin's log on the node",
        )


def check_quotas(cluster: OfflineCluster) -> Iterator[Finding]:
    count = 0
    for document in cluster.state.quotas:
        quota = msgspec.convert(document, ResourceQuota)
        where = f"{quota.metadata.namespace}/{quota.metadata.name}"
        found = [
            QUOTAS.warning(f"{where}: {mistake.what}", why=mistake.why, fix=mistake.fix)
            for mistake in find_quota_mistakes(
                quota.spec.hard or {}, cluster.vendors, lambda vendor: _capacity(cluster, vendor)
            )
        ]
        yield from found
        count += bool(quota_facts(quota, cluster.vendors).limits) and not found
    if count:
        yield QUOTAS.fine(f"{count} quota(s) limit devices")


def _capacity(cluster: OfflineCluster, vendor: Vendor) -> tuple[int, int]:
    found = [
        device
        for name in cluster.ledger.node_names()
        for device in cluster.ledger.devices(name).values()
        if device.vendor == vendor.key
    ]
    return sum(device.memory for device in found), sum(count_cores(vendor, device.cores) for device in found)
