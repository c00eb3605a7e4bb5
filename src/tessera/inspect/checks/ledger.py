"""Checks what the ledger counts: pods and what they hold, quotas, and what nodes offer to ResourceClaims.

The ledger is replayed from the API and audited as the running scheduler audits itself. Quotas that name our resources
must limit something. Claims are told that wait, linger, or escape Tessera's accounting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

import msgspec

from tessera.core.ledger.audit import BROKEN, audit
from tessera.core.ledger.holders import HolderKind, kind_of
from tessera.core.model.requests import PodRequest
from tessera.inspect.checks import Area, Finding
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.usage import count_cores
from tessera.scheduler.engine_view import ClaimView
from tessera.vendors.base import Vendor
from tessera.vendors.claims.asks import BadClaim, is_our_class
from tessera.vendors.mistakes import find_quota_mistakes
from tessera.vendors.node_reader import quota_facts
from tessera.vendors.pod_reader import ENDED, pod_request
from tessera.wire import keys
from tessera.wire.cel import AllOf, compile_selector
from tessera.wire.errors import quoted
from tessera.wire.objects import Pod, ResourceQuota
from tessera.wire.resource_api import DRIVER, EXISTS, MANAGED, ClaimSpec, DeviceClass, DeviceToleration

LEDGER = Area("ledger")
STUCK = 300.0
"""seconds after which a handover that has not ended, or a claim reserved for a pod that is on no node, is reported"""

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


CLAIMS = Area("claims")
NAMED = 5


def check_claims(cluster: OfflineCluster) -> Iterator[Finding]:
    """Nothing is said of a cluster whose scheduler leaves claims to others."""
    if not cluster.settings.dra:
        return
    yield from _check_pools(cluster)
    yield from _check_classes(cluster)
    for found in cluster.view.claims():
        yield from _check_claim(cluster, found)
    for key, template in sorted(cluster.templates.items()):
        yield from _check_tolerations(f"ResourceClaimTemplate {key}", template.spec.spec)


def _check_pools(cluster: OfflineCluster) -> Iterator[Finding]:
    pools = cluster.view.pools
    is_asked_for = cluster.state.setup.flags is not None
    if not pools:
        if is_asked_for:
            yield CLAIMS.warning(
                "the scheduler runs with --dra, but no node publishes devices for claims",
                why="no pod with a ResourceClaim can be placed",
                fix="install the agents with devicePlugin.dra.enabled and devicePlugin.dra.allocator=tessera",
            )
        return
    served = 0
    for name, pool in sorted(pools.items()):
        if pool.problem:
            yield CLAIMS.broken(
                f"{name}: its pool cannot be used: {pool.problem}",
                why="its cards take no claims, and claims that hold them hold the whole node",
                fix="restart the agent on that node, which publishes its ResourceSlices again",
            )
            continue
        managed = [each for each in pool.devices.values() if each.is_managed]
        cards = cluster.ledger.devices(pool.node)
        served += bool(managed)
        missing = sorted({each.uuid for each in managed} - cards.keys())
        if missing:
            yield CLAIMS.broken(
                f"{pool.node}: {_listed(missing)} published for claims, but not registered",
                why="Tessera allocates only cards that it counts, and no other scheduler may",
                fix="the agent's log says why it does not register them; restart it if it is older than the pool",
            )
        if cards and len(managed) < len(pool.devices):
            yield CLAIMS.broken(
                f"{pool.node} registers its cards and publishes devices without the taint {MANAGED}",
                why="Tessera and kube-scheduler both allocate them, and neither sees what the other is about to write",
                fix="run one agent on that node, with --dra-allocator=tessera or without --dra",
            )
    if served:
        yield CLAIMS.fine(f"{served} of {len(cluster.nodes)} node(s) offer cards to claims")


def _check_classes(cluster: OfflineCluster) -> Iterator[Finding]:
    devices = [
        published
        for name in cluster.ledger.node_names()
        for device in cluster.ledger.devices(name).values()
        for _, published in device.published
    ]
    for name, found in sorted(cluster.view.device_classes.items()):
        texts = _expressions(found)
        faults = [fault for text in texts if isinstance(fault := compile_selector(text), str)]
        if faults and any(DRIVER in text for text in texts):
            yield CLAIMS.warning(
                f"DeviceClass {name} has a selector that Tessera does not support: {faults[0]}",
                why="pods whose claims name the class are left to the default scheduler",
                fix="write it with what docs/claims.md lists",
            )
        elif is_our_class(found) and devices and not any(AllOf(DRIVER, texts).answer(each).accepts for each in devices):
            yield CLAIMS.warning(
                f"DeviceClass {name} matches none of the devices that nodes publish",
                why="pods whose claims name the class wait for ever",
                fix=f"compare its selectors with the attributes of the devices: {' and '.join(texts)}",
            )


def _expressions(found: DeviceClass) -> tuple[str, ...]:
    return tuple(each.cel.expression for each in found.spec.selectors or () if each.cel is not None)


def _check_claim(cluster: OfflineCluster, found: ClaimView) -> Iterator[Finding]:
    if isinstance(found.ask, BadClaim) and found.ask.is_foreign:
        return
    title = f"ResourceClaim {found.key}"
    yield from _check_tolerations(title, found.claim.spec)
    if found.facts is None:
        return
    pods = {pod.metadata.uid: pod for pod in cluster.pods.values()}
    for user in found.claim.status.reserved_for or ():
        pod = pods.get(user.uid)
        if pod is None and cluster.state.all_pods_seen:
            yield CLAIMS.warning(
                f"{title} is reserved for pod {user.name}, which does not exist any more",
                why=f"what it holds on {found.facts.node} is not free",
                fix="kube-controller-manager releases it; if it does not for minutes, look at its log",
            )
        elif pod is not None and not pod.spec.node_name:
            waited = cluster.state.taken - _moment(pod.metadata.creation_timestamp, cluster.state.taken)
            if waited > STUCK:
                yield CLAIMS.warning(
                    f"{title} is allocated on {found.facts.node}, but its pod {user.name} has been on no node for"
                    f" {int(waited // 60)} minutes",
                    why="its devices are held for a pod that does not run",
                    fix=f"tessera explain {user.name} -n {found.claim.metadata.namespace} says what keeps it",
                )


def _check_tolerations(title: str, spec: ClaimSpec) -> Iterator[Finding]:
    """A claim that tolerates the taint of managed devices can be allocated by kube-scheduler, behind Tessera's back."""
    for request in spec.devices.requests or ():
        exact = ((request.exactly,) if request.exactly is not None else ()) + (request.first_available or ())
        if any(_tolerates(each) for one in exact for each in one.tolerations or ()):
            yield CLAIMS.warning(
                f"{title}: request {quoted(request.name)} tolerates the taint {MANAGED}",
                why="a kube-scheduler that allocates claims may give it cards that Tessera gives to other pods",
                fix="remove the toleration; the chart's annotationGuard refuses it",
            )
            return


def _tolerates(toleration: DeviceToleration) -> bool:
    return toleration.key == MANAGED or (not toleration.key and toleration.operator == EXISTS)


def _moment(text: str | None, otherwise: float) -> float:
    try:
        return datetime.fromisoformat(text or "").timestamp()
    except ValueError:
        return otherwise


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - NAMED} more" if len(every) > NAMED else ""
    return f"{', '.join(every[:NAMED])}{more} {'is' if len(every) == 1 else 'are'}"
