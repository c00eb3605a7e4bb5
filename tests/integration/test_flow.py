from __future__ import annotations
from pathlib import Path
from tessera.sandbox.cards import gpu_cards
from tessera.sandbox.nodes import SimulatedNode
from tests.support.product import gpu_pod, product
from tests.support.replaying import wrong_slices


async def test_rest(tmp_path: Path) -> None:
    async with product([SimulatedNode("n1", gpu_cards("n1", 2))], tmp_path) as cluster:
        await cluster.plane.create_pod(gpu_pod("p", gpu=1, mem=3000, cores=30))
        await cluster.running_pods("p")
        await cluster.at_rest()
        assert list(wrong_slices(cluster.plane)) == []
        await cluster.restart_scheduler()
        await cluster.at_rest()
        print(cluster.requests())
        assert await cluster.stop_scheduler()==0
