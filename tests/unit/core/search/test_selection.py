"""Choosing among candidates: ties, memory of shapes, odd candidates, and agreement with the plain rule."""

from __future__ import annotations

import random
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.fit import card_checks, quota
from tessera.core.fit.fit import fit_pod
from tessera.core.ledger.audit import audit
from tessera.core.ledger.ledger import Ledger
from tessera.core.model import arrays
from tessera.core.model.grants import Placement
from tessera.core.model.misfits import Misfit
from tessera.core.model.requests import MAX_REQUESTS, ContainerRequest, PodRequest, Request
from tessera.core.search import evaluation, selection
from tessera.core.search.selection import Refused, Selected, Selector, Unfinished
from tests.support.builders import (
    A100_40GB,
    Cluster,
    PodBuilder,
    cluster,
    gpu_pod,
    node,
    pod,
    texts,
    uuids,
    vendors,
)


def many(count: int) -> Cluster:
    return cluster(*(node(f"n{number:02}").gpus(2) for number in range(count)))


# -- candidates


def test_the_order_of_candidates_does_not_matter() -> None:
    world = many(12)
    for number in range(6):
        world.start(gpu_pod(f"p{number}", mem=100 * number), [f"n{number:02}"])
    names = list(world.ledger.node_names())
    draw = random.Random(1)
    for policy in ("binpack", "spread"):
        asking = gpu_pod("asking", mem=10).policy(node=policy)
        expected = world.chosen(asking, names).placement
        for _ in range(5):
            draw.shuffle(names)
            assert world.chosen(asking, names).placement == expected


def test_ties_go_to_the_first_name_whatever_was_registered_first() -> None:
    world = cluster(node("c").gpus(1), node("a").gpus(1), node("b").gpus(1))
    assert world.chosen(gpu_pod(mem=1), ["c", "b", "a"]).placement.node == "a"
    assert world.chosen(gpu_pod(mem=1), ["c", "b"]).placement.node == "b"


def test_a_name_given_twice_counts_once() -> None:
    world = many(2)
    answer = world.chosen(gpu_pod(mem=1), ["n00", "n01", "n00", "n00"])
    assert [name for name, _ in answer.fits] == ["n01", "n00"]
    assert world.refused(gpu_pod(gpu=3), ["n00", "n00"]) == {"n00": "NodeInsufficientDevice"}


@pytest.mark.parametrize("names", [[], ["nowhere"], ["", "nowhere"]])
def test_without_a_known_candidate_everything_is_unregistered(names: list[str]) -> None:
    for world in (many(2), cluster()):
        assert world.refused(gpu_pod(mem=1), names) == dict.fromkeys(names, "node unregistered")


def test_unknown_candidates_beside_known_ones_are_unregistered() -> None:
    world = many(1)
    assert world.chosen(gpu_pod(mem=1), ["nowhere", "n00"]).placement.node == "n00"
    assert world.refused(gpu_pod(gpu=3), ["nowhere", "n00"]) == {
        "nowhere": "node unregistered",
        "n00": "NodeInsufficientDevice",
    }


def test_an_unknown_vendor_is_refused_everywhere() -> None:
    world = cluster(node().gpus(1), node("n2").gpus(1).annotate(("hami.io/node-dcu-register", "nonsense")))
    request = PodRequest("u", "ns", "p", (ContainerRequest("c", requests=(Request("Acme", 1),)),))
    expected = {"n1": "Device type not found", "n2": "Device type not found", "nX": "node unregistered"}
    assert texts(world.select(request, list(expected))) == expected
    for name in ("n1", "n2"):
        view = world.ledger.node(name)
        assert view is not None
        plain = fit_pod(view, request, vendors(), {})
        assert isinstance(plain, Misfit)
        assert (plain.text, plain.vendor) == ("Device type not found", "Acme")


def test_kept_candidates_follow_nodes_that_come_and_go() -> None:
    world = many(2)
    kept = world.selector.candidates(["n00", "n01", "n02"])
    request = gpu_pod(mem=1).request()
    first = world.selector.select(request, kept)
    assert isinstance(first, Selected)
    world.ledger.forget_node("n00")
    world.add(node("n02").gpus(2))
    again = world.selector.select(request, kept)
    assert isinstance(again, Selected)
    assert (first.placement.node, again.placement.node) == ("n00", "n01")
    assert [name for name, _ in again.fits] == ["n02", "n01"]


# -- memory


def test_a_refusal_is_remembered_until_a_verdict_changes() -> None:
    world = many(8)
    kept = world.selector.candidates(world.ledger.node_names())
    request = gpu_pod(mem=90000).request()
    first = world.selector.select(request, kept)
    assert isinstance(first, Refused)
    world.start(gpu_pod("small", mem=100), ["n03"])
    assert world.selector.select(request, kept) is first
    world.add(node("n03").gpus(2, memory=100000))
    assert isinstance(world.selector.select(request, kept), Selected)


def test_a_refusal_that_changes_its_words_is_told_anew() -> None:
    world = many(8)
    kept = world.selector.candidates(world.ledger.node_names())
    asking = gpu_pod("asking", gpu=2, mem=80000).request()
    for number in range(8):
        world.start(gpu_pod(f"p{number}", mem=50000), [f"n{number:02}"])
    assert set(texts(world.selector.select(asking, kept)).values()) == {
        "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory"
    }
    world.start(gpu_pod("more", mem=50000), ["n05"])
    assert texts(world.selector.select(asking, kept))["n05"] == "2/2 CardInsufficientMemory"
    world.ledger.release("uid-p5")
    world.ledger.release("uid-more")
    assert isinstance(world.selector.select(asking, kept), Selected)


def test_two_pods_of_one_shape_with_different_node_policies_are_with_unique_uuids() -> None:
    world = many(3)
    world.start(gpu_pod("old", mem=10), ["n01"])
    asking = gpu_pod(mem=10)
    for _ in range(2):
        assert world.chosen(asking.policy(node="binpack")).placement.node == "n01"
        assert world.chosen(asking.policy(node="spread")).placement.node == "n00"


def test_vendor_scores_follow_the_pods_own_node_policy() -> None:
    losses, scores = "metax-tech.com/gpu.topology.losses", "metax-tech.com/gpu.topology.scores"
    gpu = {"metax-tech.com/gpu": 2}
    world = cluster(
        node("a").capacity(**gpu).annotate((losses, '{"1": 100}'), (scores, '{"1": 1}')),
        node("b").capacity(**gpu).annotate((losses, '{"1": 1}'), (scores, '{"1": 100}')),
    )
    asking = pod().container(limits={"metax-tech.com/gpu": 1})
    assert world.chosen(asking.policy(node="binpack")).placement.node == "b"
    assert world.chosen(asking.policy(node="spread")).placement.node == "b"
    assert dict(world.chosen(asking.policy(node="spread")).fits) == {"a": 1999.0, "b": 1900.0}
    assert dict(world.chosen(asking.policy(node="binpack")).fits) == {"a": 1900.0, "b": 1999.0}


def test_shapes_beyond_the_limit_are_forgotten_and_judged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "SHAPES", 3)
    world = many(2)
    for _ in range(2):
        for memory in (1, 2, 3, 4, 1):
            assert world.chosen(gpu_pod(mem=memory)).placement.node == "n00"
    world.start(gpu_pod("full", gpu=2, mem=81920), ["n00"])
    assert world.chosen(gpu_pod(mem=1)).placement.node == "n01"


def test_a_reader_that_the_log_has_left_behind_starts_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "LOG_LIMIT", 10)
    world = many(30)
    asking = gpu_pod("asking", mem=81920)
    assert world.chosen(asking).placement.node == "n00"
    for number in range(29):
        world.observe(
            gpu_pod(f"p{number}").on(f"n{number:02}", f"n{number:02}-0,NVIDIA,1,0:n{number:02}-1,NVIDIA,1,0:;")
        )
    assert world.chosen(asking).placement.node == "n29"
    assert audit(world.ledger) == []


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_judging_afresh_or_by_column_gives_the_same(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    monkeypatch.setattr(evaluation, "REBUILD_SHARE", share)
    world = many(6)
    asking = gpu_pod("asking", gpu=2, mem=40000)
    seen = []
    for number in range(6):
        seen.append(world.chosen(asking).placement.node)
        world.start(gpu_pod(f"p{number}", mem=50000), [seen[-1]])
    assert seen == [f"n{number:02}" for number in range(6)]
    assert set(world.refused(asking).values()) == {"1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory"}


# -- agreement with the plain rule


def zoo() -> Cluster:
    """Nodes of every kind, some of them in use."""
    world = cluster(
        node("busy").gpus(2, slots=2),
        node("empty").gpus(4, numas=(0, 0, 1, 1)),
        node("ill").gpus(1).gpu("ill-x", healthy=False),
        node("mig").gpu("M", memory=40960, mode="mig", slots=7, profiles=A100_40GB),
        node("none").capacity(**{"enflame.com/gcu": 2}),
        node("odd").gpus(1).annotate(("hami.io/node-dcu-register", "nonsense")),
        node("tiny").gpus(2, memory=100),
        node("two").gpus(1).annotate(("hami.io/node-dcu-register", "D,10,1000,100,DCU-K100,0,true:")),
        node("wide").gpus(70),
    )
    world.start(gpu_pod("b0", mem=40000, cores=100), ["busy"])
    world.start(gpu_pod("b1", mem=100), ["busy"])
    return world


DCU = {"hygon.com/dcunum": 1, "hygon.com/dcumem": 10, "hygon.com/dcucores": 1}
PODS = {
    "small": gpu_pod(mem=10),
    "whole": gpu_pod(gpu=2, percent=100, cores=100),
    "large": gpu_pod(mem=90000),
    "four": gpu_pod(gpu=4, mem=10),
    "bound": gpu_pod(gpu=3, mem=10).numa_bound(),
    "mutex": gpu_pod(gpu=2, mem=10).policy(device="mutex"),
    "two containers": pod().container(gpu=2, mem=60).container(gpu=1, mem=60),
    "init": pod().init(gpu=1, mem=90).container(gpu=1, mem=80),
    "sidecar": pod().sidecar(gpu=1, mem=90).container(gpu=1, mem=80),
    "two vendors": pod().container(gpu=1, mem=10, limits=DCU),
    "own rules": pod().container(limits={"enflame.com/gcu": 2}),
    "own rules first": pod().container(gpu=9, mem=10, limits={"enflame.com/gcu": 2}),
    "too many of own": pod().container(limits={"enflame.com/gcu": 3}),
    "by uuid": gpu_pod(mem=10).annotate(("nvidia.com/use-gpuuuid", "tiny-0,M,wide-69")),
    "huge": gpu_pod(gpu=2**31 - 1, mem=2**24, cores=2**31 - 1),
    "many": pod().container(gpu=1, mem=1).container(gpu=71, mem=1),
}


@pytest.mark.no_cover
@pytest.mark.parametrize("quota", [None, 150, 10**9], ids=["free", "short", "ample"])
@pytest.mark.parametrize("name", PODS)
def test_every_node_is_judged_as_the_plain_rule_judges_it(name: str, quota: int | None) -> None:
    world, asking = zoo(), PODS[name]
    if quota is not None:
        asking = asking.called("asking", namespace="limited")
        world.quota(namespace="limited", memory=quota)
    for candidate in world.ledger.node_names():
        plain = world.fit(asking, candidate)
        answer = world.select(asking, [candidate])
        if isinstance(plain, Misfit):
            assert texts(answer) == {candidate: plain.text}
        else:
            assert isinstance(answer, Selected)
            assert answer.placement.grants == plain.grants
    everywhere = world.select(asking)
    if isinstance(everywhere, Refused):
        assert texts(everywhere) == {n: world.fit(asking, n).text for n in everywhere.misfits}  # type: ignore[union-attr]


def test_a_node_that_looks_possible_but_is_not_is_passed_over() -> None:
    world = cluster(node("a").gpus(2, numas=(0, 1)), node("b").gpus(2))
    answer = world.chosen(gpu_pod(gpu=2, mem=10).numa_bound())
    assert answer.placement.node == "b"
    assert [name for name, _ in answer.fits] == ["b"]


def test_scores_of_vendors_are_added_to_the_nodes_own() -> None:
    gpu, losses = {"metax-tech.com/gpu": 2}, ("metax-tech.com/gpu.topology.losses", '{"1": 500, "2": 100}')
    world = cluster(
        node("full").capacity(**gpu).annotate(losses).gpus(1),
        node("free").capacity(**gpu).annotate(losses).gpus(1),
    )
    world.start(pod("old").container(limits={"metax-tech.com/gpu": 1}), ["full"])
    two = pod().container(gpu=1, mem=10, limits=gpu)
    placement = world.chosen(two).placement
    assert (placement.node, placement.score) == ("free", 1900.0)
    one = pod().container(limits={"metax-tech.com/gpu": 1})
    use = 10 * (1 / 12 + 100 / 300 + 65536 / (2 * 65536 + 81920))
    assert dict(world.chosen(one).fits) == pytest.approx({"free": 1500.0, "full": 1500.0 + use})


def test_a_pod_without_requests_fits_every_node() -> None:
    answer = many(2).chosen(pod().container())
    assert (answer.placement.node, answer.placement.grants) == ("n00", {})


# -- size


def test_as_many_requests_as_a_pod_may_have_are_placed_together() -> None:
    world = cluster(node().gpus(4, slots=100))
    crowd = PodBuilder(name="crowd")
    for _ in range(MAX_REQUESTS):
        crowd = crowd.container(gpu=1, mem=10)
    placement = world.chosen(crowd).placement
    assert len(uuids(placement)) == MAX_REQUESTS
    world.start(crowd)
    assert sorted(world.cards().values()) == [(4, 40, 0)] * 4
    assert world.refused(gpu_pod("next", gpu=4, mem=81920)) == {"n1": "4/4 CardInsufficientMemory"}


@pytest.mark.no_cover
def test_thousands_of_devices_on_one_node_are_placed_and_released() -> None:
    world = cluster(node("wide").gpus(3000), node("n1").gpus(2))
    running = world.start(gpu_pod("all", gpu=3000, mem=100))
    assert set(world.cards("wide").values()) == {(1, 100, 0)}
    assert world.refused(gpu_pod("more", gpu=3001, mem=100)) == dict.fromkeys(["n1", "wide"], "NodeInsufficientDevice")
    world.observe(running.ended())
    assert set(world.cards("wide").values()) == {(0, 0, 0)}


def test_a_forgotten_memory_is_built_again() -> None:
    world = many(2)
    first = world.chosen(gpu_pod(mem=1)).placement
    world.selector.forget()
    assert world.chosen(gpu_pod(mem=1)).placement == first


def test_a_ledger_of_its_own_has_a_memory_of_its_own() -> None:
    first, second = Ledger(vendors()), Ledger(vendors())
    assert first.arrays is not second.arrays
    assert selection.Selector(first).candidates(first.node_names()).names == ()


# -- order


@given(values=st.lists(st.sampled_from([0.0, 1.0, 2.5, -1e300]), max_size=12))
def test_nodes_are_tried_from_the_best_and_each_once(values: list[float]) -> None:
    preference = np.array(values, dtype=np.float64)
    order = list(selection.best_first(preference))
    assert order == sorted(range(len(values)), key=lambda i: (-preference[i], i))


# -- limited work


def test_a_decision_in_small_steps_is_the_same_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    world = cluster(*(node(f"n{i:02}").gpus(1, memory=8000) for i in range(20)), node("n99").gpus(2, memory=8000))
    asking = gpu_pod(mem=5000).container(gpu=1, mem=5000)
    names = world.ledger.node_names()
    expected = Selector(world.ledger).select(asking.request(), names)
    tried = mock.Mock(wraps=world.ledger.node)
    monkeypatch.setattr(world.ledger, "node", tried)
    steps = 1
    while isinstance(
        answer := world.selector.select_within(asking.request(), names, 6),
        Unfinished,
    ):
        assert tried.call_count == 3 * steps, "two requests on the one card of a node are two checks"
        steps += 1
    assert isinstance(answer, Selected)
    assert isinstance(expected, Selected)
    assert (answer.placement, answer.fits) == (expected.placement, expected.fits)
    assert tried.call_count == 21, "no node is tried twice"


def test_what_a_new_shape_costs_on_many_nodes_is_taken_off_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "COLUMNS_OF_A_CHECK", 1)
    world = cluster(*(node(f"n{i:02}").gpus(1, memory=8000) for i in range(20)))
    asking = gpu_pod(mem=5000).container(gpu=1, mem=5000).request()
    tried = mock.Mock(wraps=world.ledger.node)
    monkeypatch.setattr(world.ledger, "node", tried)
    calls = []
    for _ in range(3):
        assert isinstance(world.selector.select_within(asking, world.ledger.node_names(), 8), Unfinished)
        calls.append(tried.call_count)
    assert calls == [1, 5, 9], "a quarter of the work is left for the plain rule, however many nodes were judged"


@pytest.mark.parametrize("memory", [None, 30_000])
def test_a_refusal_in_small_steps_is_the_same_refusal(memory: int | None) -> None:
    world = cluster(*(node(f"n{i:02}").gpus(2, memory=8000, numas=(0, 1)) for i in range(12)))
    world.quota(memory=memory)
    asking = gpu_pod(gpu=2, percent=90).numa_bound()
    names = world.ledger.node_names()
    steps = 0
    while isinstance(answer := world.selector.select_within(asking.request(), names, 4), Unfinished):
        steps += 1
    assert 3 <= steps <= 24
    assert isinstance(answer, Refused)
    assert answer.misfits == Selector(world.ledger).select(asking.request(), names).misfits  # type: ignore[union-attr]


def test_a_pod_with_many_requests_leaves_less_room_for_others_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "SHAPES", 4)
    world = many(2)
    for memory in (100, 200, 300):
        world.select(gpu_pod(mem=memory))
    assert len(world.selector._shapes) == 3
    world.select(gpu_pod(mem=1).container(gpu=1, mem=2).container(gpu=1, mem=3))
    assert len(world.selector._shapes) == 2


# -- many containers


def test_work_grows_with_the_containers_not_with_their_square(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks of one card, and containers added up for quotas."""
    checks: list[str] = []
    refuse = card_checks.refuse
    monkeypatch.setattr(card_checks, "refuse", lambda *args: checks.append("") or refuse(*args))  # type: ignore[func-returns-value]
    monkeypatch.setattr(quota, "demand", lambda *_: pytest.fail("no quota is set"))
    world = cluster(node("n1").gpus(4, memory=80_000, slots=100))

    def cost(containers: int) -> int:
        checks.clear()
        asking = pod()
        for position in range(containers):
            asking = asking.init(gpu=1, mem=100 + position)
        assert isinstance(world.fit(asking), Placement)
        return len(checks)

    assert cost(16) == 2 * cost(8) == 4 * cost(4)
