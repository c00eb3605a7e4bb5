from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tessera.core.ledger.audit import audit
from tessera.core.search.selection import Selected, Selector
from tessera_lab.simulator.claims import as_claims
from tessera_lab.simulator.cluster import SimulatedCluster, make_request
from tessera_lab.simulator.saturation import SaturationOptions, saturate
from tessera_lab.simulator.simulation import place_pod
from tessera_lab.simulator.strategies import STRATEGIES
from tessera_lab.simulator.strategies.shipped import Shipped
from tessera_lab.simulator.traces import TraceRequest, make_trace
from tests.unit.lab.simulator.made_up import nodes, pod, trace

EVERY = pytest.mark.parametrize("policy", list(STRATEGIES))


@EVERY
def test_every_policy_fills_a_cluster_that_can_be_filled(policy: str) -> None:
    world = trace(nodes(2, 2), *(pod(f"p{i}") for i in range(4)))
    result = saturate(world, policy, 1)
    assert result.at(1.0) == 100.0
    assert result.at(0.5) == 50.0


@EVERY
def test_a_run_is_the_same_every_time(policy: str) -> None:
    world = make_trace(nodes=5, seed=2)
    options = SaturationOptions(sample=0.5, shuffle_nodes=True)
    assert saturate(world, policy, 7, options) == saturate(world, policy, 7, options)


@EVERY
def test_no_policy_gives_more_than_there_is(policy: str) -> None:
    world = make_trace(nodes=6, seed=3)
    cluster = SimulatedCluster(world.nodes)
    strategy = STRATEGIES[policy](cluster, world, Random(1))
    for each in world.pods:
        strategy.arrived(each.ask)
        place_pod(cluster, strategy, each.ask)
    arrays = cluster.arrays
    rows = cluster.rows
    assert (arrays.free_cpu[rows] >= 0).all()
    assert (arrays.free_memory[rows] >= 0).all()
    assert (arrays.used_memory <= arrays.memory).all()
    assert audit(cluster.ledger) == []


@pytest.mark.parametrize("policy", ["fragmentation", "binpack-spread", "best-fit"])
def test_pods_with_claims_are_packed_as_the_same_pods_without(policy: str) -> None:
    world = make_trace(nodes=6, seed=3)
    claimed = as_claims(world)
    assert any(pod.ask.models for pod in claimed.pods)
    assert make_request(claimed.pods[0].ask).shape != make_request(world.pods[0].ask).shape
    assert saturate(claimed, policy, 1) == saturate(world, policy, 1)


def test_a_claim_for_an_instance_is_placed_like_a_pod_for_one() -> None:
    world = trace((replace(nodes(1)[0], mig=True),), pod("p", milli=200), pod("q", milli=400))
    cluster = SimulatedCluster(world.nodes, claims=True)
    strategy = STRATEGIES["fragmentation"](cluster, world, Random(1))
    for each in as_claims(world).pods:
        assert place_pod(cluster, strategy, each.ask) is not None
    assert cluster.arrays.used_memory.sum() == 750
    assert audit(cluster.ledger) == []


def test_cpu_and_host_memory_refuse_as_kube_scheduler_would() -> None:
    world = trace(nodes(4, cpu=3_000), pod("p", cpu=2_000))
    result = saturate(world, "fragmentation", 1)
    assert result.at(1.0) == 25.0
    assert dict(result.refused) == {1: dict(result.arrived)[1] - 1}


def test_a_pod_goes_to_the_models_it_accepts_and_to_no_longer_names() -> None:
    world = trace((*nodes(1, model="A100"),), pod("p", models=("A10",)))
    assert saturate(world, "best-fit", 1).at(1.0) == 0.0
    accepts = trace((*nodes(1, model="A100"),), pod("p", models=("A10", "A100")))
    assert saturate(accepts, "best-fit", 1).at(1.0) == 100.0


@pytest.mark.parametrize(
    ("node", "device"), [("fragmentation", "fragmentation"), ("binpack", "spread"), ("spread", "binpack")]
)
def test_the_scheduler_s_policies_choose_what_the_scheduler_chooses(node: str, device: str) -> None:
    world = make_trace(nodes=8, seed=6)
    cluster = SimulatedCluster(world.nodes)
    strategy = Shipped(cluster, node=node, device=device)
    selector = Selector(cluster.ledger)
    for each in world.pods[:150]:
        ask = each.ask
        strategy.arrived(ask)
        if ask.cards and len(rows := cluster.fitting(ask)):
            request = strategy._recall(ask).request
            names = [cluster.arrays.names[row] for row in rows.tolist()]
            answer = selector.select(request, names)
            assert isinstance(answer, Selected)
            found = place_pod(cluster, strategy, ask)
            assert found is not None
            entry = cluster.ledger.pod(found[1])
            assert entry is not None
            assert entry.facts.node == answer.placement.node
            assert entry.facts.grants == answer.placement.grants
        else:
            place_pod(cluster, strategy, ask)


def test_thousandths_of_a_card_are_exact() -> None:
    cluster = SimulatedCluster(nodes(1))
    asks = [TraceRequest(0, 0, 1, milli) for milli in (475, 475, 51, 50)]
    strategy = STRATEGIES["first-fit"](cluster, trace(nodes(1)), Random(1))
    placed = [place_pod(cluster, strategy, ask) is not None for ask in asks]
    assert placed == [True, True, False, True]


def test_cpu_only_pods_ask_for_no_devices() -> None:
    assert not make_request(TraceRequest(1_000, 1_024)).asks_for_devices
