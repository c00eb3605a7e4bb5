"""Nodes and quotas of the API as the core sees them, and what a binding writes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tessera.vendors.node_reader import node_facts, quota_facts
from tessera.wire.objects import ResourceQuota, decode_object
from tests.support.builders import CORES, MEMORY, cluster, node, pod, vendors

DCU = "hami.io/node-dcu-register"


def test_a_node_has_the_cards_of_all_vendors_in_order() -> None:
    facts = node_facts(
        node()
        .gpu("z")
        .gpu("a")
        .annotate((DCU, "D,10,1000,100,DCU-K100,0,true:"))
        .capacity(**{"enflame.com/gcu": 1})
        .api(),
        vendors(),
    )
    assert [(device.vendor, device.uuid) for device in facts.devices] == [
        ("DCU", "D"),
        ("GCU", "n1-GCU-0"),
        ("NVIDIA", "z"),
        ("NVIDIA", "a"),
    ]
    assert facts.problem == ""


def test_a_node_that_registers_nothing_has_no_cards_and_no_problem() -> None:
    facts = node_facts(node().api(), vendors())
    assert (facts.devices, facts.problem, facts.cordoned, dict(facts.traits)) == ((), "", frozenset(), {})


def test_every_unreadable_registration_is_named_and_the_rest_is_kept() -> None:
    broken = node().gpu("G").annotate((DCU, "nonsense"), ("hami.io/node-amd-register", "{"))
    facts = node_facts(broken.capacity(**{"amd.com/gpu": 1}).api(), vendors())
    assert [device.uuid for device in facts.devices] == ["G"]
    first, second = facts.problem.split("; ", 1)
    assert first.startswith("AMD: hami.io/node-amd-register: ")
    assert second.startswith(f"DCU: {DCU}: ")


def test_a_card_of_two_vendors_belongs_to_neither() -> None:
    facts = node_facts(node().gpu("G").gpu("H").annotate((DCU, "G,10,1000,100,DCU-K100,0,true:")).api(), vendors())
    assert [device.uuid for device in facts.devices] == ["H"]
    assert facts.problem == "card G is registered by two vendors"


def test_cordons_are_trimmed_and_traits_are_only_those_that_somebody_reads() -> None:
    one = node().annotate(("hami.io/device-cordon", " a, b ,,"), ("hami-vnpu-core", "true"), ("other", "x"))
    facts = node_facts(one.api(), vendors())
    assert facts.cordoned == {"a", "b"}
    assert dict(facts.traits) == {"hami-vnpu-core": "true"}


@pytest.mark.no_cover
def test_thousands_of_cards_are_read() -> None:
    assert len(node_facts(node().gpus(4000).api(), vendors()).devices) == 4000


def limits(hard: dict[str, Any] | None) -> dict[str, int]:
    text = json.dumps({"metadata": {"name": "q", "namespace": "ns"}, "spec": {"hard": hard}})
    facts = quota_facts(decode_object(text, ResourceQuota), vendors())
    assert (facts.namespace, facts.name) == ("ns", "q")
    return dict(facts.limits)


@pytest.mark.parametrize(
    ("hard", "expected"),
    [
        (None, {}),
        ({}, {}),
        ({f"limits.{MEMORY}": "100", f"limits.{CORES}": 50}, {MEMORY: 100, CORES: 50}),
        ({f"limits.{MEMORY}": "2k"}, {MEMORY: 2000}),
        ({f"limits.{MEMORY}": "1500m"}, {MEMORY: 1}),
        ({f"limits.{MEMORY}": "0"}, {MEMORY: 0}),
        ({f"limits.{MEMORY}": "1e30"}, {MEMORY: 10**30}),
        ({f"limits.{MEMORY}": "nonsense"}, {}),
        ({MEMORY: "1", f"requests.{MEMORY}": "1", "limits.cpu": "1", "limits.nvidia.com/gpu": "1"}, {}),
    ],
)
def test_a_quota_is_reduced_to_limits_of_device_resources(
    hard: dict[str, Any] | None, expected: dict[str, int]
) -> None:
    assert limits(hard) == expected


def test_a_binding_writes_every_vendors_annotations_once() -> None:
    world = cluster(node().gpu("G").annotate((DCU, "D,10,1000,100,DCU-K100,0,true:")))
    dcu = {"hygon.com/dcunum": 1, "hygon.com/dcumem": 10, "hygon.com/dcucores": 1}
    asking = pod().container(gpu=1, mem=10).container(limits=dcu)
    written = world.written(asking, world.chosen(asking).placement)
    assert written == {
        "hami.io/vgpu-node": "n1",
        "hami.io/vgpu-time": "1700000000",
        "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": "1700000000",
        "hami.io/vgpu-devices-to-allocate": "G,NVIDIA,10,0:;;",
        "hami.io/vgpu-devices-allocated": "G,NVIDIA,10,0:;;",
        "hami.io/dcu-devices-to-allocate": ";D,DCU,10,1:;",
        "hami.io/dcu-devices-allocated": ";D,DCU,10,1:;",
    }
    world.start(asking)
    assert world.cards() == {"D": (1, 10, 1), "G": (1, 10, 0)}
