"""Fifty pods of mixed shapes at once: whose slice is whose, also where tenants and the plugin get it wrong."""

from __future__ import annotations

from tessera_lab.sandbox.objects import annotations_of
from tests.e2e.node.cluster import PATIENCE_S, Node, NodeCluster, node_cluster
from tests.e2e.node.plugin_proxy import MARK, SwappingPluginProxy
from tests.e2e.node.shapes import mixed

COUNT = 50


async def all_run(found: NodeCluster, count: int) -> None:
    pods = mixed(count)
    await found.create(*pods)
    await found.running(*(each["metadata"]["name"] for each in pods), within_s=PATIENCE_S)


async def test_fifty_pods_at_once_each_see_exactly_their_slice(node: Node) -> None:
    async with node_cluster(node) as found:
        await all_run(found, COUNT)
        assert await found.wrong_environments() == []
        await found.wait_for(
            lambda: all(annotations_of(each)["hami.io/bind-phase"] == "success" for each in found.pods),
            what="the end of every handover",
        )
        await found.at_rest()


async def test_a_plugin_that_answers_for_another_pod_changes_no_slice(node: Node) -> None:
    proxy = SwappingPluginProxy(node.node_container.folder / "proxy")
    async with node_cluster(node, proxy.serving) as found:
        await all_run(found, COUNT)
        seen = await found.environments(found.pods)
        asking = [environment for environment in seen.values() if "CUDA_REDIRECT" in environment]
        # The wrong answer did arrive, in every container that was handed devices.
        assert len(asking) == proxy.answered > COUNT
        assert all(MARK in environment for environment in asking)
        assert await found.wrong_environments() == []
