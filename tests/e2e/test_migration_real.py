"""Tessera's scheduler takes over from HAMi's, with pods in flight, on nodes that HAMi's plugin still serves."""

from __future__ import annotations

from typing import Any

from tessera.kube.resources import PODS
from tessera.wire import keys
from tessera.wire.pod_devices import DeviceEntry, encode_pod_devices
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.nodes.allocation import ALLOCATED, TO_ALLOCATE, slices_of
from tessera_lab.sandbox.nodes.node import VENDOR, SimulatedNode, gpu_cards
from tessera_lab.sandbox.objects import annotations_of, node_of, uid_of
from tests.e2e.cluster import cluster
from tests.e2e.control_plane import ControlPlane
from tests.support.product import gpu_pod

LONG_AGO = "1700000000"


def of_hami(name: str, memory: int, *, node: str, card: str, **annotations: str) -> Json:
    """As HAMi's filter leaves a pod: node and slice are written, the pod is not bound."""
    slices = encode_pod_devices([[DeviceEntry(card, VENDOR, memory, 0)]])
    written = {keys.ASSIGNED_NODE: node, keys.ASSIGNED_TIME: LONG_AGO, TO_ALLOCATE: slices, ALLOCATED: slices}
    made: Json = gpu_pod(name, gpu=1, mem=memory, annotations=written | annotations)
    del made["metadata"]["namespace"]
    return made


async def test_pods_that_hami_filtered_bound_or_started_all_end_well(plane: ControlPlane) -> None:
    nodes = [SimulatedNode(name, gpu_cards(name, 1), agent="hami") for name in ("n1", "n2")]
    first, second = (node.cards[0].uuid for node in nodes)
    phase = {keys.BIND_PHASE: keys.PHASE_SUCCESS, keys.BIND_TIME: LONG_AGO}
    handed_over = of_hami("bound", 70000, node="n2", card=second, **phase)
    async with cluster(plane, nodes, "--trusted-user=admin", "--inject-identity=false", scheduling=False) as found:
        # This node's plugin has done its part; what comes next on it is kubelet's.
        nodes[1].kubelet.pause()
        path = PODS.path(found.namespace)
        bound = await found.api.create(path, handed_over, dict[str, Any])
        await found.api.bind(found.namespace, "bound", uid=uid_of(bound), node="n2")
        # To a card that has no room for it any more: HAMi would have let it wait for its bind.
        await found.api.create(path, of_hami("filtered", 60000, node="n2", card=second))
        await found.create(gpu_pod("fresh", gpu=1, mem=20000))
        await found.at_rest()
        found.replica.kube_scheduler.start()
        await found.running("filtered", "fresh")
        now = found.pod("filtered")
        assert (node_of(now), annotations_of(now)[keys.ASSIGNED_NODE]) == ("n1", "n1")
        assert [entry.uuid for _, entries in slices_of(now, ALLOCATED) for entry in entries] == [first]
        assert annotations_of(now)[keys.ASSIGNED_TIME] != LONG_AGO
        assert node_of(found.pod("fresh")) == "n1"
        await found.at_rest()
