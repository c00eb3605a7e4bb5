"""Claims in explain, top and simulate pod."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tessera.core.ledger.audit import audit
from tessera.core.search.evaluation import UNITS_OF_A_CHECK
from tessera.inspect import simulation
from tessera.inspect.explanation import PodVerdict, explain
from tessera.inspect.manifests import read_claim_manifests, read_manifests
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.render.usage import cards_table
from tessera.inspect.simulation import Simulation, simulate
from tessera.inspect.state import InspectionError, Json
from tessera.inspect.usage import UsageFilter, card_usage, pod_usage, sum_usage
from tessera.wire.resource_api import DeviceClass, ResourceClaim
from tests.support.builders import PodBuilder, gpu_pod, node, pod
from tests.support.claim_scheduler import claiming, device_class, resource_claim, templated
from tests.support.cluster_states import claim_objects, held, state_of
from tests.support.explained import fits, refused, told

BIG = node("n1").gpus(2, memory=20000)
SMALL = node("n2").gpus(1, memory=8000)


def cluster(
    pods: list[PodBuilder],
    claims: list[ResourceClaim] | None = None,
    *,
    classes: list[DeviceClass] | None = None,
    templates: list[Json] | None = None,
) -> OfflineCluster:
    nodes = [BIG, SMALL]
    dra = claim_objects(nodes, claims or [], classes=classes, templates=templates or [])
    return OfflineCluster(state_of(nodes, pods, dra=dra))


# -- explain


async def test_a_pod_with_a_claim_is_told_what_it_asks_for_and_where_it_fits() -> None:
    found = explain(cluster([claiming(pod("p"), "c")], [resource_claim("c", memory=12000, cores=30)]), "default/p")
    assert found.status is PodVerdict.FITS
    assert fits(found).node == "n1"
    assert "c: not allocated" in told(found)
    assert "1 NVIDIA card with 12000 MiB and 30 % of the cores" in told(found)
    assert "claim c, request gpu: card 1, 12000 MiB, 30 cores" in told(found)


async def test_a_pod_with_a_claim_that_fits_nowhere_is_told_the_nearest_card_and_the_claim_to_change() -> None:
    owner = pod("holder").on("n1")
    claims = [held(resource_claim("h"), "n1-0", owner, memory=18000), resource_claim("c", memory=20000, count=2)]
    found = explain(cluster([owner, claiming(pod("p"), "c")], claims), "default/p")
    assert found.status is PodVerdict.REFUSED
    changes = [change.text for change in refused(found).changes]
    assert "claim c, request gpu: 2000 instead of 20000 MiB of memory would fit on n1" in changes
    assert "claim c, request gpu: 1 instead of 2 cards would fit on n1" in changes


@pytest.mark.parametrize(
    ("asking", "claims", "classes", "status", "words"),
    [
        (templated(pod("p")), [], None, PodVerdict.CLAIM_WAITING, "the claim gpu of template small does not exist yet"),
        (claiming(pod("p"), "c"), [], None, PodVerdict.CLAIM_WAITING, "ResourceClaim c does not exist yet"),
        (
            claiming(pod("p"), "c"),
            [resource_claim("c", of_class="nic")],
            [device_class(), device_class("nic", "nic.example")],
            PodVerdict.INVALID,
            "leave pods with such claims to the default scheduler",
        ),
        (
            claiming(pod("p"), "c"),
            [resource_claim("c", selector="device.attributes['x'].y.map(z, z)")],
            None,
            PodVerdict.INVALID,
            "is not supported",
        ),
        (
            claiming(pod("p"), "c"),
            [resource_claim("c", selector="device.attributes['gpu.tessera.io'].model == 'H100'")],
            None,
            PodVerdict.REFUSED,
            "claim c, request gpu: no card matches device.attributes['gpu.tessera.io'].model == 'H100'; there are 3 x",
        ),
    ],
)
async def test_why_a_claim_keeps_its_pod_waiting_is_said(
    asking: PodBuilder, claims: Any, classes: Any, status: PodVerdict, words: str
) -> None:
    found = explain(cluster([asking], claims, classes=classes), "default/p")
    assert found.status is status
    assert not found.is_good
    assert words in told(found)


async def test_a_claim_on_a_node_that_kube_scheduler_excludes_is_said_with_the_reason() -> None:
    asking = claiming(pod("p"), "c")
    elsewhere = replace(asking, spec={**asking.spec, "nodeSelector": {"zone": "b"}})
    found = explain(cluster([elsewhere], [held(resource_claim("c"), "n1-0")]), "default/p")
    assert found.status is PodVerdict.CLAIM_WAITING
    assert "ResourceClaim c is allocated on node n1, which kube-scheduler excludes:" in found.problem


async def test_a_pod_whose_claims_are_allocated_fits_where_they_are() -> None:
    found = explain(cluster([claiming(pod("p"), "c")], [held(resource_claim("c"), "n2-0")]), "default/p")
    assert (found.status, found.node) == (PodVerdict.FITS, "n2")


async def test_a_classic_request_beside_an_allocated_claim_is_judged_on_its_node_alone() -> None:
    both = claiming(gpu_pod("p", mem=10000), "c")
    found = explain(cluster([both], [held(resource_claim("c"), "n2-0")]), "default/p")
    assert found.status is PodVerdict.REFUSED
    assert [group.nodes for group in refused(found).groups] == [("n2",), ("n1",)]
    assert "ResourceClaim c is allocated on node n2" in told(found)


async def test_a_bound_pod_is_shown_with_the_devices_of_its_claims_and_why_they_were_chosen() -> None:
    bound = claiming(pod("p").on("n1"), "c")
    world = cluster([bound], [held(resource_claim("c", memory=4096, cores=30), "n1-1", bound)])
    before = world.ledger.state()
    found = explain(world, "default/p")
    assert (found.status, found.node) == (PodVerdict.PLACED, "n1")
    assert [(one.claim, one.card, one.memory_mib, one.cores) for one in found.slices] == [("c", "n1-1", 4096, 30)]
    assert "c: allocated on n1, reserved for p" in told(found)
    assert found.verdict is not None  # as if its claim were not allocated
    assert world.ledger.state() == before


async def test_a_pod_that_another_scheduler_runs_with_claims_of_another_driver_is_not_called_invalid() -> None:
    bound = claiming(pod("p").on("n1"), "c")
    classes = [device_class(), device_class("nic", "nic.example")]
    found = explain(cluster([bound], [resource_claim("c", of_class="nic")], classes=classes), "default/p")
    assert found.status is PodVerdict.NO_DEVICES
    assert found.is_good


# -- top


async def test_cards_show_what_claims_hold_with_the_pods_that_use_them() -> None:
    one, other = claiming(pod("one").on("n1"), "shared"), claiming(pod("other").on("n1"), "shared")
    claims = [held(resource_claim("shared"), "n1-0", one, other), held(resource_claim("idle"), "n1-1", memory=1000)]
    world = cluster([one, other, gpu_pod("classic", mem=2000).on("n1", "n1-0,NVIDIA,2000,0:;")], claims)
    cards = card_usage(world)
    assert [[holder.text for holder in card.pods] for card in cards] == [
        ["default/one+other[shared] (4096 MiB, 30 cores)", "default/classic (2000 MiB)"],
        ["default/[idle] (1000 MiB, 30 cores)"],
        [],
    ]
    totals = sum_usage(cards)
    assert (totals.memory_mib.used, totals.pods) == (7096, 4)
    text = "\n".join(line.text for line in cards_table(cards, width=None, wide=False, ascii_only=True))
    assert "default/one+other[shared] 4096" in text


async def test_pods_show_what_they_hold_themselves_and_through_claims() -> None:
    both = claiming(gpu_pod("both", mem=2000).on("n1", "n1-0,NVIDIA,2000,0:;"), "c")
    world = cluster([both], [held(resource_claim("c"), "n1-1", both), held(resource_claim("idle"), "n2-0")])
    found = pod_usage(world)
    assert [(use.name, use.node, use.cards, use.memory_mib) for use in found] == [
        ("[idle]", "n2", 1, 4096),
        ("both", "n1", 2, 6096),
    ]
    assert [(one.container, one.claim, one.memory_mib) for one in found[1].slices] == [
        ("c0", "", 2000),
        ("", "c", 4096),
    ]
    assert [use.name for use in pod_usage(world, UsageFilter(nodes=frozenset({"n1"})))] == ["both"]


# -- simulate pod

MANIFEST = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: small}
spec:
  spec:
    devices:
      requests:
        - name: gpu
          exactly:
            deviceClassName: gpu.tessera.io
            capacity: {requests: {memory: 6000Mi, cores: "10"}}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  resourceClaims: [{name: gpu, resourceClaimTemplateName: small}]
  containers: [{name: main, image: x, resources: {claims: [{name: gpu}]}}]
"""

SHARED = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: team}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.tessera.io}}]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec:
  replicas: 3
  template:
    spec:
      resourceClaims: [{name: gpu, resourceClaimName: team}]
      containers: [{name: main, image: x, resources: {claims: [{name: gpu}]}}]
"""


def simulated(world: OfflineCluster, text: str, *, count: int | None = None) -> Simulation:
    for document in read_claim_manifests(text, file="f", namespace="default"):
        world.put_manifest(document)
    [manifest] = read_manifests(text, file="f", namespace="default", count=count)
    return simulate(world, manifest, most=100)


async def test_copies_of_a_pod_with_a_template_are_placed_until_no_card_has_room() -> None:
    world = cluster([])
    found = simulated(world, MANIFEST, count=2)
    assert [(one.name, one.node) for one in found.placed] == [("p-1", "n1"), ("p-2", "n1")]
    assert found.fits_in_all == 7  # three on each of 20000 MiB, one on that of 8000
    assert found.stop is not None
    assert "needs 6000 MiB" in found.stop.text
    assert "claim p-1-gpu gets card 1 (6000 MiB, 10 cores)" in told(found)
    # Only the requested copies stay, with what their claims hold.
    assert {found.key for found in world.view.claims()} == {"default/p-1-gpu", "default/p-2-gpu"}
    assert sum(card.memory_mib.used for card in card_usage(world)) == 12000
    assert audit(world.ledger) == []


async def test_copies_that_share_a_claim_hold_it_once() -> None:
    world = cluster([])
    found = simulated(world, SHARED)
    assert len({one.node for one in found.placed}) == 1
    assert found.fits_in_all == 100
    [shared] = world.view.claims()
    assert len(shared.claim.status.reserved_for or ()) == 3
    assert sum(card.memory_mib.used for card in card_usage(world)) == 20000


async def test_a_template_that_is_nowhere_is_named() -> None:
    found = simulated(cluster([]), MANIFEST.partition("---\n")[2])
    assert found.stop is not None
    assert "namespace default has no ResourceClaimTemplate small" in found.stop.text


async def test_a_template_of_the_cluster_serves_a_manifest() -> None:
    [template] = read_claim_manifests(MANIFEST, file="f", namespace="default")
    world = cluster([], templates=[template])
    assert simulated(world, MANIFEST.partition("---\n")[2]).all_fit


async def test_a_trial_knows_the_claims_of_the_cluster_and_changes_nothing() -> None:
    [template] = read_claim_manifests(MANIFEST, file="f", namespace="default")
    world = cluster([], [held(resource_claim("team"), "n2-0")], templates=[template])
    before = world.ledger.state()
    trial = world.fork()
    for name in world.ledger.node_names():
        trial.ledger.copy_node(name, world.ledger)
    assert simulated(trial, MANIFEST.partition("---\n")[2]).fits_in_all == 6
    assert {one.node for one in simulated(trial, SHARED.partition("---\n")[2]).placed} == {"n2"}
    assert world.ledger.state() == before
    assert [found.claim.status.reserved_for for found in world.view.claims()] == [None]


def test_a_claim_without_a_name_is_refused() -> None:
    with pytest.raises(InspectionError, match="a ResourceClaim has no name"):
        read_claim_manifests("{kind: ResourceClaim, spec: {}}", file="f", namespace="default")


# -- selectors that take long


async def test_a_selector_that_takes_long_is_tried_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What-if on the page of a scheduler runs beside its decisions, on the same event loop."""
    monkeypatch.setattr(simulation, "FILTER_STEP", 2)
    nodes = [node(f"n{number}").gpus(8, memory=20000) for number in range(8)]
    dear = "[1,2,3].all(i, device.attributes['gpu.tessera.io'].uuid.matches('^n[0-9]-[0-9]$'))"
    dra = claim_objects(nodes, [resource_claim("c", memory=1000, selector=dear)], templates=[])
    trial = OfflineCluster(state_of(nodes, [], dra=dra))
    cards = trial.ledger.arrays.published_cards
    [manifest] = read_manifests(json.dumps(claiming(pod("p"), "c").manifest()), file="p", namespace="default", count=1)
    steps = simulation.simulate_in_steps(trial, manifest, most=1)
    accepts, costs = None, [0]
    with suppress(StopIteration):
        while True:
            next(steps)
            for accepts in cards._answers:  # None before the first card is looked at.
                costs.append(cards.cost(accepts))
    assert accepts is not None
    dearest = cards.dearest(accepts)
    assert costs[-1] > 40 * 1000
    assert max(after - before for before, after in pairwise(costs)) <= 2 * UNITS_OF_A_CHECK + dearest
