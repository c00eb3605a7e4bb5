"""kubelet and the agent end and come back, with pods on the node and more to come: nothing is lost."""

from __future__ import annotations

from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.objects import phase_of, uid_of
from tests.e2e.node.cluster import PATIENCE_S, Node, NodeCluster, node_cluster
from tests.e2e.node.shapes import mixed


def lives(found: NodeCluster) -> dict[str, tuple[str, str, int]]:
    """By pod: which one it is, how it is, and how often its containers had to be started again."""
    return {
        each["metadata"]["name"]: (
            uid_of(each),
            phase_of(each),
            sum(map(_restarts, each["status"]["containerStatuses"])),
        )
        for each in found.pods
    }


def _restarts(status: Json) -> int:
    return int(status["restartCount"])


async def test_kubelet_and_agent_restart_with_pods_on_the_node(node: Node) -> None:
    batches = [mixed(21)[start : start + 7] for start in (0, 7, 14)]
    async with node_cluster(node) as found:

        async def run(pods: list[Json]) -> None:
            await found.create(*pods)
            await found.running(*(each["metadata"]["name"] for each in pods), within_s=PATIENCE_S)

        await run(batches[0])
        before = lives(found)
        await found.restart_kubelet()
        await run(batches[1])
        await found.restart_agent()
        await run(batches[2])
        assert {name: lives(found)[name] for name in before} == before
        assert all(life[2] == 0 for life in lives(found).values())
        assert await found.wrong_environments() == []
        await found.at_rest()
