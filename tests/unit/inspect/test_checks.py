"""What `tessera doctor` finds in the objects of a cluster: claims, nodes, ledger, cordons and quotas."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec import convert

from tessera.inspect.checks import Finding, Severity
from tessera.inspect.checks.ledger import check_claims, check_ledger, check_quotas
from tessera.inspect.checks.nodes import check_nodes
from tessera.inspect.diagnosis import diagnosis_lines, is_broken
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.wire.registration import encode_requesting
from tessera.wire.resource_api import DeviceClass, ResourceClaim
from tests.support.builders import GPU, NOW, NodeBuilder, gpu_pod, node, pod, vendors
from tests.support.claim_scheduler import claiming, device_class, published, resource_claim
from tests.support.cluster_states import claim_objects, document_of, held, not_fine, state_of

MODEL = "device.attributes['gpu.tessera.io'].model {}"


def made_class(name: str, *expressions: str) -> DeviceClass:
    selectors = [{"cel": {"expression": each}} for each in expressions]
    return convert({"metadata": {"name": name}, "spec": {"selectors": selectors}}, DeviceClass)


def tolerating(operator: str, key: str) -> dict[str, Any]:
    exact = {"deviceClassName": "gpu.tessera.io", "tolerations": [{"operator": operator, "key": key}]}
    return {"devices": {"requests": [{"name": "gpu", "exactly": exact}]}}


def doubtful_claims(*claims: ResourceClaim, pods: Any = (), **objects: Any) -> list[Finding]:
    nodes = [node("n1").gpus(1)]
    return not_fine(check_claims(OfflineCluster(state_of(nodes, pods, dra=claim_objects(nodes, claims, **objects)))))


async def test_claims_that_are_as_they_should_be_are_fine() -> None:
    bound = claiming(pod("p").on("n1"), "c")
    assert doubtful_claims(held(resource_claim("c"), "n1-0", bound), resource_claim("waits"), pods=[bound]) == []


@pytest.mark.parametrize(
    ("claims", "objects", "words"),
    [
        ([held(resource_claim("c"), "n1-0", pod("gone"))], {}, "reserved for pod gone, which does not exist any more"),
        ([], {"classes": [device_class(), device_class("a")], "templates": []}, ""),
        (
            [],
            {"classes": [made_class("none", "device.driver == 'gpu.tessera.io'", MODEL.format("== 'H100'"))]},
            "DeviceClass none matches none of the devices",
        ),
        (
            [],
            {"classes": [made_class("odd", "device.driver == 'gpu.tessera.io' && [1].map(x, x).size() > 0")]},
            "DeviceClass odd has a selector that Tessera does not support",
        ),
        (
            [],
            {"templates": [{"metadata": {"name": "t", "namespace": "d"}, "spec": {"spec": tolerating("Exists", "")}}]},
            'ResourceClaimTemplate d/t: request "gpu" tolerates the taint gpu.tessera.io/managed',
        ),
        (
            [],
            {"templates": [{"metadata": {"name": "t", "namespace": "d"}, "spec": {"spec": tolerating("", "other")}}]},
            "",
        ),
    ],
)
async def test_what_is_wrong_with_claims_is_found(claims: Any, objects: Any, words: str) -> None:
    found = doubtful_claims(*claims, **objects)
    assert len(found) == bool(words)
    for each in found:
        assert words in each.what
        assert each.why
        assert each.fix


async def test_a_claim_that_waits_for_its_pod_for_minutes_is_found() -> None:
    def found(age: float) -> list[Finding]:
        nodes, waits = [node("n1").gpus(1)], claiming(pod("p"), "c")
        state = state_of(nodes, [waits], dra=claim_objects(nodes, [held(resource_claim("c"), "n1-0", waits)]))
        [document] = state.pods
        document["metadata"]["creationTimestamp"] = datetime.fromtimestamp(NOW - age, UTC).isoformat()
        return not_fine(check_claims(OfflineCluster(state)))

    assert found(200) == []
    [one] = found(400)
    assert "its pod p has been on no node for 6 minutes" in one.what


async def test_pools_that_no_scheduler_or_two_would_allocate_are_found() -> None:
    def found(built: NodeBuilder, registered: list[NodeBuilder], **changes: Any) -> list[str]:
        slices = (document_of(published(built, **changes)),)
        dra = msgspec.structs.replace(claim_objects([]), slices=slices)
        return [each.what for each in not_fine(check_claims(OfflineCluster(state_of(registered, dra=dra))))]

    cards = node("n1").gpus(2)
    assert found(cards, [cards]) == []
    assert found(cards, [node("n1").gpus(1)]) == ["n1: n1-1 is published for claims, but not registered"]
    [both] = found(cards, [cards], managed=False)
    assert "n1 registers its cards and publishes devices without the taint" in both
    [part] = found(cards, [cards], count=2)
    assert "n1: its pool cannot be used: 1 of 2 ResourceSlices" in part


# -- nodes


async def found_on(*nodes: NodeBuilder) -> list[Finding]:
    return not_fine(check_nodes(OfflineCluster(state_of(nodes))))


GOOD_NODE = node("n1").gpus(2).capacity(**{GPU: 20})


async def test_a_node_whose_plugin_and_kubelet_agree_is_fine() -> None:
    assert await found_on(GOOD_NODE) == []


@pytest.mark.parametrize(
    ("changed", "severity", "words"),
    [
        (node("n2").capacity(**{GPU: 8}), Severity.WARNING, "no plugin of Tessera or HAMi has registered"),
        (node("n2").annotate(("hami.io/node-nvidia-register", "[{")), Severity.BROKEN, "cannot be read"),
        (node("n2").gpus(1).capacity(**{GPU: 4}), Severity.WARNING, "kubelet offers 4 nvidia.com/gpu"),
        (node("n2").gpus(1).capacity(**{GPU: 0}), Severity.BROKEN, "the plugin of NVIDIA is gone"),
        (
            GOOD_NODE.annotate(("hami.io/mutex.lock", "2020-01-01T00:00:00Z,ns,p")),
            Severity.WARNING,
            "has been locked by ns/p for",
        ),
    ],
)
async def test_what_is_wrong_with_a_node_is_found(changed: NodeBuilder, severity: Severity, words: str) -> None:
    found = await found_on(GOOD_NODE, changed)
    assert [each.severity for each in found] == [severity], found
    assert words in found[0].what


@pytest.mark.parametrize(
    ("key", "seconds", "is_old"),
    [
        ("hami.io/mutex.lock", 299, False),
        ("hami.io/mutex.lock", 301, True),
        ("cambricon.com/dsmlu.lock", 119, False),
        ("cambricon.com/dsmlu.lock", 121, True),
    ],
)
async def test_a_lock_is_old_when_the_scheduler_would_take_it_over(key: str, seconds: int, is_old: bool) -> None:
    since = datetime.fromtimestamp(NOW - seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    found = await found_on(GOOD_NODE.annotate((key, since)))
    assert [key in each.what for each in found] == [True] * is_old


async def test_a_plugin_that_is_silent_for_too_long_is_named_with_the_time() -> None:
    asked = encode_requesting(datetime.fromtimestamp(NOW - 600, UTC), zone=datetime.now().astimezone().tzinfo or UTC)
    [kept] = await found_on(GOOD_NODE.annotate(("hami.io/node-handshake", asked)))
    assert kept.severity is Severity.WARNING
    assert "has not answered the scheduler for 10 minutes" in kept.what
    gone = node("n1").gpus(2).annotate(("hami.io/node-handshake", asked))
    [lost] = await found_on(gone, node("n2").gpus(1).capacity(**{GPU: 10}))
    assert "asked 600 s ago and has not answered" in lost.what


async def test_a_cluster_without_cards_is_broken() -> None:
    [found] = await found_on(node("n1"))
    assert "no cards are registered on any of the 1 node(s)" in found.what


async def test_a_node_that_is_not_ready_is_a_warning() -> None:
    state = state_of([GOOD_NODE])
    status = {**state.nodes[0]["status"], "conditions": [{"type": "Ready", "status": "False"}]}
    [found] = not_fine(check_nodes(OfflineCluster(replace(state, nodes=({**state.nodes[0], "status": status},)))))
    assert found.what == "n1 is not ready"


# -- the ledger


async def accounted(*pods: Any) -> list[Finding]:
    return not_fine(check_ledger(OfflineCluster(state_of([node("n1").gpus(1)], pods))))


async def test_a_ledger_that_adds_up_is_fine() -> None:
    assert await accounted(gpu_pod("a", mem=1000).on("n1", "n1-0,NVIDIA,1000,0:;")) == []


@pytest.mark.parametrize(
    ("held", "severity", "words"),
    [
        (gpu_pod("a").on("n1", "n1-0,NVIDIA,99999,0:;"), Severity.BROKEN, "99999 of 81920 MiB granted"),
        (gpu_pod("a").on("n1", "n1-0,NVIDIA,many,0:;"), Severity.BROKEN, "cannot be read"),
        (gpu_pod("a").on("n1"), Severity.WARNING, "has no allocation"),
        (
            gpu_pod("a")
            .on("n1", "n1-0,NVIDIA,1,0:;")
            .annotate(("hami.io/bind-phase", "allocating"), ("hami.io/bind-time", str(int(NOW) - 900)))
            .ended("Pending"),
            Severity.WARNING,
            "was bound to n1 15 minutes ago",
        ),
    ],
)
async def test_what_does_not_add_up_is_found(held: Any, severity: Severity, words: str) -> None:
    [found] = await accounted(held)
    assert found.severity is severity
    assert words in found.what


def test_the_worst_comes_first_and_is_counted() -> None:
    findings = [Finding(Severity.FINE, "a", "x"), Finding(Severity.BROKEN, "b", "y", "why", "fix it")]
    lines = [line.text for line in diagnosis_lines(findings)]
    assert lines[0] == "broken   b: y"
    assert lines[-1] == "1 broken, 0 warnings, 0 not checked, 1 fine"
    assert is_broken(findings)


# -- registrations and cordons


REGISTER, HANDSHAKE = "hami.io/node-nvidia-register", "hami.io/node-handshake"


@pytest.mark.parametrize("left", [(HANDSHAKE, "Reported"), ("tessera.io/agent", "downward-api,hami-core")])
async def test_a_registration_that_vanished_is_told_from_another_plugin(left: tuple[str, str]) -> None:
    held = gpu_pod("a", mem=1000).on("n2", "n2-0,NVIDIA,1000,0:;")
    vanished = node("n2").capacity(**{GPU: 10}).annotate(left)
    [found] = not_fine(check_nodes(OfflineCluster(state_of([GOOD_NODE, vanished], [held]))))
    assert found.severity is Severity.BROKEN
    assert f"n2: its registration of NVIDIA cards has vanished ({REGISTER})" in found.what
    assert left[0] in found.what
    assert "what 1 pod(s) hold" in found.why


async def test_an_agent_on_a_node_without_cards_is_a_warning() -> None:
    [found] = await found_on(GOOD_NODE, node("n2").annotate(("tessera.io/agent", "downward-api,hami-core")))
    assert found.severity is Severity.WARNING
    assert "registers no cards of NVIDIA" in found.what


async def test_a_card_that_left_its_registration_is_named_with_its_pods() -> None:
    held = gpu_pod("a", mem=1000).on("n1", "n1-7,NVIDIA,1000,0:;")
    fine = gpu_pod("b", mem=1000).on("n1", "n1-1,NVIDIA,1000,0:;")
    [found] = not_fine(check_nodes(OfflineCluster(state_of([GOOD_NODE], [held, fine]))))
    assert found.severity is Severity.WARNING
    assert found.what == "n1: card n1-7 is not registered any more, but held by default/a"


@pytest.mark.parametrize(
    ("cordoned", "words"),
    [
        ("n1-0", ""),
        ("n1-0,n1-5", "names n1-5, which is no card of this node"),
        ("0", "names 0, which is no card of this node"),
    ],
)
async def test_a_cordon_that_names_no_card_is_found(cordoned: str, words: str) -> None:
    found = await found_on(GOOD_NODE.annotate(("hami.io/device-cordon", cordoned)))
    assert [words in each.what for each in found] == [True] * bool(words)
    assert all("the node has n1-0, n1-1" in each.fix for each in found)


async def test_a_cordon_of_a_card_that_takes_none_is_found() -> None:
    dcu = vendors()["DCU"].keys.register
    text = "DCU-0,4,32768,100,DCU-Z100,0,true,0,hami-core:"
    found = await found_on(GOOD_NODE, node("n2").annotate((dcu, text), ("hami.io/device-cordon", "DCU-0")))
    assert "n2: hami.io/device-cordon names DCU-0, but cards of DCU take no cordon" in [each.what for each in found]


# -- quotas


@pytest.mark.parametrize(
    ("hard", "words", "fix"),
    [
        (
            {"limits.nvidia.com/gpumem": "30Gi"},
            "it means 32,212,254,720 MiB",
            "limits.nvidia.com/gpumem: '30720'",
        ),
        ({"limits.nvidia.com/gpumem": "200k"}, "it means 200,000 MiB", "a plain number in units of MiB"),
        ({"limits.nvidia.com/gpucores": "100k"}, "it means 100,000 per cent", "100 for each card"),
        ({"limits.nvidia.com/gpumem": str(2**30)}, "limits nothing", "a plain number in units of MiB"),
        ({"nvidia.com/gpumem": "30720"}, "limits nothing without the prefix", "limits.nvidia.com/gpumem: '30720'"),
        ({"limits.nvidia.com/gpu": "4"}, "limits.nvidia.com/gpu limits nothing", "requests.nvidia.com/gpu: '4'"),
        ({"nvidia.com/gpu": 4}, "nvidia.com/gpu limits nothing", "requests.nvidia.com/gpu: 4"),
    ],
)
async def test_a_quota_that_limits_nothing_is_found(hard: dict[str, Any], words: str, fix: str) -> None:
    [found] = check_quotas(OfflineCluster(state_of([GOOD_NODE], quotas=[quota_of(hard)])))
    assert found.severity is Severity.WARNING
    assert "team/q" in found.what
    assert words in found.what
    assert fix in found.fix


@pytest.mark.parametrize(
    "hard",
    [
        {"limits.nvidia.com/gpumem": "30720", "limits.nvidia.com/gpucores": "100"},
        {"limits.nvidia.com/gpumem": "100k"},
        {"limits.nvidia.com/gpumem": "200000"},
        {"limits.nvidia.com/gpumem": "0"},
        {"requests.nvidia.com/gpu": "4", "limits.nvidia.com/gpumem": 1000},
    ],
)
async def test_a_quota_that_limits_something_is_fine(hard: dict[str, Any]) -> None:
    [found] = check_quotas(OfflineCluster(state_of([GOOD_NODE], quotas=[quota_of(hard)])))
    assert found.severity is Severity.FINE


@pytest.mark.parametrize("hard", [{"cpu": "4"}, {"requests.nvidia.com/gpu": "4"}, {"requests.nvidia.com/gpumem": "1"}])
async def test_quotas_of_other_things_are_left_to_others(hard: dict[str, Any]) -> None:
    assert not list(check_quotas(OfflineCluster(state_of([GOOD_NODE], quotas=[quota_of(hard)]))))


async def test_a_quota_in_a_cluster_without_cards_is_not_judged() -> None:
    limits = quota_of({"limits.nvidia.com/gpumem": "30Gi"})
    assert not not_fine(check_quotas(OfflineCluster(state_of([], quotas=[limits]))))


def quota_of(hard: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "q", "namespace": "team"}, "spec": {"hard": hard}}
