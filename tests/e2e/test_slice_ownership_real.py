"""A container gets only its own slice, whatever tenants write and whatever a plugin mixes up."""

from __future__ import annotations

from typing import Any

from tessera.kube.resources import PODS
from tessera_lab.sandbox.nodes.allocation import ALLOCATED, TO_ALLOCATE, VISIBLE
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tessera_lab.sandbox.objects import annotations_of, uid_of
from tests.e2e.cluster import cluster
from tests.e2e.control_plane import ControlPlane
from tests.support.product import container, gpu_pod, pod

DENIED = 'admission webhook "vgpu.hami.io" denied the request: '
FORGED = "GPU-00000000-0000-0000-0000-000000000000,NVIDIA,1,1:;"


def node(name: str = "n1", count: int = 2, **more: Any) -> SimulatedNode:
    return SimulatedNode(name, gpu_cards(name, count), **more)


async def test_what_only_the_scheduler_writes_is_refused_at_creation(plane: ControlPlane) -> None:
    keys = (
        *(ALLOCATED, TO_ALLOCATE, "hami.io/vgpu-node", "hami.io/vgpu-time", "hami.io/bind-phase", "hami.io/bind-time"),
        *("tessera.io/c0.visible-devices", "tessera.io/c0.memory-limit-0", "tessera.io/c0.core-limit"),
        *("tessera.io/retry", "tessera.io/anything"),
    )
    async with cluster(plane, [node()]) as found:
        for key in keys:
            for forged in (gpu_pod("p", gpu=1, mem=100), pod("p", container("main"), nodeName="n1")):
                forged["metadata"]["annotations"] = {key: FORGED}
                answer = await found.post(forged)
                assert answer.status == 403, key
                assert answer.message.startswith(DENIED)
                assert f"annotation {key}: only the scheduler may write this" in answer.message
        labelled = gpu_pod("p", gpu=1, mem=100)
        labelled["metadata"]["labels"] = {"hami.io/vgpu-node": "n1"}
        assert "label hami.io/vgpu-node" in (await found.post(labelled)).message
        assert found.pods == []
        await found.at_rest()


async def test_a_tenant_cannot_bind_a_pod_itself(plane: ControlPlane) -> None:
    async with cluster(plane, [node()], scheduling=False) as found:
        await found.create(gpu_pod("p", gpu=1, mem=100))
        metadata = {"name": "p", "annotations": {ALLOCATED: FORGED}}
        body = {"metadata": metadata, "target": {"kind": "Node", "name": "n1"}}
        answer = await found.tenant.post(PODS.path(found.namespace, "p", "binding"), body)
        assert (answer.status, answer.reason) == (403, "Forbidden")


async def test_variables_that_a_tenant_sets_do_not_widen_the_slice(plane: ControlPlane) -> None:
    wishful = gpu_pod("p", gpu=1, mem=1000, cores=10)
    wishful["spec"]["containers"][0]["env"] = [
        {"name": VISIBLE, "value": "all"},
        {"name": "CUDA_DEVICE_MEMORY_LIMIT_0", "value": "80000m"},
        {"name": "CUDA_DEVICE_SM_LIMIT", "value": "100"},
        {"name": "MODEL", "value": "large"},
    ]
    async with cluster(plane, [node()]) as found:
        answer = await found.post(wishful, dryRun="All")
        assert any("set by the granted slice" in text for text in answer.headers.getall("Warning"))
        await found.run(wishful)
        assert found.wrong_slices() == []
        view = found.fleet.nodes["n1"].containers[uid_of(found.pod("p")), "main"]
        assert view.env["MODEL"] == "large"


async def test_a_plugin_that_answers_for_another_pod_changes_nothing(plane: ControlPlane) -> None:
    mixing = node("n1", 4, shuffled=True)
    mixing.faults.wrong_pod = True
    pods = [gpu_pod(f"p{number:02}", gpu=1, mem=500 + 100 * number, cores=number) for number in range(16)]
    async with cluster(plane, [mixing], scheduling=False) as found:
        mixing.kubelet.pause()
        await found.create(*pods)
        found.replica.kube_scheduler.start()
        await found.wait_for(
            lambda: all(ALLOCATED in annotations_of(each) for each in found.pods), what="all pods to be bound"
        )
        mixing.kubelet.resume()
        await found.running(*(each["metadata"]["name"] for each in pods))
        assert found.wrong_slices() == []
