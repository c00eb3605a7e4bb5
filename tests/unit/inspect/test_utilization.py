from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from tessera.inspect.utilization import CONCURRENT, REQUEST_S, TOTAL_S, MeasuredUse, SliceKey, Utilization, read_use
from tessera.kube.access import Access
from tessera.kube.client import KubeClient
from tessera.monitor.container_dirs import Owner
from tessera.monitor.device_usage import CardUtilization
from tessera.monitor.metrics import MonitorMetrics, ScrapeView
from tessera.monitor.pods import SeenPod
from tessera.services.exposition import Registry
from tests.support.builders import NOW, PodBuilder, gpu_pod
from tests.support.event_loops import in_fake_time
from tests.support.network import Answer, Exchange, RawServer, refusal, reply, silence
from tests.unit.monitor.builders import GPU_A, Slot, good, region

METRICS = """
# HELP hami_vgpu_memory_used_bytes Memory that the container uses.
# TYPE hami_vgpu_memory_used_bytes gauge
hami_vgpu_memory_used_bytes{namespace="default",pod="a",container="c0",vdevice_index="0",device_uuid="n1-0",zone="vGPU"} 3145728000.0
hami_vgpu_memory_used_bytes{namespace="default",pod="a",container="c0",vdevice_index="1",device_uuid="n1-0",zone="vGPU"} 1048576.0
hami_vgpu_memory_used_bytes{namespace="default",pod="stranger",container="c0",vdevice_index="0",device_uuid="n1-0",zone="vGPU"} 1.0
hami_vgpu_memory_used_bytes{namespace="default",pod="elsewhere",container="c0",vdevice_index="0",device_uuid="n1-0",zone="vGPU"} 1.0
hami_container_device_utilization_ratio{namespace="default",pod="a",container="c0",vdevice_index="0",device_uuid="n1-0",zone="vGPU"} 35.0
hami_host_gpu_memory_used_bytes{node="n1",device_index="0",device_uuid="n1-0",device_type="NVIDIA-A100",zone="vGPU"} 4294967296.0
hami_host_gpu_utilization_ratio{node="n1",device_index="0",device_uuid="n1-0",device_type="NVIDIA-A100",zone="vGPU"} 41.0
other_metric{broken
"""  # noqa: E501
PODS = [gpu_pod("a").on("n1"), gpu_pod("elsewhere").on("n2")]
"""all that the cluster has"""


def monitor(node: str, *, phase: str = "Running", **container: Any) -> dict[str, Any]:
    shown = {"name": "monitor", "ports": [{"name": "monitor", "containerPort": 9000}]} | container
    return {
        "metadata": {"name": f"agent-{node}", "namespace": "tessera-system"},
        "spec": {"nodeName": node, "containers": [{"name": "device-plugin"}, shown]},
        "status": {"phase": phase},
    }


def answering(monitors: list[dict[str, Any]], by_node: Mapping[str, Answer]) -> Answer:
    """The apiserver: a list of the agents' pods, and what each of their monitors says."""

    async def answer(exchange: Exchange) -> bool | None:
        for node, say in by_node.items():
            if f"/agent-{node}" in exchange.request.path:
                return await say(exchange)
        return await reply(200, {"metadata": {}, "items": monitors})(exchange)

    return answer


def text(content: str) -> Answer:
    return reply(200, content.encode())


async def read(
    monitors: list[dict[str, Any]], by_node: Mapping[str, Answer], *, pods: list[PodBuilder] | None = None
) -> tuple[MeasuredUse, RawServer]:
    nodes = [each["spec"]["nodeName"] for each in monitors] or ["n1"]
    seen = {f"default/{pod.name}": pod.api() for pod in pods or PODS}
    server = RawServer(*[answering(monitors, by_node)] * (len(monitors) + 1))
    async with server, KubeClient(Access(server.url)) as client:
        return await read_use(client, seen, nodes=nodes, namespace="tessera-system"), server


@in_fake_time
async def test_use_is_known_by_pod_container_and_card() -> None:
    found, server = await read([monitor("n1")], {"n1": text(METRICS)})
    assert found.slices == {SliceKey("uid-a", "c0", "n1-0"): Utilization(3001, 35)}
    assert found.cards == {("n1", "n1-0"): Utilization(4096, 41)}
    assert found.note == ""
    asked = [request.path for request in server.requests]
    assert asked == [
        "/api/v1/namespaces/tessera-system/pods",
        "/api/v1/namespaces/tessera-system/pods/agent-n1%3A9000/proxy/metrics",
    ]
    assert "component+in+%28tessera-device-plugin%2Chami-device-plugin%29" in server.requests[0].target


@in_fake_time
async def test_what_tesseras_monitor_exports_is_understood() -> None:
    pod, owner = SeenPod("uid-a", "default", "a", ("c0",)), Owner("uid-a", "c0")
    used = good(region(uuids=(GPU_A,), limits=(3 << 30,), slots=[Slot({0: (0, 0, 0, 5 << 20, 40)})]))
    card = CardUtilization(0, GPU_A, "NVIDIA A100", 7 << 20, 70, 30)
    view = ScrapeView(node="n1", now=NOW, pods=(pod,), regions={owner: used}, cards=(card,))
    registry = Registry()
    registry.register(MonitorMetrics(lambda: view).collect)
    found, _ = await read([monitor("n1")], {"n1": reply(200, registry.render())})
    assert found.slices == {SliceKey("uid-a", "c0", GPU_A): Utilization(5, 40)}
    assert found.cards == {("n1", GPU_A): Utilization(7, 70)}


@in_fake_time
async def test_the_monitor_of_hami_is_asked_at_its_usual_port() -> None:
    _, server = await read([monitor("n1", name="vgpu-monitor", ports=[])], {"n1": text("")})
    assert "agent-n1%3A9394" in server.requests[1].path


@in_fake_time
async def test_a_person_without_the_right_is_told_once_which_role_has_it() -> None:
    monitors = [monitor(f"n{number}") for number in range(3 * CONCURRENT)]
    found, server = await read(monitors, {"n": refusal(403, "Forbidden", "no pods/proxy")})
    assert found.cards == {}
    assert "you may not read the monitors (get pods/proxy in namespace tessera-system" in found.note
    assert "tessera-monitor-reader" in found.note
    assert len(server.requests) <= CONCURRENT + 1, "the others are not asked"


@in_fake_time
async def test_monitors_that_do_not_answer_cost_seconds_and_spoil_no_other() -> None:
    monitors = [monitor("n1"), monitor("n2"), monitor("n3")]
    before = asyncio.get_running_loop().time()
    found, _ = await read(monitors, {"n1": text(METRICS), "n2": silence, "n3": text("hami_vgpu_memory_used_bytes{x")})
    assert asyncio.get_running_loop().time() - before <= REQUEST_S + 0.1
    assert list(found.cards) == [("n1", "n1-0")]
    assert found.note.startswith("the use of node n2, and of 1 more is unknown: ")


@in_fake_time
async def test_all_monitors_together_have_a_limit_too() -> None:
    monitors = [monitor(f"n{number:02}") for number in range(4 * CONCURRENT)]
    before = asyncio.get_running_loop().time()
    found, _ = await read(monitors, {"n": silence})
    assert asyncio.get_running_loop().time() - before <= TOTAL_S + 0.1
    assert f"and of {4 * CONCURRENT - 1} more is unknown" in found.note


@in_fake_time
async def test_without_monitors_the_use_is_unknown() -> None:
    for monitors in ([], [monitor("n1", phase="Pending")], [monitor("n1", name="other")]):
        found, server = await read(monitors, {})
        assert found.note == "use is unknown: no monitor runs on these nodes"
        assert len(server.requests) == 1


@in_fake_time
async def test_agents_that_may_not_be_listed_leave_the_use_unknown() -> None:
    async with RawServer(refusal(403, "Forbidden", "no")) as server, KubeClient(Access(server.url)) as client:
        found = await read_use(client, {}, nodes=["n1"])
    assert found.note.startswith("use is unknown: the monitors cannot be listed: 403")
    assert server.requests[0].path == "/api/v1/pods"


@in_fake_time
async def test_no_node_needs_no_request() -> None:
    async with RawServer() as server, KubeClient(Access(server.url)) as client:
        assert await read_use(client, {}, nodes=[]) == MeasuredUse()
