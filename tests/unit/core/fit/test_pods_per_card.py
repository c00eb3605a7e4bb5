"""At most so many pods on a card: filter, several containers, victims, gangs, moves and texts respect it."""

from __future__ import annotations

import pytest

from tessera.core.search.defragmentation import plan_whole_cards
from tessera.core.search.gang_trial import GangMember
from tessera.core.search.gangs import GangMisfit, GangPlan, plan_gang
from tessera.core.search.near_misses import near_miss
from tessera.core.search.preemption import Preemption
from tessera.core.search.relocation import MovablePod
from tessera.core.search.victims import PodTraits
from tests.support.builders import Cluster, PodBuilder, cluster, gpu_pod, node, pod, uuids
from tests.support.pod_book import PlainBook

KEY = "tessera.io/max-pods-per-card"


def at_most(pods: int, name: str = "asking", mem: int = 1000) -> PodBuilder:
    return gpu_pod(name, mem=mem).annotate((KEY, str(pods)))


def shared_by(*pods: str, cards: int = 1) -> Cluster:
    """Each pod on the first card."""
    return cluster(node("n1").gpus(cards)).observe(*(gpu_pod(name).on("n1", "n1-0,NVIDIA,1000,0:;") for name in pods))


@pytest.mark.parametrize(("limit", "fits"), [(1, False), (2, False), (3, True), (9, True)])
def test_a_card_is_refused_that_would_hold_more_pods_than_the_pod_accepts(limit: int, fits: bool) -> None:
    world = shared_by("a", "b")
    if fits:
        assert world.chosen(at_most(limit)).placement.node == "n1"
    else:
        assert world.refused(at_most(limit)) == {"n1": "1/1 CardTooManyPods"}


def test_another_card_is_taken_where_the_first_holds_too_many() -> None:
    packed = at_most(2).policy(device="binpack")
    assert uuids(shared_by("a", "b", cards=2).chosen(packed).placement) == [["n1-1"]]
    assert uuids(shared_by("a", cards=2).chosen(packed).placement) == [["n1-0"]]


def test_containers_of_one_pod_are_one_pod() -> None:
    two = pod().container(gpu=1, mem=1000).container(gpu=1, mem=1000).annotate((KEY, "1"))
    world = cluster(node("n1").gpu("G"))
    assert uuids(world.chosen(two).placement) == [["G"], ["G"]]
    world.start(two)
    assert world.refused(at_most(1)) == {"n1": "1/1 CardTooManyPods"}
    assert world.chosen(at_most(2)).placement.node == "n1"


@pytest.mark.parametrize("text", ["0", "-1", "two", "", "1.5", "01", "9999999999", "٢"])
def test_a_number_that_means_nothing_refuses_the_pod(text: str) -> None:
    fault = gpu_pod(mem=1000).annotate((KEY, text)).fault()
    assert fault.text.startswith(f"annotation {KEY}: ")
    assert fault.text.endswith(" is not a whole number from 1 to 999999999")


@pytest.mark.parametrize(
    ("asking", "text"),
    [
        (at_most(2), "needs a card with at most 2 pods; nearest is n1 (n1-0) with 0 of 2 places for pods free"),
        (
            at_most(1, mem=81920),
            "needs a card with 81920 MiB and at most 1 pod; nearest is n1 (n1-0) with 79920 of 81920 MiB and 0 of 1"
            " places for pods free",
        ),
    ],
)
def test_the_nearest_card_says_how_many_pods_it_may_hold(asking: PodBuilder, text: str) -> None:
    world = shared_by("a", "b")
    found = near_miss(world.ledger, asking.request(), world.selector.candidates(["n1"]).rows)
    assert found is not None
    assert found.text == text


def book_of(**priorities: int) -> PlainBook:
    book = PlainBook()
    for name, priority in priorities.items():
        book.pods[f"uid-{name}"] = PodTraits(f"uid-{name}", "default", name, priority=priority)
    return book


def test_as_many_pods_leave_as_the_limit_asks_for() -> None:
    world = shared_by("a", "b", "c")
    search = Preemption(world.selector, book_of(a=1, b=2, c=3))
    names = world.selector.candidates(["n1"])
    found = [search.find_for_pod(at_most(limit).request(), priority=9, candidates=names) for limit in (1, 2, 3)]
    assert [None if one is None else one.victims for one in found] == [
        ("uid-a", "uid-b", "uid-c"),
        ("uid-a", "uid-b"),
        ("uid-a",),
    ]


def test_each_member_of_a_gang_gets_a_card_of_its_own() -> None:
    members = [GangMember(at_most(1, f"m{number}").request(), None) for number in range(3)]
    assert isinstance(plan_gang(cluster(node("n1").gpus(2)).selector, members, required=3), GangMisfit)
    plan = plan_gang(cluster(node("n1").gpus(3)).selector, members, required=3)
    assert isinstance(plan, GangPlan)
    cards = {grant.uuid for place in plan.places for grant in place.placement.grants["NVIDIA"][0]}
    assert cards == {"n1-0", "n1-1", "n1-2"}


@pytest.mark.parametrize(("limit", "moves"), [(1, 0), (2, 1)])
def test_no_pod_moves_to_a_card_with_more_pods_than_it_accepts(limit: int, moves: int) -> None:
    world = cluster(node("n1").gpus(1), node("n2").gpus(1))
    world.observe(gpu_pod("a").on("n1", "n1-0,NVIDIA,1000,0:;"), gpu_pod("b").on("n2", "n2-0,NVIDIA,1000,0:;"))
    movable = {f"uid-{name}": MovablePod(at_most(limit, name).request()) for name in ("a", "b")}
    plan = plan_whole_cards(world.ledger, book_of(a=0, b=0), movable, max_moves=9)
    assert plan.moves == moves


def test_the_webhook_lets_tenants_write_it() -> None:
    assert isinstance(at_most(2).admitted(), PodBuilder)
