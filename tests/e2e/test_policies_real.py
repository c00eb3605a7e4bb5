"""Every policy for the cards of a node, as a pod requests it, with a stock kube-scheduler."""

from __future__ import annotations

from tessera_lab.sandbox.nodes.allocation import ALLOCATED, slices_of
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tests.e2e.cluster import Cluster, cluster
from tests.e2e.control_plane import ControlPlane
from tests.support.product import gpu_pod

GPU_POLICY = "hami.io/gpu-scheduler-policy"
BUSY = (1, 2)
CHOICES: dict[str, tuple[set[int], ...]] = {
    "spread": ({0, 3},),
    "binpack": ({1, 2},),
    "mutex": ({0, 3},),
    "topology-aware": ({0, 1}, {2, 3}),
    "numa": ({2, 3},),
    "numa,binpack": ({2, 3},),
}
"""of four cards, two of them busy: which two a pod with this policy may get"""


def cards_of(found: Cluster, name: str) -> set[int]:
    numbers = {card.uuid: card.index for card in found.fleet.nodes["n1"].cards}
    return {numbers[entry.uuid] for _, entries in slices_of(found.pod(name), ALLOCATED) for entry in entries}


async def test_every_gpu_policy_chooses_its_own_cards(plane: ControlPlane) -> None:
    """0 and 1 are linked and on one NUMA node, and so are 2 and 3."""
    cards = gpu_cards("n1", 4, numa_nodes=2, linked=2)
    async with cluster(plane, [SimulatedNode("n1", cards)]) as found:
        for number in BUSY:
            wish = {"nvidia.com/use-gpuuuid": cards[number].uuid}
            await found.run(gpu_pod(f"busy-{number}", gpu=1, mem=8000, annotations=wish))
        for number, (policy, choices) in enumerate(CHOICES.items()):
            name = f"p{number}"
            await found.run(gpu_pod(name, gpu=2, mem=1000, annotations={GPU_POLICY: policy}))
            assert cards_of(found, name) in choices, policy
            await found.delete(name)
            await found.gone(name)
            await found.at_rest()


async def test_a_pod_that_wants_cards_alone_gets_none_that_is_shared_and_says_so(plane: ControlPlane) -> None:
    alone = {GPU_POLICY: "mutex"}
    async with cluster(plane, [SimulatedNode("n1", gpu_cards("n1", 2))]) as found:
        await found.run(*(gpu_pod(name, gpu=1, mem=100, annotations=alone) for name in ("p", "q")))
        assert cards_of(found, "p") | cards_of(found, "q") == {0, 1}
        await found.create(gpu_pod("r", gpu=1, mem=100, annotations=alone))
        assert "2/2 ExclusiveDeviceAllocateConflict" in await found.refused("r")
        await found.delete("p")
        await found.running("r")
        await found.at_rest()


async def test_cards_of_one_numa_node_for_those_who_bind_to_it(plane: ControlPlane) -> None:
    cards = gpu_cards("n1", 4, numa_nodes=2)
    bound = {"nvidia.com/numa-bind": "true"}
    async with cluster(plane, [SimulatedNode("n1", cards)]) as found:
        for number in (0, 3):
            wish = {"nvidia.com/use-gpuuuid": cards[number].uuid}
            await found.run(gpu_pod(f"whole-{number}", gpu=1, annotations=wish))
        await found.create(gpu_pod("p", gpu=2, mem=1000, annotations=bound))
        assert "NumaNotFit" in await found.refused("p")
        await found.delete("whole-0")
        await found.running("p")
        assert cards_of(found, "p") == {0, 1}
        await found.at_rest()
