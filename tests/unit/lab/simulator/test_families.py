from __future__ import annotations

import pytest

from tessera_lab.simulator.families import FAMILIES, SATURATING, Family
from tessera_lab.simulator.simulation import SaturationOptions, replay, saturate

SMALL = [family for family in FAMILIES.values() if family.nodes <= 100]


@pytest.mark.parametrize("family", SMALL, ids=lambda family: family.name)
def test_a_seed_makes_one_trace_that_asks_for_more_than_the_cluster_has(family: Family) -> None:
    trace = family.trace(1)
    assert (trace, len(trace.nodes)) == (family.trace(1), family.nodes)
    assert trace.pods != family.trace(2).pods
    assert sum(pod.ask.demand for pod in trace.pods) >= SATURATING * trace.capacity
    largest = max(kind.cards for kind in family.kinds)
    assert all(pod.ask.cards <= largest for pod in trace.pods)


def test_some_families_set_parameters_and_others_judge() -> None:
    assert {family.is_judged for family in FAMILIES.values()} == {True, False}


def test_pods_of_a_replay_keep_about_the_load_busy() -> None:
    trace = FAMILIES["small"].churn_trace(1)
    times = [pod.created for pod in trace.pods]
    assert times == sorted(times, key=lambda time: time or 0.0)
    result = replay(trace, "best-fit", 1)
    assert result.backlog <= sum(pod.ask.cards == 8 for pod in trace.pods)
    assert result.allocation > 70.0
    assert dict(result.pods_by_cards)[1] > 100


def test_instances_of_cards_in_mig_mode_never_overlap() -> None:
    """More pods are placed than fit if a node that the arrays cannot judge is taken as it is."""
    family = Family("few", "", 2, FAMILIES["mig"].kinds, FAMILIES["mig"].workload)
    for policy in ("first-fit", "fragmentation", "binpack-binpack"):
        assert 70.0 < saturate(family.trace(1), policy, 1).at(1.3) <= 100.0


def test_where_the_order_means_something_it_is_kept() -> None:
    family = FAMILIES["bursty"]
    trace = family.trace(1)
    kept = [saturate(trace, "first-fit", seed, SaturationOptions(until=0.3, keep_order=True)) for seed in (1, 2)]
    drawn = [saturate(trace, "first-fit", seed, SaturationOptions(until=0.3)) for seed in (1, 2)]
    assert kept[0].arrived == kept[1].arrived
    assert drawn[0].arrived != drawn[1].arrived
