"""ResourceClaims on a real control plane: kube-controller-manager makes them, Tessera allocates them, and a stock
profile of the same kube-scheduler allocates those that are not Tessera's."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import pytest

from tessera.core.ledger.audit import audit
from tessera.core.model.devices import NOTHING, Device
from tessera.kube.resources import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from tessera.services.failpoints import VARIABLE, Failpoint
from tessera.wire.resource_api import API_VERSION, DRIVER, ResourceClaim
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.nodes.containers import ClaimKey, Environments
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tessera_lab.sandbox.objects import node_of, uid_of
from tests.e2e.cluster import Cluster, cluster
from tests.e2e.cluster_check import replayed
from tests.e2e.conftest import Tell
from tests.e2e.control_plane import ControlPlane
from tests.e2e.replica import STOCK, until
from tests.support.builders import NodeBuilder
from tests.support.claim_scheduler import SCHEDULER, device_class, exact_request, published
from tests.support.product import container, pod

TEMPLATES = Resource("resource.k8s.io", "v1", "resourceclaimtemplates", True)
OTHER = "net.example.com"


class _Prepared:
    """Stands for the driver of a node: what containers get of claims is tested with a real kubelet."""

    async def prepare(self, claim: ClaimKey) -> Environments:
        return {}

    async def unprepare(self, claim: ClaimKey) -> None:
        pass


class ClaimNode(SimulatedNode):
    """Starts pods whose claims are allocated and reserved for them."""

    def claim_driver(self) -> _Prepared:
        return _Prepared()


def offered(name: str, cards: Sequence[Device], *, managed: bool = True) -> Json:
    """The ResourceSlice of a node."""
    built = NodeBuilder(name)
    for card in cards:
        built = built.gpu(card.uuid, memory=card.memory, slots=card.slots, model=card.model)
    body: Json = msgspec.to_builtins(published(built, managed=managed))
    body["spec"]["devices"] = [{k: v for k, v in each.items() if v} for each in body["spec"]["devices"]]
    return {"apiVersion": API_VERSION, "kind": "ResourceSlice", **body, "metadata": {"name": f"{name}-gpu"}}


@asynccontextmanager
async def claim_cluster(plane: ControlPlane, *, stock: int = 0, scheduling: bool = True) -> AsyncIterator[Cluster]:
    """Two nodes whose cards Tessera allocates, and `stock` nodes whose cards a stock kube-scheduler does."""
    nodes = [ClaimNode(name, gpu_cards(name, 2), agent="env") for name in ("n1", "n2")]
    nodes += [ClaimNode(f"s{number}", (), agent="env") for number in range(stock)]
    async with cluster(plane, nodes, "--dra", scheduling=scheduling) as found:
        classes = [("gpu", DRIVER), ("net", OTHER)]
        made: list[tuple[Resource, str]] = []
        try:
            for name, driver in classes:
                body = msgspec.to_builtins(device_class(name, driver))["spec"]
                spec = {"selectors": body["selectors"]}
                document = {"apiVersion": API_VERSION, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}
                await found.api.create(DEVICE_CLASSES.path(), document)
                made.append((DEVICE_CLASSES, name))
            for node in nodes:
                managed = not node.name.startswith("s")
                cards = node.cards if managed else gpu_cards(node.name, 1)
                body = offered(node.name, cards, managed=managed)
                await found.api.create(RESOURCE_SLICES.path(), body)
                made.append((RESOURCE_SLICES, f"{node.name}-gpu"))
            for name, asks in (
                ("small", {"memory": 4096, "cores": 10}),
                ("large", {"memory": 40000, "cores": 40}),
                ("net", {"of_class": "net"}),
            ):
                await make_template(found, name, **asks)
            yield found
        finally:
            for resource, name in made:
                await found.api.delete(resource.path(name=name))


def claim_spec(asks: dict[str, Any]) -> Json:
    exactly = exact_request(**{"of_class": "gpu", **asks})
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}


async def make_template(found: Cluster, name: str, **asks: Any) -> None:
    spec = {"spec": claim_spec(asks)}
    body = {"apiVersion": API_VERSION, "kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": spec}
    await found.api.create(TEMPLATES.path(found.namespace), body)


async def make_claim(found: Cluster, name: str, **asks: Any) -> None:
    body = {"apiVersion": API_VERSION, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": claim_spec(asks)}
    await found.api.create(RESOURCE_CLAIMS.path(found.namespace), body)


def claiming(
    name: str,
    *,
    template: str = "",
    claim: str = "",
    scheduler: str = SCHEDULER,
    amounts: Mapping[str, int] = NOTHING,
) -> Json:
    """A pod with one claim, and perhaps classic amounts beside it."""
    own = {"name": "gpu"} | ({"resourceClaimTemplateName": template} if template else {"resourceClaimName": claim})
    main = container("main", **amounts)
    main["resources"] = {**main["resources"], "claims": [{"name": "gpu"}]}
    return pod(name, main, resourceClaims=[own], schedulerName=scheduler)


def is_bound(found: Cluster, name: str) -> bool:
    return bool(node_of(found.pod(name)))


async def claims(found: Cluster) -> list[ResourceClaim]:
    return (await found.api.list(RESOURCE_CLAIMS.path(found.namespace), ResourceClaim)).items


def where(claim: ResourceClaim) -> list[str]:
    return [each.pool for each in claim.devices_of(DRIVER)]


async def no_claims(found: Cluster) -> None:
    async def none() -> bool:
        return not await claims(found)

    await until(none, what="the end of all claims")


async def test_pods_with_claims_and_classic_pods_share_cards(plane: ControlPlane, tell: Tell) -> None:
    async with claim_cluster(plane) as found:
        names = [f"p{number}" for number in range(12)]
        classic = {"gpu": 1, "mem": 1000, "cores": 10}
        manifests = [
            claiming(name, template="small", amounts=classic if number % 3 == 0 else {})
            for number, name in enumerate(names)
        ]
        began = time.perf_counter()
        await found.create(*manifests)
        await found.running(*names)
        taken = time.perf_counter() - began
        by_pod = {claim.status.reserved_for[0].uid: claim for claim in await claims(found) if claim.status.reserved_for}
        for name in names:
            own = by_pod[uid_of(found.pod(name))]
            assert where(own) == [node_of(found.pod(name))]
            assert own.devices_of(DRIVER)[0].consumed_capacity is not None
        writes = [each for each in found.requests() if each.writes and each.namespace == found.namespace]
        of_claims = sum(each.resource == "resourceclaims/status" for each in writes)
        others = [each.resource for each in writes if each.resource not in ("events", "resourceclaims/status")]
        assert of_claims == len(names)
        tell(f"claims: {len(names)} pods bound in {taken:.1f} s; writes beside claims: {len(others)}")
        await found.at_rest()
        await found.delete(*names)
        await found.gone(*names)
        await no_claims(found)
        await found.at_rest()


async def test_a_pod_is_bound_soon_after_its_claim_was_made(plane: ControlPlane, tell: Tell) -> None:
    async with claim_cluster(plane) as found:
        await found.run(claiming("warm", template="small"))
        times = []
        for number in range(5):
            name = f"p{number}"
            began = time.perf_counter()
            await found.create(claiming(name, template="small"))
            await found.wait_for(partial(is_bound, found, name), what=f"{name} to be bound")
            times.append(time.perf_counter() - began)
        told = ", ".join(f"{each:.2f}" for each in sorted(times))
        tell(f"claims: seconds from pod to bound, its claim made after it: {told}")


async def test_pods_that_share_a_claim_run_on_its_node_and_it_is_taken_back_after_the_last(plane: ControlPlane) -> None:
    async with claim_cluster(plane) as found:
        await make_claim(found, "team", memory=40000)
        names = [f"p{number}" for number in range(4)]
        await found.create(*(claiming(name, claim="team") for name in names))
        await found.running(*names)
        [claim] = await claims(found)
        assert {node_of(found.pod(name)) for name in names} == set(where(claim))
        assert len(claim.status.reserved_for or ()) == len(names)
        await found.at_rest()
        await found.delete(*names)
        await found.gone(*names)

        async def released() -> bool:
            [claim] = await claims(found)
            return claim.status.allocation is None

        await until(released, what="the claim to be released")
        await found.at_rest()


async def test_a_stock_profile_allocates_what_is_not_tesseras_and_nothing_else(plane: ControlPlane) -> None:
    async with claim_cluster(plane, stock=1) as found:
        ours, theirs = [f"p{n}" for n in range(4)], [f"d{n}" for n in range(3)]
        await found.create(
            *(claiming(name, template="small") for name in ours),
            *(claiming(name, template="small", scheduler=STOCK) for name in theirs),
        )
        await found.running(*ours, *theirs)
        assert {node_of(found.pod(name)) for name in theirs} == {"s0"}
        assert {node_of(found.pod(name)) for name in ours} <= {"n1", "n2"}
        await found.create(claiming("d9", template="large", scheduler=STOCK))
        await found.create(claiming("d8", template="large", scheduler=STOCK))
        assert "cannot allocate all claims" in await found.refused("d8")
        await found.at_rest()


@pytest.mark.parametrize("is_started_again", [False, True], ids=["", "and a restart"])
async def test_a_running_pod_keeps_its_card_when_its_claim_is_deleted(
    plane: ControlPlane, is_started_again: bool
) -> None:
    """As a user does who may edit claims, the finalizer included."""
    async with claim_cluster(plane) as found:
        names = [f"p{number}" for number in range(4)]
        await make_template(found, "whole")
        await found.create(*(claiming(name, template="whole") for name in names))
        await found.running(*names)
        deleted = await claims(found)
        for claim in deleted:
            path = RESOURCE_CLAIMS.path(found.namespace, claim.metadata.name)
            await found.api.delete(path)
            await found.api.patch(path, {"metadata": {"finalizers": None}}, kind=ResourceClaim)

        async def are_gone() -> bool:
            """kube-controller-manager makes new ones, which are not allocated."""
            gone = {claim.metadata.uid for claim in deleted}
            return gone.isdisjoint(claim.metadata.uid for claim in await claims(found))

        await until(are_gone, what="the end of the claims")
        if is_started_again:
            found.replica.tessera.kill()
            found.replica.tessera.start()
            await found.replica.ready()
        waiting = pod("q", container("main", gpu=1, mem=1000), schedulerName=SCHEDULER)
        await found.create(waiting)
        await found.refused("q")
        await found.at_rest()
        await found.delete("p0")
        await found.gone("p0")
        await found.running("q")
        await found.at_rest()


async def test_a_claim_for_another_driver_is_refused_with_a_reason(plane: ControlPlane) -> None:
    async with claim_cluster(plane) as found:
        await make_claim(found, "card", of_class="net")
        await found.create(claiming("p", claim="card"))
        assert "leave pods with such claims to the default scheduler" in await found.refused("p")


@pytest.mark.parametrize(
    "point", [Failpoint.BEFORE_CLAIM, Failpoint.AFTER_CLAIM, Failpoint.BEFORE_WRITE], ids=lambda point: str(point.value)
)
async def test_a_scheduler_that_dies_between_claim_and_binding_gives_nothing_twice(
    plane: ControlPlane, point: Failpoint
) -> None:
    """Four pods for whose claims there is room exactly once on each card."""
    async with claim_cluster(plane, scheduling=False) as found:
        names = [f"p{number}" for number in range(4)]
        await make_template(found, "whole")
        await found.create(*(claiming(name, template="whole") for name in names))
        tessera = found.replica.tessera
        tessera.kill()
        tessera.start(**{VARIABLE: f"{point.value}=kill@2"})
        found.replica.kube_scheduler.start()

        async def is_dead() -> bool:
            return not tessera.is_running

        await until(is_dead, what=f"the end at {point.value}")
        assert audit(await replayed(found.api)) == []
        tessera.start()
        await found.replica.ready()
        await found.running(*names)
        await found.at_rest()
