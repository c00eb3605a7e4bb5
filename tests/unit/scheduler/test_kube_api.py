"""The calls to a real API server, the embedded one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tessera.kube.access import Access
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.resources import NODES, PODS
from tessera.scheduler.kube_api import KubeApi
from tessera.scheduler.observer import SchedulerObserver
from tessera_lab.sandbox.api.server import ApiServer
from tests.support.binding import POD
from tests.support.builders import GPU
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import FakeCluster
from tests.support.stepwise_scheduler import uid


@dataclass
class World:
    """A pod and a node, and what was written."""

    client: KubeClient
    cluster: KubeApi
    writes: list[str] = field(default_factory=list)

    async def pod(self) -> dict[str, Any]:
        return await self.client.get(PODS.path("default", "p"), dict[str, Any])


class WriteObserver(SchedulerObserver):
    def __init__(self, writes: list[str]) -> None:
        self._writes = writes

    def on_write(self, verb: str) -> None:
        self._writes.append(verb)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    writes: list[str] = []
    async with ApiServer() as server, KubeClient(Access(server.url)) as client:
        await client.create(NODES.path(), {"metadata": {"name": "n1", "annotations": {"a": "1", "b": "2"}}})
        pod = {
            "metadata": {"name": "p", "annotations": {"a": "1", "b": "2"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        }
        await client.create(PODS.path("default"), pod)
        yield World(client, KubeApi(client, WriteObserver(writes)), writes)


async def test_pods_and_nodes_are_read_as_they_are(world: World) -> None:
    pod, node = await world.cluster.get_pod("default", "p"), await world.cluster.get_node("n1")
    assert (pod.metadata.name, pod.metadata.annotations) == ("p", {"a": "1", "b": "2"})
    assert (node.name, node.annotations) == ("n1", {"a": "1", "b": "2"})
    assert world.writes == []


async def test_what_is_not_there_is_an_error_of_the_api(world: World) -> None:
    for call in (world.cluster.get_pod("default", "q"), world.cluster.get_node("n2")):
        with pytest.raises(ApiError) as caught:
            await call
        assert caught.value.status == 404


async def test_a_binding_carries_node_annotations_and_labels_in_one_write(world: World) -> None:
    found = (await world.pod())["metadata"]
    written: dict[str, Any] = {"annotations": {"b": "3", "c": "4"}, "labels": {"l": "5"}}
    seen = {"uid": found["uid"], "resource_version": found["resourceVersion"]}
    await world.cluster.bind("default", "p", **seen, node="n1", **written)
    pod = await world.pod()
    assert (pod["spec"]["nodeName"], pod["metadata"]["labels"]) == ("n1", {"l": "5"})
    assert pod["metadata"]["annotations"] == {"a": "1", "b": "3", "c": "4"}
    assert world.writes == ["bind"]


@pytest.mark.parametrize("wrong", [{"uid": "another"}, {"resourceVersion": "1"}])
async def test_a_binding_of_another_pod_of_the_same_name_or_for_another_version_is_refused(
    world: World, wrong: dict[str, str]
) -> None:
    seen = (await world.pod())["metadata"] | wrong
    with pytest.raises(ApiError) as caught:
        await world.cluster.bind(
            "default",
            "p",
            uid=seen["uid"],
            resource_version=seen["resourceVersion"],
            node="n1",
            annotations={"c": "4"},
            labels={},
        )
    assert caught.value.status == 409
    pod = await world.pod()
    assert "nodeName" not in pod["spec"]
    assert pod["metadata"]["annotations"] == {"a": "1", "b": "2"}
    assert world.writes == ["bind"]  # it was sent, whatever became of it


async def test_only_pods_without_a_node_are_unbound(world: World) -> None:
    assert [pod.metadata.name for pod in await world.cluster.unbound_pods()] == ["p"]
    found = (await world.pod())["metadata"]
    seen = {"uid": found["uid"], "resource_version": found["resourceVersion"]}
    await world.cluster.bind("default", "p", **seen, node="n1", annotations={}, labels={})
    assert list(await world.cluster.unbound_pods()) == []


async def test_annotations_are_set_and_taken_away_and_others_stay(world: World) -> None:
    await world.cluster.annotate_pod("default", "p", {"a": None, "c": "3"})
    await world.cluster.annotate_node("n1", {"a": None, "c": "3"})
    assert (await world.pod())["metadata"]["annotations"] == {"b": "2", "c": "3"}
    assert (await world.cluster.get_node("n1")).annotations == {"b": "2", "c": "3"}
    assert world.writes == ["patch", "patch"]


async def test_a_node_that_changed_meanwhile_is_not_annotated(world: World) -> None:
    seen = await world.cluster.get_node("n1")
    version = seen.metadata.resource_version
    await world.cluster.annotate_node("n1", {"lock": "mine"}, resource_version=version)
    with pytest.raises(ApiError) as caught:
        await world.cluster.annotate_node("n1", {"lock": "yours"}, resource_version=version)
    assert caught.value.status == 409
    assert (await world.cluster.get_node("n1")).annotations["lock"] == "mine"


# -- the fake of most tests


@in_fake_time
async def test_the_fake_refuses_what_an_apiserver_refuses() -> None:
    api = FakeCluster()
    api.add_pod(POD)
    with pytest.raises(KubeError, match="409"):
        await api.bind("default", "p", uid="another", resource_version="1", node="n1", annotations={}, labels={})
    with pytest.raises(KubeError, match="409"):
        await api.bind("default", "p", uid=uid(POD), resource_version="0", node="n1", annotations={}, labels={})
    await api.bind("default", "p", uid=uid(POD), resource_version="1", node="n1", annotations={GPU: "x"}, labels={})
    with pytest.raises(KubeError, match="409"):
        await api.bind("default", "p", uid=uid(POD), resource_version="2", node="n1", annotations={}, labels={})
    with pytest.raises(KubeError, match="404"):
        await api.annotate_pod("default", "missing", {})
