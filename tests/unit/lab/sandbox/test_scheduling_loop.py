"""The scheduling loop against a scripted extender: what it asks, when it asks again, and what users read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tessera.kube.resources import NODES, PODS
from tessera_lab.sandbox.api.faults import Fail
from tessera_lab.sandbox.control_plane import ControlPlane
from tessera_lab.sandbox.nodes.node import SimulatedNode
from tessera_lab.sandbox.scheduling.extender_client import ExtenderClient, ExtenderError, Filtered
from tessera_lab.sandbox.scheduling.loop import SchedulingLoop
from tests.support.event_loops import in_fake_time, in_real_time
from tests.unit.lab.sandbox.scripted_extender import Json, ScriptedExtender, refuse

SAMPLES = Path(__file__).parents[3] / "samples" / "extender"


def nodes(count: int = 3, **more: Any) -> list[SimulatedNode]:
    return [SimulatedNode(f"n{number}", **more) for number in range(count)]


def gpu_pod(name: str, **spec: Any) -> Json:
    resources = {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}}
    container = {"name": "c", "image": "x", "resources": resources}
    return {"metadata": {"name": name}, "spec": {"schedulerName": "hami-scheduler", "containers": [container], **spec}}


def plain_pod(name: str, **spec: Any) -> Json:
    container = {"name": "c", "image": "x", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


@asynccontextmanager
async def cluster(extender: ScriptedExtender, *simulated: SimulatedNode, **more: Any) -> AsyncIterator[ControlPlane]:
    async with extender, ControlPlane(nodes=simulated or nodes(), **more) as plane:
        await plane.start_scheduling(extender.url)
        for node in plane.nodes.values():
            node.pace.stop_s = 0.0
        extender.client = plane.client
        yield plane


def bound_to(plane: ControlPlane, name: str) -> str:
    pod = plane.pod("default", name)
    return str(pod["spec"].get("nodeName", "")) if pod else ""


def why(plane: ControlPlane, name: str) -> tuple[str, str]:
    """Reason and message of the condition PodScheduled, while that is False."""
    for condition in (plane.pod("default", name) or {}).get("status", {}).get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return condition["reason"], condition["message"]
    return "", ""


def recorded(plane: ControlPlane, name: str) -> set[tuple[str, str, str]]:
    return {(event["type"], event["reason"], event["message"]) for event in plane.events("default", name)}


def sample(name: str) -> Json:
    loaded: Json = json.loads((SAMPLES / name).read_text())
    return loaded


@in_real_time
async def test_requests_look_as_kube_scheduler_sends_them() -> None:
    async with cluster(extender := ScriptedExtender()) as plane:
        made = await plane.create_pod(gpu_pod("p"))
        await plane.wait_for(lambda: plane.phase("default", "p") == "Running" or bound_to(plane, "p"))
    asked = extender.filters[0]
    assert list(asked) == list(sample("filter-0.request.json"))
    assert list(asked["Pod"]) == list(sample("filter-0.request.json")["Pod"])
    assert asked["Pod"]["metadata"]["uid"] == made["metadata"]["uid"]
    assert asked["Pod"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] == "3k"
    assert (asked["Nodes"], asked["NodeNames"]) == (None, ["n0", "n1", "n2"])
    expected = {"PodName": "p", "PodNamespace": "default", "PodUID": made["metadata"]["uid"], "Node": "n0"}
    assert extender.binds == [expected]
    assert list(extender.binds[0]) == list(sample("bind-0.request.json"))


@in_real_time
async def test_filter_calls_come_one_at_a_time_and_binds_together() -> None:
    extender = ScriptedExtender()
    plain_bind = extender.bind

    async def together(body: Json) -> Json:
        await extender.until(lambda: extender.binding == 6)
        return await plain_bind(body)

    extender.bind = together
    async with cluster(extender) as plane:
        for number in range(6):
            await plane.create_pod(gpu_pod(f"p{number}"))
        await plane.wait_for(lambda: all(bound_to(plane, f"p{number}") for number in range(6)))
    assert extender.asked == [f"p{number}" for number in range(6)]
    assert (extender.most_filtering, extender.most_binding) == (1, 6)


@in_real_time
async def test_a_slow_bind_holds_nobody_up() -> None:
    extender, release = ScriptedExtender(), asyncio.Event()
    plain_bind = extender.bind

    async def slow(body: Json) -> Json:
        if body["PodName"] == "slow":
            await release.wait()
        return await plain_bind(body)

    extender.bind = slow
    async with cluster(extender) as plane:
        await plane.create_pod(gpu_pod("slow"))
        await plane.create_pod(gpu_pod("quick"))
        await plane.wait_for(lambda: bound_to(plane, "quick"))
        assert not bound_to(plane, "slow")
        release.set()
        await plane.wait_for(lambda: bound_to(plane, "slow"))


@in_fake_time
async def test_a_refused_pod_says_why_in_kube_schedulers_words() -> None:
    def decide(request: Json) -> Json:
        reasons = dict.fromkeys(request["NodeNames"], "1/1 CardInsufficientMemory") | {"n1": "node unregistered"}
        return {"NodeNames": [], "FailedNodes": reasons}

    async with cluster(ScriptedExtender(decide)) as plane:
        await plane.create_pod(gpu_pod("p"))
        text = "0/3 nodes are available: 1 node unregistered, 2 1/1 CardInsufficientMemory."
        await plane.wait_for(lambda: why(plane, "p") == ("Unschedulable", text))
        await plane.wait_for(lambda: recorded(plane, "p") == {("Warning", "FailedScheduling", text)})
        (event,) = plane.events("default", "p")
        assert event["source"]["component"] == "hami-scheduler"


@in_real_time
async def test_reasons_of_the_extender_stand_beside_those_of_kube_scheduler() -> None:
    tainted = SimulatedNode("t", taints=[{"key": "k", "effect": "NoSchedule"}])
    async with cluster(extender := ScriptedExtender(refuse()), *nodes(1), tainted) as plane:
        await plane.create_pod(gpu_pod("p"))
        said = "0/2 nodes are available: 1 1/1 CardInsufficientMemory, 1 node(s) had untolerated taint(s)."
        await plane.wait_for(lambda: why(plane, "p")[1] == said)
        assert extender.filters[0]["NodeNames"] == ["n0"]


@in_real_time
async def test_the_extender_is_not_asked_where_no_node_is_left_for_it() -> None:
    async with cluster(extender := ScriptedExtender()) as plane:
        await plane.create_pod(gpu_pod("p", nodeSelector={"zone": "nowhere"}))
        said = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
        await plane.wait_for(lambda: why(plane, "p")[1] == said)
    assert extender.filters == []


@in_real_time
async def test_a_cluster_without_nodes_is_said_to_be_one() -> None:
    async with ControlPlane() as plane:
        await plane.start_scheduling()
        await plane.create_pod(plain_pod("p"))
        await plane.wait_for(lambda: why(plane, "p") == ("Unschedulable", "no nodes available to schedule pods"))


async def _delete_another(plane: ControlPlane) -> None:
    await plane.delete_pod("default", "other", grace_s=0)


async def _end_another(plane: ControlPlane) -> None:
    await plane.client.patch(PODS.path("default", "other", "status"), {"status": {"phase": "Succeeded"}})


async def _bind_another(plane: ControlPlane) -> None:
    pending = plane.pod("default", "foreign")
    assert pending is not None
    await plane.client.bind("default", "foreign", uid=pending["metadata"]["uid"], node="n1")


async def _annotate_a_node(plane: ControlPlane) -> None:
    await plane.client.patch(NODES.path(name="n2"), {"metadata": {"annotations": {"hami.io/x": "y"}}})


async def _add_a_node(plane: ControlPlane) -> None:
    await plane.fleet.add(SimulatedNode("new"))


async def _patch_it(plane: ControlPlane) -> None:
    await plane.client.patch(PODS.path("default", "p"), {"metadata": {"annotations": {"tessera.io/retry": "1"}}})


@pytest.mark.parametrize(
    "something", [_delete_another, _end_another, _bind_another, _annotate_a_node, _add_a_node, _patch_it]
)
@in_real_time
async def test_a_refused_pod_is_tried_again_when(something: Any) -> None:
    extender = ScriptedExtender(refuse())
    async with cluster(extender) as plane:
        await plane.create_pod(plain_pod("other", nodeName="n0"))
        await plane.create_pod(plain_pod("foreign", schedulerName="another-scheduler"))
        await plane.wait_for(lambda: plane.phase("default", "other") == "Running")
        await plane.create_pod(gpu_pod("p"))
        await plane.wait_for(lambda: why(plane, "p")[0])
        before = extender.asked.count("p")
        await something(plane)
        await extender.until_asked("p", before + 1)


@in_real_time
async def test_heartbeats_statuses_and_other_pending_pods_wake_nobody() -> None:
    extender = ScriptedExtender(refuse())
    async with cluster(extender) as plane:
        await plane.create_pod(gpu_pod("p"))
        await plane.wait_for(lambda: why(plane, "p")[0])
        ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2030-01-01T00:00:00Z"}
        await plane.client.patch(NODES.path(name="n0", subresource="status"), {"status": {"conditions": [ready]}})
        await plane.client.patch(PODS.path("default", "p", "status"), {"status": {"nominatedNodeName": "n0"}})
        await plane.create_pod(gpu_pod("q"))
        await plane.wait_for(lambda: why(plane, "q")[0])
    assert extender.asked == ["p", "q"]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"Error": "calcScore failed"}, "calcScore failed"),
        ({"status": 500}, "failed filter with extender at URL {url}/filter, code 500"),
        (
            {"NodeNames": ["mars"]},
            'extender "{url}" claims a filtered node "mars" which is not found in the input node list',
        ),
        ({"NodeNames": 7}, "the response cannot be read: Expected `array | null`, got `int` - at `$.NodeNames`"),
    ],
)
@in_fake_time
async def test_errors_are_tried_again_after_a_growing_time(answer: Json, text: str) -> None:
    extender = ScriptedExtender(lambda _: answer)
    async with cluster(extender) as plane:
        await plane.create_pod(gpu_pod("p"))
        await extender.until_asked("p", 7)
        assert why(plane, "p") == ("SchedulerError", text.format(url=extender.url))
    gaps = [round(b - a, 1) for a, b in zip(extender.filtered_at, extender.filtered_at[1:], strict=False)]
    assert gaps == [1, 2, 4, 8, 10, 10]


@in_fake_time
async def test_an_extender_that_does_not_answer_in_time_is_an_error() -> None:
    async def late(request: Json) -> Json:
        await asyncio.sleep(31)
        return {}

    extender = ScriptedExtender(late)
    async with cluster(extender) as plane:
        await plane.create_pod(gpu_pod("p"))
        said = f'Post "{extender.url}/filter": context deadline exceeded'
        await plane.wait_for(lambda: why(plane, "p") == ("SchedulerError", said), timeout=60)


@in_fake_time
async def test_a_failed_bind_is_said_and_tried_again() -> None:
    extender = ScriptedExtender()
    plain_bind = extender.bind
    answers = [{"Error": "node lock contention"}]

    async def bind(body: Json) -> Json:
        return answers.pop() if answers else await plain_bind(body)

    extender.bind = bind
    async with cluster(extender) as plane:
        await plane.create_pod(gpu_pod("p"))
        await plane.wait_for(lambda: why(plane, "p") == ("SchedulerError", "node lock contention"))
        await plane.wait_for(lambda: bound_to(plane, "p"))
        await plane.wait_for(lambda: len(recorded(plane, "p")) == 2)
        assert recorded(plane, "p") == {
            ("Warning", "FailedScheduling", "node lock contention"),
            ("Normal", "Scheduled", "Successfully assigned default/p to n0"),
        }
        (scheduled,) = [
            each for each in (plane.pod("default", "p") or {})["status"]["conditions"] if each["type"] == "PodScheduled"
        ]
        assert scheduled["status"] == "True"
    assert extender.asked == ["p", "p"]


@in_fake_time
async def test_a_bind_whose_answer_was_lost_is_not_repeated() -> None:
    extender = ScriptedExtender()
    plain_bind = extender.bind

    async def bind(body: Json) -> Json:
        await plain_bind(body)
        return {"status": 502}

    extender.bind = bind
    async with cluster(extender) as plane:
        await plane.create_pod(gpu_pod("p"))
        await plane.wait_for(lambda: bound_to(plane, "p"))
        await asyncio.sleep(600)
    assert extender.asked == ["p"]


@in_real_time
async def test_a_pod_deleted_between_filter_and_bind_is_still_sent_to_bind() -> None:
    extender = ScriptedExtender()
    plane: ControlPlane

    async def decide(request: Json) -> Json:
        await plane.delete_pod("default", "p")
        await plane.wait_for(lambda: plane.pod("default", "p") is None)
        return {"NodeNames": ["n1"]}

    async def bind(body: Json) -> Json:
        return {"Error": 'pods "p" not found'}

    extender.decide, extender.bind = decide, bind
    async with cluster(extender) as plane:
        await plane.create_pod(gpu_pod("p"))
        await extender.until(lambda: bool(extender.binds))
        extender.decide = refuse()
        await plane.create_pod(gpu_pod("q"))
        await extender.until_asked("q")
        assert extender.asked == ["p", "q"]
        assert plane.events("default", "p") == []


@in_fake_time
async def test_pods_without_devices_go_to_the_emptiest_node_and_not_to_the_extender() -> None:
    async with cluster(extender := ScriptedExtender(refuse())) as plane:
        for number in range(3):
            await plane.create_pod(plain_pod(f"p{number}"))
            await plane.wait_for(lambda number=number: bound_to(plane, f"p{number}"))  # type: ignore[misc]
        assert {bound_to(plane, f"p{number}") for number in range(3)} == {"n0", "n1", "n2"}
        await plane.create_pod(plain_pod("h", schedulerName="hami-scheduler"))
        await plane.wait_for(lambda: bound_to(plane, "h"))
        await plane.wait_for(lambda: recorded(plane, "h"))
    assert extender.filters == []


@in_fake_time
async def test_a_binding_that_the_apiserver_refuses_is_tried_again() -> None:
    async with ControlPlane(nodes=nodes(1)) as plane:
        plane.server.faults.next(Fail(409, message="no"), method="POST", path="binding")
        await plane.start_scheduling()
        await plane.create_pod(plain_pod("p"))
        await plane.wait_for(lambda: why(plane, "p") == ("SchedulerError", "no"))
        await plane.wait_for(lambda: bound_to(plane, "p"))


@in_real_time
async def test_a_condition_that_cannot_be_written_does_not_stop_anything() -> None:
    async with cluster(extender := ScriptedExtender(refuse())) as plane:
        plane.server.faults.next(Fail(500), method="PATCH", path="pods/p/status")
        await plane.create_pod(gpu_pod("p"))
        await extender.until_asked("p")
        await plane.create_pod(gpu_pod("q"))
        await plane.wait_for(lambda: why(plane, "q")[0])


@in_fake_time
async def test_watches_that_break_lose_nothing() -> None:
    async with cluster(extender := ScriptedExtender()) as plane:
        for number in range(4):
            await plane.create_pod(gpu_pod(f"p{number}"))
            plane.server.faults.cut_watches()
        await plane.wait_for(lambda: all(bound_to(plane, f"p{number}") for number in range(4)))
    assert sorted(extender.asked) == [f"p{number}" for number in range(4)]


async def test_keys_of_an_answer_are_read_whatever_their_case() -> None:
    answer = {"nodenames": ["n0"], "failednodes": {"n1": "no"}, "FAILEDANDUNRESOLVABLENODES": {"n2": "never"}}
    async with (
        ScriptedExtender(lambda _: answer) as extender,
        ExtenderClient(extender.url) as client,
    ):
        filtered = await client.filter(gpu_pod("p"), ["n0", "n1", "n2"])
    assert filtered == Filtered(("n0",), {"n1": "no", "n2": "never"})


async def test_an_extender_that_is_not_there_is_an_error() -> None:
    async with ExtenderClient("http://127.0.0.1:1") as client:
        with pytest.raises(ExtenderError, match=r'Post "http://127\.0\.0\.1:1/bind"'):
            await client.bind({"metadata": {"name": "p", "namespace": "d", "uid": "u"}}, "n0")


class OnlyNode:
    """An extender without HTTP, for stepping."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def filter(self, pod: Json, nodes: Any) -> Filtered:
        return Filtered(("n1",), {})

    async def bind(self, pod: Json, node: str) -> None:
        metadata = pod["metadata"]
        await self._plane.client.bind(metadata["namespace"], metadata["name"], uid=metadata["uid"], node=node)


@in_real_time
async def test_the_loop_can_be_stepped_by_hand_with_an_extender_of_any_kind() -> None:
    async with ControlPlane(nodes=nodes()) as plane:
        for name in "abc":
            await plane.create_pod(gpu_pod(name))
        async with SchedulingLoop(plane.client, OnlyNode(plane)) as loop:
            assert [await loop.step() for _ in range(4)] == [True, True, True, False]
            assert loop.binding
            await loop.settle()
            assert not loop.binding
            assert [bound_to(plane, name) for name in "abc"] == ["n1"] * 3
