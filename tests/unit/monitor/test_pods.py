"""The node's pods as the monitor needs them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tessera.kube.client import KubeClient
from tessera.kube.decoder import UnreadableObject
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.reflector import UnreadableObjectError
from tessera.monitor.container_dirs import Folder, Owner, RegionPlace, may_go, places
from tessera.monitor.pods import Cards, ClaimUsers, Pods, SeenPod, claim_users
from tessera.wire.objects import Container, Metadata, Pod, PodSpec, Workload
from tessera.wire.resource_api import DRIVER, ClaimingPod, ResourceClaim
from tests.unit.monitor.builders import GPU_A, GPU_B


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


MAIN, SIDE = Owner("uid-p", "main"), Owner("uid-p", "side")
DIR = "claim-uid-c-gpu"
SEEN = SeenPod("uid-p", "default", "p", ("main", "side"), cards=(Cards(), Cards()), has_claims=True)


def claiming_pod(*claims: dict[str, str], side: list[dict[str, str]] | None = None) -> ClaimingPod:
    """Its container `main` uses these claims, and `side` others."""
    spec = {
        "containers": [
            {"name": "main", "resources": {"claims": list(claims)}},
            {"name": "side", "resources": {"claims": side or []}},
        ],
        "resourceClaims": [{"name": "own", "resourceClaimName": "c"}],
    }
    return msgspec.convert({"metadata": {"name": "p", "uid": "uid-p"}, "spec": spec}, ClaimingPod)


def claim(*devices: tuple[str, str], driver: str = DRIVER, user: str = "uid-p") -> ResourceClaim:
    """Allocated; each device with its request."""
    results = [{"request": request, "driver": driver, "pool": "n", "device": name} for request, name in devices]
    status = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": "p", "uid": user}],
    }
    return msgspec.convert({"metadata": {"name": "c", "uid": "uid-c"}, "status": status}, ResourceClaim)


class Api(KubeClient):
    """Answers reads of a pod and its claim."""

    def __init__(self, pod: ClaimingPod, found: ResourceClaim | KubeError) -> None:
        self.pod = pod
        self.found = found
        self.reads = 0

    async def get(self, path: str, kind: type[Any]) -> Any:
        self.reads += 1
        if kind is ClaimingPod:
            return self.pod
        if isinstance(self.found, KubeError):
            raise self.found
        return self.found


@pytest.mark.parametrize(
    ("pod", "allocated", "users"),
    [
        (claiming_pod({"name": "own"}), claim(("gpu", "a")), [(DIR, MAIN, {"a"})]),
        (claiming_pod({"name": "own"}), claim(("gpu/large", "a"), ("gpu/large", "b")), [(DIR, MAIN, {"a", "b"})]),
        (
            claiming_pod({"name": "own", "request": "gpu"}, side=[{"name": "own", "request": "other"}]),
            claim(("gpu", "a"), ("other", "b")),
            [(DIR, MAIN, {"a"}), ("claim-uid-c-other", SIDE, {"b"})],
        ),
        (claiming_pod({"name": "own"}), claim(("nic", "a"), driver="nic.example.com"), []),
        (claiming_pod({"name": "unknown"}), claim(("gpu", "a")), []),
    ],
)
def test_a_container_has_the_directory_of_the_request_that_it_uses(
    pod: ClaimingPod, allocated: ResourceClaim, users: list[Any]
) -> None:
    assert [tuple(each) for each in claim_users(pod, {"c": allocated})] == users


async def test_a_directory_belongs_to_the_first_container_that_shares_it_with_the_cards_of_the_claim() -> None:
    api = Api(claiming_pod({"name": "own"}, side=[{"name": "own"}]), claim(("gpu", GPU_A.lower())))
    claims = ClaimUsers(api)
    assert await claims.look_up([SEEN], [DIR]) == ""
    assert claims.owners() == {DIR: MAIN}
    assert claims.granted([SEEN], [GPU_A, GPU_B]) == {MAIN: Cards({GPU_A}), SIDE: Cards()}
    assert claims.granted([SEEN], []) == {MAIN: None, SIDE: Cards()}


async def test_a_pod_is_looked_up_once_and_only_for_a_directory_that_is_not_known() -> None:
    api = Api(claiming_pod({"name": "own"}), claim(("gpu", "a")))
    claims = ClaimUsers(api)
    await claims.look_up([SEEN], [])
    assert api.reads == 0
    await claims.look_up([SEEN], [DIR])
    await claims.look_up([SEEN], [DIR, "claim-uid-of-another-pod-gpu"])
    assert api.reads == 2  # the pod and its claim
    await claims.look_up([], [])
    assert claims.owners() == {}


async def test_a_claim_that_is_not_reserved_for_the_pod_or_cannot_be_read_is_looked_up_again() -> None:
    api = Api(claiming_pod({"name": "own"}), claim(("gpu", "a"), user="uid-q"))
    claims = ClaimUsers(api)
    assert await claims.look_up([SEEN], [DIR]) == ""
    assert claims.owners() == {}
    api.found = ApiError(status=404)
    assert await claims.look_up([SEEN], [DIR]) == ""
    api.found = ApiError(status=403, message="you may not")
    assert (await claims.look_up([SEEN], [DIR])).startswith("claims of pod default/p: ")
    api.found = claim(("gpu", "a"))
    await claims.look_up([SEEN], [DIR])
    assert claims.owners() == {DIR: MAIN}


def test_the_region_of_a_claim_is_found_by_its_directory_which_the_monitor_never_removes() -> None:
    folder = Folder(DIR, None, 0.0, ("x.cache",))
    assert places([folder], [MAIN], {DIR: MAIN}) == {MAIN: RegionPlace(DIR, "x.cache")}
    assert places([folder], [MAIN]) == {}
    assert not may_go(folder, known=[], known_uids=[], now=1e9, interval=1.0)
