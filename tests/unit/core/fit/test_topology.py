"""Choosing cards by the links between them: exact while that is cheap, good and repeatable beyond."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import combinations

import pytest

from tessera.core.fit import topology
from tessera.core.model.devices import Device
from tests.support.builders import cluster, gpu_pod, node, pod, uuids


def linked(size: int, seed: int, *, least: int = 0, most: int = 18) -> list[Device]:
    """Cards with symmetric pair scores, drawn again alike for the same seed."""
    draw = random.Random(seed)
    rows: list[dict[str, int]] = [{} for _ in range(size)]
    for i, j in combinations(range(size), 2):
        rows[i][f"g{j}"] = rows[j][f"g{i}"] = draw.randint(least, most) * 10
    return [Device(f"g{i}", "V", links=row) for i, row in enumerate(rows)]


def best_by_trying(devices: list[Device], count: int) -> tuple[int, ...]:
    """All sets in order; the first of the best."""

    def total(chosen: tuple[int, ...]) -> int:
        return sum(devices[i].links.get(devices[j].uuid, 0) for i, j in combinations(chosen, 2))

    return max(combinations(range(len(devices)), count), key=total)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("size", "count"), [(3, 2), (5, 3), (8, 2), (8, 4), (8, 7), (10, 5)])
def test_the_choice_equals_trying_every_set(size: int, count: int, seed: int) -> None:
    devices = linked(size, seed, most=3)
    assert topology.choose(devices, count) == best_by_trying(devices, count)


def test_half_of_sixteen_cards_is_chosen_exactly() -> None:
    devices = linked(16, 7)
    assert topology.choose(devices, 8) == best_by_trying(devices, 8)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_without_links_the_first_cards_are_chosen(count: int) -> None:
    devices = [Device(f"g{i}", "V") for i in range(6)]
    assert topology.choose(devices, count) == tuple(range(count))


@pytest.mark.parametrize("count", [3, 4, 100])
def test_where_there_is_no_choice_all_cards_are_taken(count: int) -> None:
    assert topology.choose(linked(3, 1), count) == (0, 1, 2)


def test_one_card_is_the_one_that_the_others_miss_least() -> None:
    links: list[Mapping[str, int]] = [{"b": 5, "c": 1}, {"a": 5, "c": 1}, {"a": 1, "b": 1}]
    devices = [Device(name, "V", links=row) for name, row in zip("abc", links, strict=True)]
    assert topology.choose(devices, 1) == (2,)
    assert topology.choose(devices, 2) == (0, 1)


def test_links_to_cards_that_are_not_there_count_nothing() -> None:
    devices = [Device("a", "V", links={"gone": 900}), Device("b", "V", links={"c": 1}), Device("c", "V")]
    assert topology.choose(devices, 2) == (1, 2)
    assert topology.total(devices) == 1


@pytest.mark.parametrize(("size", "count"), [(17, 2), (17, 8), (20, 19), (40, 8), (64, 32)])
def test_beyond_the_limits_the_choice_is_valid_repeatable_and_no_swap_improves_it(size: int, count: int) -> None:
    devices = linked(size, 3)
    chosen = topology.choose(devices, count)
    assert chosen == topology.choose(devices, count)
    assert len(set(chosen)) == count
    assert list(chosen) == sorted(chosen)
    total = topology.total([devices[i] for i in chosen])
    outside = [i for i in range(size) if i not in chosen]
    for leaves in chosen:
        for enters in outside:
            swapped = sorted((set(chosen) - {leaves}) | {enters})
            assert topology.total([devices[i] for i in swapped]) <= total


def test_beyond_the_limits_a_clear_group_is_found() -> None:
    devices = linked(24, 5, most=1)
    group = {2, 5, 11, 17, 20, 23}
    links = [dict(device.links) for device in devices]
    for i, j in combinations(group, 2):
        links[i][f"g{j}"] = links[j][f"g{i}"] = 500
    tight = [Device(device.uuid, "V", links=row) for device, row in zip(devices, links, strict=True)]
    assert set(topology.choose(tight, 6)) == group


def test_swapping_ends_even_where_every_round_would_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "SWAP_ROUNDS", 0)
    assert len(topology.choose(linked(20, 2), 6)) == 6


@pytest.mark.no_cover
def test_a_node_with_a_thousand_cards_is_answered() -> None:
    devices = linked(1000, 9, most=1)
    chosen = topology.choose(devices, 500)
    assert len(set(chosen)) == 500
    assert chosen == topology.choose(devices, 500)


# -- pods


def test_a_pod_gets_the_best_linked_cards() -> None:
    links = {("n1-0", "n1-2"): 400, ("n1-1", "n1-3"): 300, ("n1-0", "n1-1"): 20}
    world = cluster(node().gpus(4).linked(links))
    asking = gpu_pod(gpu=2, mem=10)
    assert sorted(uuids(world.chosen(asking.policy(device="topology-aware")).placement)[0]) == ["n1-0", "n1-2"]
    assert sorted(uuids(world.chosen(asking.policy(device="topology-aware,binpack")).placement)[0]) == [
        "n1-0",
        "n1-2",
    ]
    assert uuids(world.chosen(asking).placement) == [["n1-3", "n1-2"]]


def test_a_single_card_leaves_the_well_linked_ones_alone() -> None:
    links = {("n1-0", "n1-2"): 400, ("n1-1", "n1-3"): 300, ("n1-0", "n1-1"): 20}
    world = cluster(node().gpus(4).linked(links))
    assert uuids(world.chosen(gpu_pod(mem=10).policy(device="topology-aware")).placement) == [["n1-3"]]


def test_only_cards_that_fit_are_compared() -> None:
    links = {("n1-0", "n1-2"): 400, ("n1-1", "n1-3"): 300}
    world = cluster(node().gpus(4, slots=1).linked(links))
    world.start(gpu_pod("old", mem=10).annotate(("nvidia.com/use-gpuuuid", "n1-2")))
    two = gpu_pod(gpu=2, mem=10).policy(device="topology-aware")
    assert sorted(uuids(world.chosen(two).placement)[0]) == ["n1-1", "n1-3"]
    world.start(gpu_pod("older", mem=10).annotate(("nvidia.com/use-gpuuuid", "n1-0,n1-1")))
    assert sorted(uuids(world.chosen(two).placement)[0])[1] == "n1-3"


def test_each_container_gets_its_own_linked_cards() -> None:
    links = {("n1-0", "n1-2"): 400, ("n1-1", "n1-3"): 300}
    world = cluster(node().gpus(4, slots=1).linked(links))
    two = pod().container(gpu=2, mem=10).container(gpu=2, mem=10).policy(device="topology-aware")
    assert [sorted(cards) for cards in uuids(world.chosen(two).placement)] == [["n1-0", "n1-2"], ["n1-1", "n1-3"]]


def test_more_cards_than_any_machine_has_are_taken_in_the_order_given() -> None:
    devices = [Device(f"G{i}", "NVIDIA", links={f"G{i + 1}": 5}) for i in range(600)]
    assert topology.choose(devices, 3) == (0, 1, 2)
