"""What the agent needs with `--dra`: ResourceSlices that it writes and watches, and ResourceClaims that it reads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.contract.client import Client, Json
from tests.contract.conftest import Space

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
DRIVER = "gpu.example.com"


def device(name: str = "gpu-0", **more: Any) -> Json:
    policy = {"default": "81920Mi", "validRange": {"min": "1Mi", "max": "81920Mi", "step": "1Mi"}}
    return {
        "name": name,
        "attributes": {"index": {"int": 0}, "driverVersion": {"version": "580.65.6"}},
        "capacity": {
            "memory": {"value": "81920Mi", "requestPolicy": policy},
            "cores": {"value": "1000", "requestPolicy": {"default": "0", "validRange": {"min": "0", "step": "1"}}},
            "shares": {"value": "10", "requestPolicy": {"default": "1", "validValues": ["1"]}},
        },
        "allowMultipleAllocations": True,
        **more,
    }


def resource_slice(node: str, *devices: Json, number: int = 0, generation: int = 1, **spec: Any) -> Json:
    pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
    content: Json = {"driver": DRIVER, "nodeName": node, "pool": pool, **spec}
    if devices:
        content["devices"] = list(devices)
    return {"metadata": {"name": f"{node}-{number}"}, "spec": content}


@pytest.fixture
async def named(api: Client, node: Json) -> AsyncIterator[str]:
    """The name of a node, whose slices are removed afterwards."""
    name = node["metadata"]["name"]
    yield name
    for each in (await api.get(SLICES, fieldSelector=f"spec.nodeName={name}")).body["items"]:
        await api.delete(f"{SLICES}/{each['metadata']['name']}")


async def test_quantities_are_stored_in_the_shortest_form(api: Client, named: str) -> None:
    made = await api.made(SLICES, resource_slice(named, device()))
    capacity = made["spec"]["devices"][0]["capacity"]
    assert capacity["memory"] == {
        "value": "80Gi",
        "requestPolicy": {"default": "80Gi", "validRange": {"min": "1Mi", "max": "80Gi", "step": "1Mi"}},
    }
    assert capacity["cores"]["value"] == "1k"
    assert made["spec"]["devices"][0]["allowMultipleAllocations"] is True
    assert (made["metadata"]["generation"], made["spec"]["pool"]["generation"]) == (1, 1)


async def test_a_watch_shows_the_slices_of_one_node_and_driver(api: Client, named: str) -> None:
    selector = f"spec.nodeName={named},spec.driver={DRIVER}"
    version = (await api.get(SLICES)).body["metadata"]["resourceVersion"]
    async with api.watch(SLICES, resourceVersion=version, fieldSelector=selector) as watch:
        await api.made(SLICES, resource_slice(named, device(), number=1, driver="other.example.com"))
        made = await api.made(SLICES, resource_slice(named, device()))
        assert (await watch.expect("ADDED"))["metadata"]["uid"] == made["metadata"]["uid"]
        made["spec"]["pool"]["generation"] = 2
        answer = await api.put(f"{SLICES}/{named}-0", made)
        assert answer.status == 200
        assert (await watch.expect("MODIFIED"))["spec"]["pool"]["generation"] == 2
        await api.delete(f"{SLICES}/{named}-0")
        assert (await watch.expect("DELETED"))["metadata"]["name"] == f"{named}-0"


async def test_a_slice_changed_meanwhile_is_not_replaced(api: Client, named: str) -> None:
    made = await api.made(SLICES, resource_slice(named, device()))
    newer = {**made, "spec": {**made["spec"], "devices": [device(), device("gpu-1")]}}
    assert (await api.put(f"{SLICES}/{named}-0", newer)).status == 200
    answer = await api.put(f"{SLICES}/{named}-0", made)
    assert (answer.status, answer.reason) == (409, "Conflict")


@pytest.mark.parametrize("change", [{"driver": "other.example.com"}, {"nodeName": "another"}])
async def test_driver_and_node_of_a_slice_never_change(api: Client, named: str, change: Json) -> None:
    made = await api.made(SLICES, resource_slice(named, device()))
    answer = await api.put(f"{SLICES}/{named}-0", {**made, "spec": {**made["spec"], **change}})
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert "field is immutable" in answer.message


async def test_a_slice_has_devices_or_counters(api: Client, named: str) -> None:
    counters = [{"name": "card", "counters": {"memory-slice-0": {"value": "1"}}}]
    both = await api.post(SLICES, resource_slice(named, device(), sharedCounters=counters))
    assert (both.status, both.reason) == (422, "Invalid")
    await api.made(SLICES, resource_slice(named, sharedCounters=counters))


async def test_taints_are_kept(api: Client, named: str) -> None:
    taint = {"key": "gpu.example.com/unhealthy", "effect": "NoSchedule"}
    made = await api.made(SLICES, resource_slice(named, device(taints=[taint])))
    (kept,) = made["spec"]["devices"][0]["taints"]
    assert (kept["key"], kept["effect"]) == (taint["key"], taint["effect"])


async def test_a_claim_shows_what_was_allocated(api: Client, space: Space) -> None:
    requests = {"memory": "4096Mi", "cores": "30"}
    exactly = {"deviceClassName": "gpu.example.com", "capacity": {"requests": requests}}
    claim = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
    claims = space.grouped("resource.k8s.io", "resourceclaims")
    made = await api.made(claims, claim)
    assert "status" not in made or not made["status"]
    assert made["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"] == {"memory": "4Gi", "cores": "30"}
    result = {
        "request": "gpu",
        "driver": DRIVER,
        "pool": "n",
        "device": "gpu-0",
        "shareID": "8aa3d0c1-7b6f-4d5a-9d2f-7a5a5a4b2f11",
        "consumedCapacity": {"memory": "4096Mi", "cores": "30", "shares": "1"},
    }
    made["status"] = {"allocation": {"devices": {"results": [result]}}}
    answer = await api.put(f"{claims}/c/status", made)
    assert answer.status == 200, answer.message
    (found,) = (await api.get(f"{claims}/c")).body["status"]["allocation"]["devices"]["results"]
    assert found == result | {"consumedCapacity": {"memory": "4Gi", "cores": "30", "shares": "1"}}
    # What it asks for never changes.
    changed = {**answer.body, "spec": {"devices": {"requests": [{"name": "other", "exactly": exactly}]}}}
    assert (await api.put(f"{claims}/c", changed)).status == 422
