"""Does the ledger add up: a replay of what the API shows, audited as the running scheduler audits itself."""

from __future__ import annotations

from collections.abc import Iterator

from tessera.core.audit import BROKEN, audit
from tessera.core.requests import PodRequest
from tessera.inspect.checks.findings import Finding, broken, fine, warning
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.vendors.pod_reader import ENDED, pod_request
from tessera.wire import keys
from tessera.wire.objects import Pod

AREA = "ledger"
STUCK = 300.0
"""seconds after which a handover that has not ended is worth a look"""


def check_accounting(world: OfflineCluster) -> Iterator[Finding]:
    found = audit(world.ledger)
    for each in found:
        where = f"{each.node} / {each.card}" if each.card else each.node or "quotas"
        if each.kind == BROKEN:
            yield broken(
                AREA,
                f"{where}: {each.text}",
                why="the accounting contradicts itself: that is a fault of Tessera",
                fix="report it with a snapshot (tessera snapshot --hash-names)",
            )
        else:
            yield broken(
                AREA,
                f"{where}: {each.text}",
                why="more is granted than there is: a foreign scheduler, or a registration that shrank",
                fix=f"delete some of its pods: tessera top pods --node {each.node}",
            )
    for entry in world.ledger.pods():
        facts = entry.facts
        if facts.problem:
            yield broken(
                AREA, facts.problem, why=f"{facts.node} takes no new pods while it is there",
                fix=f"delete and create pod {facts.namespace}/{facts.name} again",
            )  # fmt: skip
    for key, pod in sorted(world.pods.items()):
        yield from _pod(world, key, pod)
    if not found:
        pods, nodes = len(world.ledger.pods()), len(world.ledger.node_names())
        yield fine(AREA, f"it adds up: {pods} pod(s) with slices on {nodes} node(s)")


def _pod(world: OfflineCluster, key: str, pod: Pod) -> Iterator[Finding]:
    if pod.status.phase in ENDED or not pod.spec.node_name:
        return
    if world.ledger.pod(pod.metadata.uid) is None:
        request = pod_request(pod, world.vendors)
        if isinstance(request, PodRequest) and request.asks_for_devices:
            yield warning(
                AREA,
                f"{key} runs on {pod.spec.node_name} with devices, but without an allocation",
                why="another scheduler put it there; what it uses is not counted, and others may get the same card",
                fix="create it again with Tessera's webhook in place, so that it gets schedulerName "
                + world.settings.scheduler_name,
            )
        return
    began = pod.annotations.get(keys.BIND_TIME, "")
    allocating = pod.annotations.get(keys.BIND_PHASE) == keys.PHASE_ALLOCATING and pod.status.phase == "Pending"
    if allocating and began.isdigit() and world.state.taken - int(began) > STUCK:
        minutes = int((world.state.taken - int(began)) // 60)
        yield warning(
            AREA,
            f"{key} was bound to {pod.spec.node_name} {minutes} minutes ago and has not got its devices",
            why="the node's plugin has not answered kubelet's Allocate for it",
            fix=f"kubectl describe pod -n {pod.metadata.namespace} {pod.metadata.name}; the plugin's log on the node",
        )
