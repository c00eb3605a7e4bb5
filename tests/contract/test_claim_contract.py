"""What controllers do for ResourceClaims: those of templates are made, reserved, released, and removed with their pods.

The pods name a scheduler that does not exist, so that only the test and the controllers change their claims.
"""

from __future__ import annotations

import pytest

from tests.contract.client import Client, Json
from tests.contract.conftest import Space
from tests.contract.manifests import binding

PROTECTION = "resource.kubernetes.io/delete-protection"
OTHER_CONSUMER = {"apiGroup": "example.com", "resource": "machines", "name": "m", "uid": "m-1"}
EXACTLY = {"deviceClassName": "gpu.example.com", "capacity": {"requests": {"memory": "4096Mi"}}}
SPEC = {"devices": {"requests": [{"name": "gpu", "exactly": EXACTLY}]}}
RESULT = {"request": "gpu", "driver": "gpu.example.com", "pool": "n", "device": "gpu-0"}
ALLOCATION = {"devices": {"results": [RESULT]}}

pytestmark = pytest.mark.usefixtures("controllers")


class Claims:
    """Templates, claims and pods of one namespace."""

    def __init__(self, api: Client, space: Space) -> None:
        self.api = api
        self.space = space
        self.path = space.grouped("resource.k8s.io", "resourceclaims")

    async def template(self, name: str = "t") -> None:
        metadata = {"labels": {"team": "a"}, "annotations": {"note": "b"}}
        body = {"metadata": {"name": name}, "spec": {"metadata": metadata, "spec": SPEC}}
        await self.api.made(self.space.grouped("resource.k8s.io", "resourceclaimtemplates"), body)

    async def claim(self, *finalizers: str) -> None:
        await self.api.made(self.path, {"metadata": {"name": "c", "finalizers": [*finalizers]}, "spec": SPEC})

    async def pod(self, name: str = "p", *, finalizers: tuple[str, ...] = (), **source: str) -> Json:
        """A pod with one claim, `own`; by default of the template."""
        own = {"name": "own", **(source or {"resourceClaimTemplateName": "t"})}
        container = {"name": "c", "image": "busybox:1", "resources": {"claims": [{"name": "own"}]}}
        spec = {"containers": [container], "resourceClaims": [own], "schedulerName": "none"}
        metadata = {"name": name, "finalizers": [*finalizers]}
        return await self.api.made(self.space.pods(), {"metadata": metadata, "spec": spec})

    async def generated(self, pod: str = "p") -> Json:
        """The claim that the pod names in its status."""

        def named(found: Json) -> str:
            statuses: list[Json] = found.get("status", {}).get("resourceClaimStatuses") or [{}]
            return str(statuses[0].get("resourceClaimName", ""))

        found = await self.api.until(self.space.pods(), named, fieldSelector=f"metadata.name={pod}")
        assert [each["name"] for each in found["status"]["resourceClaimStatuses"]] == ["own"]
        claim: Json = (await self.api.get(f"{self.path}/{named(found)}")).body
        return claim

    async def allocate(self, name: str, *consumers: Json) -> None:
        """As a scheduler does."""
        claim = (await self.api.get(f"{self.path}/{name}")).body
        status = {"allocation": ALLOCATION, "reservedFor": [*consumers]}
        answer = await self.api.put(f"{self.path}/{name}/status", {**claim, "status": status})
        assert answer.status == 200, answer.message

    async def until(self, name: str, *, reserved: int, allocated: bool) -> Json:
        def holds(claim: Json) -> bool:
            status = claim.get("status", {})
            return (len(status.get("reservedFor", ())), "allocation" in status) == (reserved, allocated)

        return await self.api.until(self.path, holds, fieldSelector=f"metadata.name={name}")

    async def remove(self, pod: str) -> None:
        await self.api.delete(self.space.pods(pod), {"gracePeriodSeconds": 0})


@pytest.fixture
def claims(api: Client, space: Space) -> Claims:
    return Claims(api, space)


def consumer(pod: Json) -> Json:
    return {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}


async def test_a_claim_is_made_of_a_template_and_goes_with_its_pod(claims: Claims) -> None:
    await claims.template()
    uid = (await claims.pod())["metadata"]["uid"]
    made = await claims.generated()
    metadata = made["metadata"]
    assert metadata["name"].startswith("p-own-")
    assert metadata["generateName"] == "p-own-"
    assert metadata["labels"] == {"team": "a"}
    assert metadata["annotations"] == {"note": "b", "resource.kubernetes.io/pod-claim-name": "own"}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": True}
    assert metadata["ownerReferences"] == [owner]
    assert "finalizers" not in metadata
    [request] = made["spec"]["devices"]["requests"]
    assert request["exactly"]["capacity"] == {"requests": {"memory": "4Gi"}}
    assert not made.get("status")
    await claims.remove("p")
    await claims.api.until_gone(claims.path, metadata["name"])


async def test_a_pod_without_its_template_is_told_so_and_gets_a_claim_when_there_is_one(claims: Claims) -> None:
    uid = (await claims.pod())["metadata"]["uid"]
    told = await claims.api.until(
        claims.space.of("events"),
        lambda event: event["involvedObject"].get("uid") == uid and "ResourceClaim" in event["reason"],
    )
    assert (told["reason"], told["type"]) == ("FailedResourceClaimCreation", "Warning")
    assert told["message"].startswith('PodResourceClaim own: resource claim template "t": ')
    assert (await claims.api.get(claims.path)).body["items"] == []
    await claims.template()
    assert (await claims.generated())["metadata"]["ownerReferences"][0]["uid"] == uid


async def test_both_names_are_seen_in_the_name_of_a_claim_of_a_long_pod(claims: Claims) -> None:
    await claims.template()
    name = "a-very-long-name-of-a-pod-that-fills-the-name-of-a-claim-by-itself"
    await claims.pod(name)
    assert (await claims.generated(name))["metadata"]["generateName"] == f"{name[:52]}-ow"


@pytest.mark.parametrize("end", ["it has ended", "it was deleted before it was bound"])
async def test_a_generated_claim_goes_when_its_pod_will_not_run_any_more(claims: Claims, node: Json, end: str) -> None:
    """The pod itself stays."""
    await claims.template()
    pod = await claims.pod(finalizers=("example.com/kept",))
    name = (await claims.generated())["metadata"]["name"]
    await claims.allocate(name, consumer(pod))
    if end == "it has ended":
        await claims.api.made(claims.space.pods("p", "binding"), binding(node["metadata"]["name"]))
        await claims.api.patch(claims.space.pods("p", "status"), {"status": {"phase": "Succeeded"}})
    else:
        await claims.remove("p")
    await claims.api.until_gone(claims.path, name)
    await claims.api.patch(claims.space.pods("p"), {"metadata": {"finalizers": None}})


async def test_a_generated_claim_that_another_pod_uses_outlives_its_own_pod(claims: Claims) -> None:
    await claims.template()
    own = await claims.pod()
    name = (await claims.generated())["metadata"]["name"]
    other = await claims.pod("other", resourceClaimName=name)
    await claims.allocate(name, consumer(own), consumer(other))
    await claims.api.patch(claims.space.pods("p", "status"), {"status": {"phase": "Failed"}})
    left = await claims.until(name, reserved=1, allocated=True)
    assert left["status"]["reservedFor"] == [consumer(other)]
    assert "deletionTimestamp" not in left["metadata"]
    await claims.api.patch(claims.space.pods("other", "status"), {"status": {"phase": "Failed"}})
    await claims.api.until_gone(claims.path, name)


async def test_a_claim_that_pods_name_is_taken_back_after_the_last_one(claims: Claims) -> None:
    await claims.claim(PROTECTION)
    pods = [await claims.pod(name, resourceClaimName="c") for name in ("one", "two")]
    await claims.allocate("c", *map(consumer, pods))
    await claims.remove("one")
    left = await claims.until("c", reserved=1, allocated=True)
    assert left["status"]["reservedFor"] == [consumer(pods[1])]
    assert left["metadata"]["finalizers"] == [PROTECTION]
    assert "ownerReferences" not in left["metadata"]
    assert "resourceClaimStatuses" not in (await claims.api.get(claims.space.pods("two"))).body["status"]
    await claims.remove("two")
    await claims.until("c", reserved=0, allocated=False)
    await claims.api.until(claims.path, lambda claim: "finalizers" not in claim["metadata"])


async def test_the_devices_of_a_claim_without_the_finalizer_are_not_taken_back(claims: Claims) -> None:
    await claims.claim()
    await claims.allocate("c", consumer(await claims.pod(resourceClaimName="c")))
    await claims.remove("p")
    await claims.until("c", reserved=0, allocated=True)


async def test_consumers_that_are_not_pods_keep_a_claim(claims: Claims) -> None:
    await claims.claim(PROTECTION)
    await claims.allocate("c", OTHER_CONSUMER, consumer(await claims.pod(resourceClaimName="c")))
    await claims.remove("p")
    left = await claims.until("c", reserved=1, allocated=True)
    assert left["status"]["reservedFor"] == [OTHER_CONSUMER]


async def test_a_claim_that_is_deleted_while_a_pod_uses_it_waits_for_the_pod(claims: Claims) -> None:
    await claims.claim(PROTECTION)
    await claims.allocate("c", consumer(await claims.pod(resourceClaimName="c")))
    await claims.api.delete(f"{claims.path}/c")
    assert "deletionTimestamp" in (await claims.api.get(f"{claims.path}/c")).body["metadata"]
    await claims.remove("p")
    await claims.api.until_gone(claims.path, "c")


async def test_a_protected_claim_that_no_pod_uses_can_be_deleted(claims: Claims) -> None:
    await claims.claim(PROTECTION)
    await claims.allocate("c")
    await claims.api.delete(f"{claims.path}/c")
    await claims.api.until_gone(claims.path, "c")


async def test_a_claim_is_reserved_for_a_pod_that_was_bound_without_it(claims: Claims, node: Json) -> None:
    await claims.claim(PROTECTION)
    pod = await claims.pod(resourceClaimName="c")
    await claims.allocate("c")
    await claims.api.made(claims.space.pods("p", "binding"), binding(node["metadata"]["name"]))
    found = await claims.until("c", reserved=1, allocated=True)
    assert found["status"]["reservedFor"] == [consumer(pod)]
