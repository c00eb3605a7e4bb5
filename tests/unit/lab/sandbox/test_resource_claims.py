"""ResourceClaims in the sandbox: made of templates, prepared on nodes, and released, as kube-controller-manager and
kubelet do it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tessera.kube.resources import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from tessera_lab.sandbox.api.kinds import RESOURCE_CLAIMS as CLAIM_KIND
from tessera_lab.sandbox.control_plane import ControlPlane
from tessera_lab.sandbox.controllers.resource_claim import POD_CLAIM, PROTECTION
from tessera_lab.sandbox.nodes.allocation import AllocateError
from tessera_lab.sandbox.nodes.containers import ClaimDriver, ClaimKey, Environments
from tessera_lab.sandbox.nodes.kubelet import RUN_FOR
from tessera_lab.sandbox.nodes.node import SimulatedNode
from tests.support.event_loops import in_fake_time

Json = dict[str, Any]

REQUESTS = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "c"}}]}}
ALLOCATION = {"devices": {"results": [{"request": "gpu", "driver": "d.example", "pool": "n", "device": "x"}]}}


class Driver:
    """Gives each claim its own name; the first calls fail."""

    def __init__(self, *, failures: int = 0) -> None:
        self.prepared: list[str] = []
        self._failures = failures

    async def prepare(self, claim: ClaimKey) -> Environments:
        if self._failures:
            self._failures -= 1
            raise AllocateError("not yet")
        if claim.name not in self.prepared:
            self.prepared.append(claim.name)
        return {"gpu": {"CLAIM": claim.name}, "other": {"OTHER": claim.name}}

    async def unprepare(self, claim: ClaimKey) -> None:
        self.prepared.remove(claim.name)


class DriverNode(SimulatedNode):
    driver: Driver | None = None

    def claim_driver(self) -> ClaimDriver | None:
        return self.driver


class Cluster:
    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane

    async def template(self, name: str = "t") -> None:
        spec = {"metadata": {"labels": {"team": "a"}}, "spec": REQUESTS}
        await self.plane.client.create(
            RESOURCE_CLAIM_TEMPLATES.path("default"), {"metadata": {"name": name}, "spec": spec}
        )

    async def claim(self, name: str) -> None:
        body = {"metadata": {"name": name, "finalizers": [PROTECTION]}, "spec": REQUESTS}
        await self.plane.client.create(RESOURCE_CLAIMS.path("default"), body)

    async def pod(self, name: str, claim: Json, *, uses: Json | None = None, annotations: Json | None = None) -> str:
        """Its uid."""
        container = {"name": "c", "image": "i", "resources": {"claims": [{"name": "own", **(uses or {})}]}}
        spec = {"containers": [container], "resourceClaims": [{"name": "own", **claim}], "schedulerName": "none"}
        made = await self.plane.create_pod({"metadata": {"name": name, "annotations": annotations or {}}, "spec": spec})
        return str(made["metadata"]["uid"])

    async def allocate(self, claim: str, **users: str) -> None:
        """As a scheduler does; `users` are the uids of pods by name."""
        path = RESOURCE_CLAIMS.path("default", claim)
        found = await self.plane.client.get(path, dict[str, Any])
        reserved = [{"resource": "pods", "name": name, "uid": uid} for name, uid in users.items()]
        body = {**found, "status": {"allocation": ALLOCATION, "reservedFor": reserved}}
        await self.plane.client.replace(f"{path}/status", body)
        for name in users:
            pod = self.plane.pod("default", name)
            if pod is not None and not pod["spec"].get("nodeName"):
                target = {"target": {"kind": "Node", "name": "n"}, "metadata": {"name": name}}
                await self.plane.client.create(PODS.path("default", name, "binding"), target)

    def claims(self) -> list[Json]:
        return [stored.object for stored in self.plane.server.cluster.store.list(CLAIM_KIND, "default")]

    def runs(self, name: str) -> bool:
        return self.plane.phase("default", name) == "Running"


@asynccontextmanager
async def cluster(driver: Driver | None = None) -> AsyncIterator[Cluster]:
    node = DriverNode("n")
    node.driver = driver
    async with ControlPlane(nodes=[node]) as plane:
        yield Cluster(plane)


def name_in_status(on: Cluster, pod: str) -> str:
    statuses = ((on.plane.pod("default", pod) or {}).get("status") or {}).get("resourceClaimStatuses") or []
    return statuses[0]["resourceClaimName"] if statuses else ""


@in_fake_time
async def test_a_pod_gets_a_claim_of_its_template_which_goes_with_it() -> None:
    async with cluster() as on:
        uid = await on.pod("p", {"resourceClaimTemplateName": "t"})
        await on.template()  # It may come later than the pod.
        name = await on.plane.wait_for(lambda: name_in_status(on, "p"))
        [claim] = on.claims()
        metadata = claim["metadata"]
        assert (metadata["name"], metadata["labels"], metadata["annotations"]) == (
            name,
            {"team": "a"},
            {POD_CLAIM: "own"},
        )
        assert name.startswith("p-own-")
        [owner] = metadata["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("Pod", uid, True)
        assert claim["spec"]["devices"]["requests"][0]["name"] == "gpu"
        await on.plane.delete_pod("default", "p", grace_s=0)
        await on.plane.wait_for(lambda: not on.claims())


@in_fake_time
async def test_a_claim_that_people_made_is_released_when_its_last_pod_has_gone() -> None:
    async with cluster(Driver()) as on:
        await on.claim("shared")
        users = {name: await on.pod(name, {"resourceClaimName": "shared"}) for name in ("one", "other")}
        await on.allocate("shared", **users)
        await on.plane.wait_for(lambda: on.runs("one") and on.runs("other"))
        await on.plane.delete_pod("default", "one")
        await on.plane.wait_for(lambda: len(on.claims()[0]["status"].get("reservedFor", ())) == 1)
        assert on.claims()[0]["status"]["allocation"] == ALLOCATION
        await on.plane.delete_pod("default", "other")
        await on.plane.wait_for(lambda: "finalizers" not in on.claims()[0]["metadata"])
        assert on.claims()[0].get("status", {}) == {}


@in_fake_time
async def test_a_claim_that_is_protected_and_not_allocated_yet_is_left_alone() -> None:
    async with cluster() as on:
        await on.claim("early")
        await on.template()
        await on.pod("p", {"resourceClaimTemplateName": "t"})
        await on.plane.wait_for(lambda: name_in_status(on, "p"))  # The controller has worked since.
        assert on.claims()[0]["metadata"]["finalizers"] == [PROTECTION]
        await on.plane.client.delete(RESOURCE_CLAIMS.path("default", "early"))
        await on.plane.wait_for(lambda: len(on.claims()) == 1)


@in_fake_time
async def test_the_claim_of_a_pod_that_ended_is_unprepared_and_deleted() -> None:
    driver = Driver()
    async with cluster(driver) as on:
        await on.template()
        uid = await on.pod("p", {"resourceClaimTemplateName": "t"}, annotations={RUN_FOR: "5"})
        name = await on.plane.wait_for(lambda: name_in_status(on, "p"))
        await on.allocate(name, p=uid)
        await on.plane.wait_for(lambda: driver.prepared == [name])
        await on.plane.wait_for(lambda: on.plane.phase("default", "p") == "Succeeded")
        await on.plane.wait_for(lambda: not on.claims() and not driver.prepared)


@in_fake_time
async def test_a_pod_starts_once_its_claim_is_prepared_and_its_container_sees_the_request_that_it_names() -> None:
    driver = Driver(failures=3)
    async with cluster(driver) as on:
        await on.claim("shared")
        users = {"one": await on.pod("one", {"resourceClaimName": "shared"}, uses={"request": "gpu"})}
        users["other"] = await on.pod("other", {"resourceClaimName": "shared"})
        await on.allocate("shared", **users)
        await on.plane.wait_for(lambda: on.runs("one") and on.runs("other"))
        seen = on.plane.nodes["n"].containers
        assert seen[users["one"], "c"].env.items() >= {"CLAIM": "shared"}.items()
        assert "OTHER" not in seen[users["one"], "c"].env
        assert seen[users["other"], "c"].env["OTHER"] == "shared"
        await on.plane.delete_pod("default", "one")
        await on.plane.wait_for(lambda: on.plane.pod("default", "one") is None)
        assert driver.prepared == ["shared"]  # The other pod still uses it.
        await on.plane.delete_pod("default", "other")
        await on.plane.wait_for(lambda: not driver.prepared)


@in_fake_time
async def test_a_pod_whose_claim_is_not_reserved_for_it_does_not_start() -> None:
    driver = Driver()
    async with cluster(driver) as on:
        await on.claim("c")
        uid = await on.pod("p", {"resourceClaimName": "c"})
        await on.allocate("c", p="another")
        await asyncio.sleep(60.0)
        assert not on.runs("p")
        assert driver.prepared == []
        await on.allocate("c", p=uid)
        await on.plane.wait_for(lambda: on.runs("p"))
