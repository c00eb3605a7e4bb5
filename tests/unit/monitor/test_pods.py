"""The node's pods as the monitor needs them."""

from __future__ import annotations

import pytest

from tessera.kube.decoder import UnreadableObject
from tessera.kube.errors import KubeError
from tessera.kube.reflector import UnreadableObjectError
from tessera.monitor.container_dirs import Owner
from tessera.monitor.pods import Pods, SeenPod
from tessera.wire.objects import Container, Metadata, Pod, PodSpec, Workload


def unreadable(uid: str) -> UnreadableObject:
    return UnreadableObject(type="", namespace="team", name="x", uid=uid, resource_version="1", problem="nonsense")


def pod(name: str, uid: str) -> Pod:
    return Pod(
        Metadata(name=name, namespace="team", uid=uid, annotations={"hami.io/vgpu-mig-allocations": "[]"}),
        PodSpec(containers=[Container("main")], init_containers=[Container("prepare")]),
    )


async def test_pods_come_with_their_containers_and_go() -> None:
    pods = Pods()
    pods.put("team/b", pod("b", "uid-b"))
    pods.put("team/a", pod("a", "uid-a"))
    pods.put("team/c", Pod(Metadata(name="c", namespace="team", uid="uid-c")))
    assert not pods.ready.is_set()
    pods.synced()
    assert pods.ready.is_set()
    assert pods.all()[0] == SeenPod("uid-a", "team", "a", ("prepare", "main"), "[]", workload=Workload("team"))
    assert pods.all()[0].owners == (Owner("uid-a", "prepare"), Owner("uid-a", "main"))
    assert pods.uids() == {"uid-a", "uid-b", "uid-c"}
    pods.drop("team/a")
    pods.drop("team/a")
    assert [each.name for each in pods.all()] == ["b", "c"]


async def test_a_pod_that_cannot_be_read_is_known_to_exist() -> None:
    pods = Pods()
    pods.on_error(UnreadableObjectError(unreadable("uid-x")))
    pods.on_error(UnreadableObjectError(unreadable("")))
    pods.on_error(KubeError("away"))
    assert pods.uids() == {"uid-x"}
    assert pods.all() == ()


@pytest.mark.parametrize(
    ("text", "main"),
    [
        (None, None),
        (";GPU-a,NVIDIA,3000,50:GPU-b,NVIDIA,1,1:;", frozenset({"GPU-a", "GPU-b"})),
        ("GPU-a,NVIDIA,3000,50:;", frozenset()),
        ("", frozenset()),
        ("nonsense", frozenset()),
        ("GPU-a,NVIDIA,99999999999999999999,1:;", frozenset()),
    ],
)
async def test_a_container_may_speak_of_the_cards_that_it_was_given(
    text: str | None, main: frozenset[str] | None
) -> None:
    pods = Pods()
    told = {} if text is None else {"hami.io/vgpu-devices-allocated": text}
    spec = PodSpec(containers=[Container("main")], init_containers=[Container("prepare")])
    pods.put("team/a", Pod(Metadata(name="a", namespace="team", uid="uid-a", annotations=told), spec))
    assert pods.all()[0].granted[Owner("uid-a", "main")] == main
