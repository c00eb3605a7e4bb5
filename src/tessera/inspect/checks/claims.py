"""Checks what nodes offer to ResourceClaims, and claims that wait, linger, or escape Tessera's accounting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from tessera.inspect.checks.findings import Area, Finding
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.scheduler.engine_view import ClaimView
from tessera.vendors.claims import BadClaim, is_our_class
from tessera.wire.cel import AllOf, compile_selector
from tessera.wire.claim_spec import EXISTS, ClaimSpec, DeviceClass, DeviceToleration
from tessera.wire.quotes import quoted
from tessera.wire.resource_api import DRIVER, MANAGED

AREA = Area("claims")
STUCK = 300.0
"""seconds that a claim may be reserved for a pod that is on no node"""
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
            yield AREA.warning(
                "the scheduler runs with --dra, but no node publishes devices for claims",
                why="no pod with a ResourceClaim can be placed",
                fix="install the agents with devicePlugin.dra.enabled and devicePlugin.dra.allocator=tessera",
            )
        return
    served = 0
    for name, pool in sorted(pools.items()):
        if pool.problem:
            yield AREA.broken(
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
            yield AREA.broken(
                f"{pool.node}: {_listed(missing)} published for claims, but not registered",
                why="Tessera allocates only cards that it counts, and no other scheduler may",
                fix="the agent's log says why it does not register them; restart it if it is older than the pool",
            )
        if cards and len(managed) < len(pool.devices):
            yield AREA.broken(
                f"{pool.node} registers its cards and publishes devices without the taint {MANAGED}",
                why="Tessera and kube-scheduler both allocate them, and neither sees what the other is about to write",
                fix="run one agent on that node, with --dra-allocator=tessera or without --dra",
            )
    if served:
        yield AREA.fine(f"{served} of {len(cluster.nodes)} node(s) offer cards to claims")


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
            yield AREA.warning(
                f"DeviceClass {name} has a selector that Tessera does not support: {faults[0]}",
                why="pods whose claims name the class are left to the default scheduler",
                fix="write it with what docs/claims.md lists",
            )
        elif is_our_class(found) and devices and not any(AllOf(DRIVER, texts).answer(each).accepts for each in devices):
            yield AREA.warning(
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
            yield AREA.warning(
                f"{title} is reserved for pod {user.name}, which does not exist any more",
                why=f"what it holds on {found.facts.node} is not free",
                fix="kube-controller-manager releases it; if it does not for minutes, look at its log",
            )
        elif pod is not None and not pod.spec.node_name:
            waited = cluster.state.taken - _moment(pod.metadata.creation_timestamp, cluster.state.taken)
            if waited > STUCK:
                yield AREA.warning(
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
            yield AREA.warning(
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
