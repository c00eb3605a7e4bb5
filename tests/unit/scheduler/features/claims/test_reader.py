"""Pods that wait for their claims, and what they ask for with them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tessera.scheduler.pod_cycle import UNSEEN_TICKS
from tessera.wire import keys
from tessera.wire.resource_api import DRIVER, ClaimStatus, ResourceClaim
from tests.support.builders import gpu_pod, node, pod
from tests.support.claim_scheduler import (
    PART,
    USER,
    ClaimWorld,
    agent_node,
    claiming,
    device_class,
    exact_request,
    published,
    ready,
    settle,
    templated,
    woken,
)
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step, never_sent

# -- the claim is not ready


def test_a_pod_waits_for_a_claim_that_is_not_made_yet_and_is_not_woken_before_it_names_it() -> None:
    world = ClaimWorld(agent_node().gpus(1))
    early, late = templated(pod()), templated(pod(), claim="p-gpu-x7")
    world.create(early)
    assert world.reason(early) == "the claim gpu of template small does not exist yet"
    assert len(world.unschedulable) == 0
    world.claim("p-gpu-x7", owner=early, **PART)
    world.create(late)
    assert woken(world) == [], "kube-scheduler asks again by itself when the pod names its claim"
    assert world.chosen(late) == "n1"


@pytest.mark.parametrize("is_gone_first", [True, False])
def test_a_pod_that_is_gone_is_not_woken_by_its_claim(is_gone_first: bool) -> None:
    world = ClaimWorld(agent_node().gpus(1))
    world.create(USER)
    assert world.reason(USER) == "ResourceClaim c does not exist yet"
    if not is_gone_first:
        world.claim("c", **PART)
    world.api.delete_pod("default/p")
    world.watch()
    if is_gone_first:
        world.claim("c", **PART)
    assert woken(world) == []


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_pod_that_was_gone_when_it_was_asked_for_is_forgotten_and_one_that_waits_is_not(is_gone: bool) -> None:
    world = ClaimWorld(agent_node().gpus(1))
    world.create(USER)
    if is_gone:
        world.api.delete_pod("default/p")
        world.watch()
    world.reason(USER)
    for _ in range(UNSEEN_TICKS + 1):
        world.claims.tick()
        asyncio.run(world.work())
    assert len(world.claims.reader.waiting()) == (not is_gone)


def test_a_pod_is_woken_by_its_claim_if_it_names_it_already() -> None:
    world = ClaimWorld(agent_node().gpus(1))
    asking = templated(pod(), claim="p-gpu-x7")
    world.create(asking)
    assert world.reason(asking) == "ResourceClaim p-gpu-x7 does not exist yet"
    world.claim("other", **PART)
    assert woken(world) == []
    world.claim("p-gpu-x7", owner=asking, **PART)
    assert woken(world) == ["uid-p"]


@in_fake_time
async def test_waking_a_pod_for_its_claim_takes_one_patch_and_is_repeated_if_it_fails() -> None:
    world = ClaimWorld(agent_node().gpus(1))
    asking = claiming(pod(), "c")
    world.create(asking)
    world.reason(asking)
    world.sync()
    world.api.script("annotate_pod", never_sent())
    waking = [asyncio.ensure_future(work()) for work in world.engine.work()]
    world.claim("c", **PART)
    await settle()
    assert world.api.calls == ["annotate_pod"]
    await asyncio.sleep(2.0)
    assert world.api.calls == ["annotate_pod", "annotate_pod"]
    assert keys.RETRY in world.api.pods["default/p"].annotations
    for task in waking:
        task.cancel()


@in_fake_time
async def test_a_pod_that_goes_while_it_is_woken_for_its_claim_is_not_remembered() -> None:
    world = ClaimWorld(agent_node().gpus(1))
    asking = claiming(pod(), "c")
    world.create(asking)
    world.reason(asking)
    world.sync()

    def delete() -> None:
        world.api.delete_pod("default/p")
        world.watch()

    world.api.script("annotate_pod", Step(error=never_sent(), meanwhile=delete))
    waking = [asyncio.ensure_future(work()) for work in world.engine.work()]
    world.claim("c", **PART)
    await settle()
    assert world.claims.take_ready() == {}
    for task in waking:
        task.cancel()


def test_a_claim_that_was_made_for_another_pod_is_not_used() -> None:
    world = ClaimWorld(agent_node().gpus(1))
    asking = templated(pod(), claim="x")
    world.claim("x", owner=pod("q"), **PART)
    world.create(asking)
    assert world.reason(asking) == "ResourceClaim x was not made for this pod"


@pytest.mark.parametrize(
    ("asks", "reason"),
    [
        ({"of_class": "net"}, "is not for devices of gpu.tessera.io alone; leave pods with such claims to the default"),
        ({"of_class": "none"}, 'the DeviceClass "none" does not exist'),
        ({"selector": "device.attributes[1]"}, "is not supported"),
    ],
)
def test_a_claim_that_is_not_served_is_refused_with_its_name_and_the_reason(asks: dict[str, Any], reason: str) -> None:
    world = ClaimWorld(agent_node().gpus(1))
    world.classes["net"] = device_class("net", "net.example.com")
    world.start()
    world.restart()
    world.claim("c", **asks)
    world.create(USER)
    text = world.reason(USER)
    assert text.startswith("ResourceClaim c: request gpu: ")
    assert reason in text


def test_a_pod_is_woken_when_the_class_of_its_claim_appears() -> None:
    world = ClaimWorld(agent_node().gpus(1))
    world.claim("c", of_class="gold", **PART)
    world.create(USER)
    world.reason(USER)
    world.claims.classes.put("gold", device_class("gold"))
    assert woken(world) == ["uid-p"]
    assert world.chosen(USER) == "n1"


def test_a_claim_that_was_read_before_its_class_was_known_is_read_again_once_it_is_released() -> None:
    world = ClaimWorld(agent_node().gpus(1))
    world.claim("c", of_class="gold", **PART)
    world.create(USER)
    world.reason(USER)
    world.api.change_claim("default/c", world.allocation("n1"))
    world.watch()
    world.claims.classes.put("gold", device_class("gold"))
    world.api.change_claim("default/c", ClaimStatus())
    world.watch()
    assert world.chosen(USER) == "n1"


def test_a_claim_that_is_being_deleted_is_not_allocated() -> None:
    world = ready()
    world.api.change_claim("default/c", deletion_timestamp="2026-01-01T00:00:00Z")
    world.watch()
    assert world.reason(USER) == "ResourceClaim c is being deleted"


def test_a_node_takes_claims_only_while_its_pool_is_complete_and_offers_them() -> None:
    built = agent_node().gpus(1)
    world = ClaimWorld(built)
    world.claim("c", **PART)
    world.create(USER)
    key = f"n1-{DRIVER}"
    for pool in (published(built, generation=2, count=2), published(built, generation=3, managed=False), None):
        if pool is None:
            world.claims.pools.drop(key)
        else:
            world.claims.pools.put(key, pool)
        assert "CardSelectorMismatch" in world.reason(USER)
    assert world.chosen(gpu_pod("classic", mem=10)) == "n1"
    rooms = world.room
    world.claims.pools.put(key, published(built, generation=4))
    assert world.room > rooms
    assert world.chosen(USER) == "n1"


# -- alternatives


def _either(name: str = "c") -> ResourceClaim:
    large = {"name": "large", **exact_request(memory=60000)}
    small = {"name": "small", **exact_request(memory=4096)}
    spec = {"devices": {"requests": [{"name": "gpu", "firstAvailable": [large, small]}]}}
    metadata = {"name": name, "namespace": "default", "uid": f"uid-claim-{name}"}
    return msgspec.convert({"metadata": metadata, "spec": spec}, ResourceClaim)


@in_fake_time
async def test_the_first_alternative_that_fits_is_allocated() -> None:
    world = ClaimWorld(agent_node().gpus(1))
    for name in ("c", "d"):
        world.api.add_claim(_either(name))
        await world.run(claiming(pod(name), name))
    results = [each.request for name in ("c", "d") for each in world.stored(name).devices_of(DRIVER)]
    assert results == ["gpu/large", "gpu/small"]
    assert world.agrees()


@in_fake_time
async def test_a_pod_is_woken_when_one_of_its_alternatives_fits() -> None:
    world = ClaimWorld(agent_node().gpus(1))
    world.create(holder := gpu_pod("q", mem=50000), other := gpu_pod("r", mem=30000))
    assert [world.chosen(each) for each in (holder, other)] == ["n1", "n1"]
    world.api.add_claim(_either())
    world.create(USER)
    assert "CardInsufficientMemory" in world.reason(USER)
    assert [each.uid async for each in world.unschedulable.wake(world.selector)] == []
    world.api.delete_pod("default/r")
    world.watch()
    assert [each.uid async for each in world.unschedulable.wake(world.selector)] == ["uid-p"]


# -- without --dra


def test_without_dra_claims_are_another_scheduler_s() -> None:
    world = ClaimWorld(agent_node().gpus(1), node("plain"))
    world.engine.request_reader.joins = ()
    assert world.filtered(USER)["NodeNames"] == ["n1", "plain"]
