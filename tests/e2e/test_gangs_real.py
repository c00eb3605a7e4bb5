"""Gangs with a real kube-apiserver and a stock kube-scheduler: bound whole or not at all, whatever dies in between."""

from __future__ import annotations

import json

import pytest

from tessera.core.ledger.audit import audit
from tessera.kube.resources import POD_GROUPS, PODS
from tessera.services.failpoints import VARIABLE, Failpoint
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tessera_lab.sandbox.objects import condition_of
from tests.e2e.cluster import Cluster, cluster
from tests.e2e.cluster_check import replayed
from tests.e2e.control_plane import ControlPlane
from tests.e2e.replica import until
from tests.support.product import gpu_pod

POINTS = (Failpoint.AFTER_RESERVE, Failpoint.BEFORE_WRITE, Failpoint.AFTER_WRITE)


def nodes() -> list[SimulatedNode]:
    return [SimulatedNode(f"n{i}", gpu_cards(f"n{i}", 4), agent="env") for i in range(3)]


def gang(name: str, size: int, *, exist: int | None = None, **more: str) -> list[Json]:
    own = {"tessera.io/gang": name, "tessera.io/gang-size": str(size), **more}
    return [gpu_pod(f"{name}-{i}", annotations=own, gpu=1, cores=100) for i in range(size if exist is None else exist)]


def names(manifests: list[Json]) -> list[str]:
    return [each["metadata"]["name"] for each in manifests]


def bound(found: Cluster, manifests: list[Json]) -> int:
    return sum(bool(found.pod(name)["spec"].get("nodeName")) for name in names(manifests))


async def test_a_gang_waits_for_its_last_member_for_a_gate_and_for_its_size(plane: ControlPlane) -> None:
    """Three gangs in one cluster, because a refusal comes with a tick, for which all of them wait together."""
    members, gated = gang("train", 12), gang("gated", 3)
    gated[2]["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    sized = [gpu_pod(f"sized-{i}", gpu=1, cores=100) for i in range(3)]
    for member in sized:
        member["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "sized"}
    await make_pod_groups(plane)
    async with cluster(plane, nodes(), "--gang-timeout=1s") as found:
        incomplete = [*members[:11], *gated, *sized[:2]]
        await found.create(*incomplete)
        assert "gang " in await found.refused("train-0")
        words = "2 of 3 members exist"
        await found.wait_for(lambda: _refusal(found, "gated-0", words), what="the refusal of the gated gang")
        unknown = "its size is not known"
        await found.wait_for(lambda: _refusal(found, "sized-0", unknown), what="the refusal without a size")
        assert bound(found, incomplete) == 0
        small = gpu_pod("small", gpu=1, cores=100)
        await found.run(small)
        await found.delete("small")
        await found.gone("small")
        assert bound(found, incomplete) == 0

        kind = {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup"}
        group = {"metadata": {"name": "sized"}, "spec": {"minMember": 3}}
        await found.api.create(POD_GROUPS["scheduling.x-k8s.io"].path(found.namespace), {**kind, **group})
        await found.wait_for(lambda: _refusal(found, "sized-0", words), what="the refusal with the size")
        assert bound(found, incomplete) == 0
        await found.create(sized[2])
        await found.running(*names(sized))
        await found.api.patch(PODS.path(found.namespace, "gated-2"), {"spec": {"schedulingGates": None}})
        await found.running(*names(gated))
        assert bound(found, members[:11]) == 0

        await found.delete(*names(sized), *names(gated))
        await found.gone(*names(sized), *names(gated))
        assert bound(found, members[:11]) == 0
        await found.create(members[11])
        await found.running(*names(members))
        await found.at_rest()
        assert found.missing_rights() == set()


async def test_of_two_gangs_that_fit_alone_but_not_together_one_is_bound_whole(plane: ControlPlane) -> None:
    one, other = gang("a", 8), gang("b", 8)
    mixed = [each for pair in zip(one, other, strict=True) for each in pair]
    async with cluster(plane, nodes(), scheduling=False) as found:
        await found.create(*mixed)
        found.replica.kube_scheduler.start()
        await found.wait_for(lambda: 8 in (bound(found, one), bound(found, other)), what="one gang to be bound")
        first, second = (one, other) if bound(found, one) else (other, one)
        text = await found.refused(second[0]["metadata"]["name"])
        assert "4 of 8 members fit; short of 4 cards" in text
        assert bound(found, second) == 0
        # What autoscalers read: all of the gang's demand.
        for name in names(second):
            await found.refused(name)
            assert (condition_of(found.pod(name), "PodScheduled") or {})["reason"] == "Unschedulable"
        await found.delete(*names(first))
        await found.running(*names(second))


@pytest.mark.parametrize("hit", [1, 5])
@pytest.mark.parametrize("point", POINTS, ids=lambda point: str(point.value))
async def test_a_gang_is_whole_in_the_end_wherever_the_scheduler_dies(
    plane: ControlPlane, point: Failpoint, hit: int
) -> None:
    members, thieves = gang("train", 12), [gpu_pod(f"thief-{i}", gpu=1, cores=100) for i in range(3)]
    async with cluster(plane, nodes(), scheduling=False) as found:
        await found.create(*members)
        found.replica.kube_scheduler.start()
        tessera = found.replica.tessera
        tessera.kill()
        tessera.start(**{VARIABLE: f"{point.value}=kill@{hit}"})

        async def is_dead() -> bool:
            return not tessera.is_running

        await until(is_dead, what=f"the end at {point.value}")
        assert audit(await replayed(found.api)) == []
        is_begun = bound(found, members) > 0
        assert is_begun or hit == 1 or point is Failpoint.AFTER_RESERVE
        tessera.start()
        await found.replica.ready()
        if is_begun:
            # They would fit, were it not for what is missing of the gang.
            await found.create(*thieves)
        await found.running(*names(members))
        assert not is_begun or bound(found, thieves) == 0
        assert found.wrong_slices() == []


async def test_a_starving_gang_gets_its_turn_though_smaller_pods_wait_for_the_same_cards(plane: ControlPlane) -> None:
    fillers, thieves = ([gpu_pod(f"{name}-{i}", gpu=1, cores=100) for i in range(12)] for name in ("filler", "thief"))
    members = gang("train", 8)
    async with cluster(plane, nodes(), "--gang-starvation-timeout=1s") as found:
        await found.create(*fillers)
        await found.running(*names(fillers))
        await found.create(*members, *thieves[:8])
        await found.refused("train-7")
        await found.refused("thief-7")

        async def has_turn() -> bool:
            return "held for a starving gang" in found.replica.tessera.words()

        # A turn begins at the next tick.
        await until(has_turn, what="the turn of the gang")
        for name in names(fillers[:8]):
            await found.delete(name)
            await found.gone(name)
        await found.running(*names(members))
        assert bound(found, thieves[:8]) == 0
        await found.delete(*names(members))
        await found.running(*names(thieves[:8]))


async def make_pod_groups(plane: ControlPlane) -> None:
    """The CustomResourceDefinition of coscheduling's PodGroup, as far as it matters here."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
    document = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "podgroups.scheduling.x-k8s.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a copy for tests"},
        },
        "spec": {
            "group": "scheduling.x-k8s.io",
            "scope": "Namespaced",
            "names": {"plural": "podgroups", "singular": "podgroup", "kind": "PodGroup", "listKind": "PodGroupList"},
            "versions": [version],
        },
    }
    file = plane.folder / "podgroups.yaml"
    file.write_text(json.dumps(document))
    plane.kubectl("apply", "-f", str(file))
    plane.kubectl("wait", "--for=condition=established", "crd/podgroups.scheduling.x-k8s.io", "--timeout=240s")


async def test_a_group_that_kueue_has_admitted_is_planned_as_a_gang(plane: ControlPlane) -> None:
    """What Kueue's pod integration does: it gates the members at creation, and removes the gates one by one."""
    members = [gpu_pod(f"train-{i}", gpu=1, cores=100) for i in range(3)]
    for member in members:
        member["metadata"]["labels"] = {"kueue.x-k8s.io/pod-group-name": "train", "kueue.x-k8s.io/managed": "true"}
        member["metadata"]["annotations"] = {"kueue.x-k8s.io/pod-group-total-count": "3"}
        member["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    async with cluster(plane, nodes()) as found:
        await found.create(*members)
        assert (await found.replica.scrape()).value("tessera_gangs_planned") == 0
        for name in names(members):
            assert bound(found, members) == 0
            await found.api.patch(PODS.path(found.namespace, name), {"spec": {"schedulingGates": None}})
        await found.running(*names(members))


def _refusal(found: Cluster, name: str, words: str) -> str:
    for condition in found.pod(name).get("status", {}).get("conditions", ()):
        if condition["type"] == "PodScheduled" and words in condition.get("message", ""):
            return str(condition["message"])
    return ""
