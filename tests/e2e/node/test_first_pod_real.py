"""One pod from its creation to a running container, and one that finds no room."""

from __future__ import annotations

from tessera_lab.sandbox.objects import annotations_of, node_of, phase_of
from tests.e2e.node.agent import CARDS, MEMORY
from tests.e2e.node.cluster import Node, NodeCluster, node_cluster
from tests.e2e.node.control_plane import NODE
from tests.e2e.node.shapes import talking
from tests.e2e.replica import until
from tests.support.product import gpu_pod


async def test_a_first_pod_runs_and_sees_exactly_its_slice(node: Node) -> None:
    async with node_cluster(node) as found:
        await found.run(talking(gpu_pod("first", gpu=1, mem=3000, cores=30)))
        assert node_of(found.pod("first")) == NODE
        assert await found.wrong_environments() == []
        await found.wait_for(
            lambda: annotations_of(found.pod("first"))["hami.io/bind-phase"] == "success",
            what="its handover",
        )
        await found.at_rest()


async def test_a_pod_that_cannot_fit_stays_pending_and_kubectl_says_why(node: Node) -> None:
    async with node_cluster(node) as found:
        await found.create(talking(gpu_pod("giant", gpu=1, mem=MEMORY + 1)))
        await found.refused("giant")
        # The event is written after the condition.
        described = await until(lambda: _events_in(found), what="an event that says why")
        assert "0/1 nodes are available" in described
        assert f"{CARDS}/{CARDS} CardInsufficientMemory" in described
        assert phase_of(found.pod("giant")) == "Pending"


async def _events_in(found: NodeCluster) -> str:
    text = found.plane.kubectl("describe", "pod", "giant", f"--namespace={found.namespace}", user="tenant")
    return text if "FailedScheduling" in text else ""
