"""Claims for the cluster benchmark: the same devices and the same claims for Tessera and for a stock kube-scheduler.

All devices have the taint of those that Tessera allocates, and the stock side's claims tolerate it. Nothing else
differs: one ResourceSlice per node, one generated claim per pod.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from bench.cluster_pods import MEASURED, SHAPES
from bench.cluster_rounds import STOCK, TESSERA, Bench, Side, bench, kube_scheduler, several, until
from tessera.kube.client import KubeClient
from tessera.kube.resources import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from tessera.wire.resource_api import API_VERSION, DRIVER, MANAGED
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.nodes.node import SimulatedNode
from tests.e2e.control_plane import ControlPlane
from tests.e2e.replica import FromFiles, Replica
from tests.support.builders import NodeBuilder
from tests.support.claim_scheduler import device_class, exact_request, published

TEMPLATES = Resource("resource.k8s.io", "v1", "resourceclaimtemplates", True)
MIB = 2**20


def slice_of(node: SimulatedNode) -> Json:
    """What the agent of a node publishes."""
    built = NodeBuilder(node.name)
    for card in node.cards:
        built = built.gpu(card.uuid, memory=card.memory, slots=card.slots, model=card.model)
    body: Json = msgspec.to_builtins(published(built))
    return {"apiVersion": API_VERSION, "kind": "ResourceSlice", **body, "metadata": {"name": node.name}}


def templates() -> list[Json]:
    """One for each shape and side."""
    made = []
    for side in (STOCK, TESSERA):
        for number, (memory, cores) in enumerate(SHAPES):
            exactly = exact_request(memory=memory, cores=cores)
            if side == STOCK:
                exactly["tolerations"] = [{"key": MANAGED, "operator": "Exists"}]
            spec = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
            made.append(_object("ResourceClaimTemplate", f"{_dns(side)}-{number}", spec))
    return made


def claim_pods(side: Side, count: int) -> list[Json]:
    """Pods with a claim each."""
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"p{number:04}", "namespace": MEASURED},
            "spec": {
                "schedulerName": "hami-scheduler",
                "resourceClaims": [
                    {"name": "gpu", "resourceClaimTemplateName": f"{_dns(side.name)}-{number % len(SHAPES)}"}
                ],
                "containers": [
                    {
                        "name": "main",
                        "image": "image",
                        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "claims": [{"name": "gpu"}]},
                    }
                ],
            },
        }
        for number in range(count)
    ]


def _dns(side: str) -> str:
    return side.replace("_", "-")


def _object(kind: str, name: str, spec: Any) -> Json:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def claim_sides(plane: ControlPlane) -> dict[str, Side]:
    """Two sides, not started: a kube-scheduler that allocates claims by itself, and one that leaves them to Tessera."""
    replica = Replica(plane, "--dra", label="bench", certificates=FromFiles(plane.folder / "webhook.pem"))
    profiles = [{"schedulerName": each["schedulerName"]} for each in replica.configuration["profiles"]]
    plain = replica.configuration | {"extenders": [], "profiles": profiles}
    # By its own default it looks at a part of the nodes only, which is quicker.
    del plain["percentageOfNodesToScore"]
    return {
        STOCK: Side(STOCK, kube_scheduler(plane, STOCK, plain)),
        TESSERA: Side(TESSERA, replica.kube_scheduler, replica.tessera, f"{replica.extender_url}/readyz"),
    }


@asynccontextmanager
async def claim_bench(node_count: int) -> AsyncIterator[Bench]:
    """A control plane whose nodes offer their cards to claims."""
    async with bench(node_count, make_sides=claim_sides) as found:
        selectors = msgspec.to_builtins(device_class())["spec"]["selectors"]
        await found.api.create(DEVICE_CLASSES.path(), _object("DeviceClass", DRIVER, {"selectors": selectors}))
        for template in templates():
            await found.api.create(TEMPLATES.path(MEASURED), template)
        await publish(found.api, found.nodes)
        found.make_pods = claim_pods
        found.is_clear = lambda: no_claims(found.api)
        yield found


async def publish(api: KubeClient, nodes: Sequence[SimulatedNode]) -> None:
    await several((api.create(RESOURCE_SLICES.path(), slice_of(node)) for node in nodes), what="slices")


async def no_claims(api: KubeClient) -> None:
    """Waits until the claims of earlier pods are gone."""

    async def are_gone() -> bool:
        return not (await api.list(RESOURCE_CLAIMS.path(MEASURED), dict[str, Any])).items

    await until(are_gone, what="the end of the claims")
