"""Scheduler or agent die at an exact point, with work before and after it: nothing is given twice, nothing is lost."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from grpc import aio

from tessera.core.ledger.audit import audit
from tessera.services.failpoints import VARIABLE, Failpoint
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tests.e2e.cluster import Cluster, cluster
from tests.e2e.cluster_check import replayed
from tests.e2e.control_plane import ControlPlane
from tests.e2e.replica import until
from tests.integration.node.test_restarts import BY_ANSWER, CARDS, agent_process
from tests.support.agent_cluster import past_the_webhook, scheduled_node
from tests.support.product import container, gpu_pod, pod

POINTS = (Failpoint.AFTER_RESERVE, Failpoint.BEFORE_WRITE, Failpoint.AFTER_WRITE, Failpoint.BEFORE_SETTLE)


def nodes() -> list[SimulatedNode]:
    return [
        SimulatedNode("n1", gpu_cards("n1", 2), agent="env"),
        SimulatedNode("n2", gpu_cards("n2", 2), agent="answer"),
        SimulatedNode("n3", gpu_cards("n3", 2), agent="hami"),
    ]


def pods() -> list[Json]:
    """One for each card: a card that is given twice, or kept for a reservation of before, leaves a pod without one."""
    return [gpu_pod(f"p{number}", gpu=1, mem=1000 + number, cores=100) for number in range(6)]


async def die(found: Cluster, point: Failpoint, *, hit: int) -> None:
    """Tessera starts anew, and dies at this point."""
    tessera = found.replica.tessera
    tessera.kill()
    tessera.start(**{VARIABLE: f"{point.value}=kill@{hit}"})

    async def is_dead() -> bool:
        return not tessera.is_running

    await until(is_dead, what=f"the end at {point.value}")


@pytest.mark.parametrize("hit", [1, 3])
@pytest.mark.parametrize("point", POINTS, ids=lambda point: str(point.value))
async def test_a_scheduler_that_dies_at_a_failpoint_gives_nothing_twice_and_loses_nothing(
    plane: ControlPlane, point: Failpoint, hit: int
) -> None:
    waiting = pods()
    async with cluster(plane, nodes(), scheduling=False) as found:
        await found.create(*waiting)
        found.replica.kube_scheduler.start()
        await die(found, point, hit=hit)
        assert audit(await replayed(found.api)) == []
        found.replica.tessera.start()
        await found.replica.ready()
        await found.running(*(each["metadata"]["name"] for each in waiting))
        await found.at_rest()
        assert found.wrong_slices() == []


@pytest.mark.parametrize("point", [Failpoint.BEFORE_RECORD, Failpoint.AFTER_RECORD], ids=lambda point: str(point.value))
async def test_an_agent_that_dies_at_its_durable_record_gives_the_same_container_its_own_slice(
    tmp_path: Path, point: Failpoint
) -> None:
    """kubelet has the first container's answer, asks for the second one, and gets nothing; then it asks again."""
    manifest = past_the_webhook(pod("p", container("a", gpu=1, mem=1000), container("b", gpu=1, mem=2000)))
    async with scheduled_node(tmp_path, cards=CARDS, **BY_ANSWER) as found:
        await found.node.stop()
        async with agent_process(found.node, **{VARIABLE: f"{point.value}=kill@2"}) as command:
            await found.create(manifest)
            await found.kubelet.bound("p")
            await found.kubelet.ask("p", 0)
            with pytest.raises(aio.AioRpcError):
                await found.kubelet.ask("p", 1)
            assert await command.end() == -signal.SIGKILL
        await found.node.start()
        await found.node.kubelet.listed()
        assert await found.kubelet.admit("p")
        await found.handed_over("p")
        assert found.kubelet.wrong_slices() == []
        await found.product.at_rest()
