"""Namespace quotas: what counts, which limit holds, and what a refusal says."""

from __future__ import annotations

import pytest

from tessera.core.fit.device_rules import UNLIMITED, QuotaRoom
from tessera.core.fit.quota import bounds, payable, shortage
from tessera.core.model.grants import Use
from tessera.core.model.misfits import Misfit
from tests.support.builders import A100_40GB, PodBuilder, cluster, expire, gpu_pod, node, pod, uuids, vendors

NVIDIA = vendors()["NVIDIA"]


def room(world_quota: dict[str, dict[str, int]], *drop: str) -> QuotaRoom:
    world = cluster()
    for name, hard in world_quota.items():
        world.quota(name, memory=hard.get("memory"), cores=hard.get("cores"))
    for name in drop:
        world.ledger.forget_quota("default", name)
    return world.ledger.quotas.room("default", NVIDIA)


@pytest.mark.parametrize(
    ("quotas", "dropped", "left"),
    [
        ({}, [], UNLIMITED),
        ({"a": {"memory": 100}}, [], QuotaRoom(100, None)),
        ({"a": {"cores": 100}}, [], QuotaRoom(None, 100)),
        ({"a": {"memory": 0}}, [], QuotaRoom(0, None)),
        ({"a": {"memory": 100}, "b": {"memory": 50, "cores": 9}}, [], QuotaRoom(50, 9)),
        ({"a": {"memory": 100}, "b": {"memory": 50, "cores": 9}}, ["b"], QuotaRoom(100, None)),
        ({"a": {"memory": 100}, "b": {"memory": 50, "cores": 9}}, ["a"], QuotaRoom(50, 9)),
        ({"a": {"memory": 100}}, ["a", "a", "unknown"], UNLIMITED),
    ],
)
def test_the_strictest_of_several_quotas_holds(
    quotas: dict[str, dict[str, int]], dropped: list[str], left: QuotaRoom
) -> None:
    assert room(quotas, *dropped) == left


def test_a_changed_quota_replaces_all_its_old_limits() -> None:
    world = cluster().quota("a", memory=100, cores=5).quota("a", cores=7)
    assert world.ledger.quotas.room("default", NVIDIA) == QuotaRoom(None, 7)


def test_quotas_hold_in_their_namespace_only() -> None:
    world = cluster(node().gpus(1)).quota(namespace="poor", memory=0)
    assert world.refused(gpu_pod(mem=10).called("p", namespace="poor")) == {"n1": "1/1 ResourceQuotaNotFit"}
    assert world.chosen(gpu_pod(mem=10)).placement.node == "n1"


def test_what_pods_use_counts_until_they_end() -> None:
    world = cluster(node().gpus(2)).quota(memory=1000, cores=50)
    first = world.start(gpu_pod("first", mem=600, cores=20))
    assert world.ledger.quotas.room("default", NVIDIA) == QuotaRoom(400, 30)
    assert world.refused(gpu_pod("second", mem=600)) == {"n1": "2/2 ResourceQuotaNotFit"}
    assert world.refused(gpu_pod("second", mem=10, cores=31)) == {"n1": "2/2 ResourceQuotaNotFit"}
    world.observe(first.ended())
    assert world.ledger.quotas.room("default", NVIDIA) == QuotaRoom(1000, 50)
    assert world.chosen(gpu_pod("second", mem=600)).placement.node == "n1"


def test_reservations_count_and_are_given_back() -> None:
    world = cluster(node().gpus(1)).quota(memory=1000)
    world.place(gpu_pod(mem=600), deadline=60)
    assert world.ledger.quotas.used("default", "NVIDIA") == Use(1, 600, 0)
    expire(world.ledger, 60)
    assert world.ledger.quotas.used("default", "NVIDIA") == Use()


def test_quota_counts_on_a_node_that_is_not_registered() -> None:
    world = cluster().quota(memory=1000).observe(gpu_pod().on("elsewhere", "G,NVIDIA,900,0:;"))
    assert world.ledger.quotas.room("default", NVIDIA) == QuotaRoom(100, None)


def test_a_quota_below_what_is_used_blocks_and_lets_run() -> None:
    world = cluster(node().gpus(1))
    world.start(gpu_pod("old", mem=600))
    world.quota(memory=100)
    assert world.cards() == {"n1-0": (1, 600, 0)}
    assert world.refused(gpu_pod(mem=1)) == {"n1": "1/1 ResourceQuotaNotFit"}


def test_the_factor_of_a_vendor_scales_the_limit() -> None:
    memory, cores = "cambricon.com/mlu.smlu.vmemory", "cambricon.com/mlu.smlu.vcore"
    world = cluster(node().capacity(**{memory: 100, cores: 100})).quota(hard={f"limits.{memory}": 10})
    assert world.ledger.quotas.room("default", vendors()["MLU"]) == QuotaRoom(2560, None)

    def asking(units: int) -> PodBuilder:
        return pod().container(limits={"cambricon.com/vmlu": 1, memory: units, cores: 1})

    assert world.chosen(asking(10)).placement.node == "n1"
    assert world.refused(asking(11)) == {"n1": "1/1 ResourceQuotaNotFit"}


# -- what a pod counts


@pytest.mark.parametrize(
    ("one", "least"),
    [
        (gpu_pod(gpu=3, mem=100, cores=7), Use(3, 300, 21)),
        (gpu_pod(percent=50), Use(1, 0, 0)),
        (gpu_pod(mem=1, cores=250), Use(1, 1, 100)),
        (pod().container(gpu=1, mem=40).container(gpu=1, mem=30), Use(2, 70, 0)),
        (pod().init(gpu=1, mem=90).container(gpu=1, mem=40).container(gpu=1, mem=30), Use(2, 90, 0)),
        (pod().init(gpu=1, mem=60).init(gpu=1, mem=50).container(gpu=1, mem=70), Use(1, 70, 0)),
        (pod().sidecar(gpu=1, mem=20).init(gpu=1, mem=60).container(gpu=1, mem=50), Use(2, 80, 0)),
    ],
)
def test_a_pod_counts_its_effective_use(one: PodBuilder, least: Use) -> None:
    request = one.request()
    assert bounds(request, "NVIDIA")[0] == least
    assert shortage(request, "NVIDIA", QuotaRoom(least.memory, least.cores)) is None
    world = cluster(node().gpus(8)).quota(memory=100000)
    placement = world.place(one)
    assert placement.node == "n1"
    if least.memory:
        assert world.ledger.quotas.used("default", "NVIDIA") == least


@pytest.mark.parametrize(
    ("one", "most"),
    [
        (gpu_pod(gpu=2, percent=50), Use(2, 8000, 0)),
        (gpu_pod(mem=100, percent=50), Use(1, 100, 0)),
        (pod().init(gpu=1, percent=100).container(gpu=1, percent=25), Use(1, 8000, 0)),
    ],
)
def test_a_percentage_counts_at_most_its_part_of_the_largest_card(one: PodBuilder, most: Use) -> None:
    assert bounds(one.request(), "NVIDIA", largest_card=8000)[1] == most


def test_mig_counts_at_most_whole_cards_for_every_container() -> None:
    request = pod().init(gpu=1, mem=10).container(gpu=2, mem=10, cores=1).request()
    assert bounds(request, "NVIDIA", largest_card=8000, mig=True)[1] == Use(3, 24000, 300)


@pytest.mark.parametrize(
    ("left", "memory", "cores", "cards"),
    [
        (UNLIMITED, 10, 10, None),
        (QuotaRoom(25, None), 10, 0, 2),
        (QuotaRoom(None, 25), 0, 10, 2),
        (QuotaRoom(25, 5), 10, 10, 0),
        (QuotaRoom(-5, None), 10, 0, 0),
        (QuotaRoom(-5, None), 0, 0, 0),
        (QuotaRoom(5, None), 0, 0, None),
        (QuotaRoom(5, 100), 0, 10, 10),
    ],
)
def test_how_many_cards_a_quota_pays_for(left: QuotaRoom, memory: int, cores: int, cards: int | None) -> None:
    assert payable(left, memory=memory, cores=cores) == cards


# -- refusals


def test_two_containers_that_are_too_much_together_are_refused_for_quota() -> None:
    world = cluster(node().gpus(2)).quota(memory=100)
    two = pod().container(gpu=1, mem=60).container(gpu=1, mem=60)
    assert world.refused(two) == {"n1": "2/2 ResourceQuotaNotFit"}


def test_the_container_that_is_short_is_named() -> None:
    world = cluster(node().gpus(2)).quota(memory=100)
    answer = world.fit(pod().container(gpu=1, mem=60).container(gpu=1, mem=160))
    assert isinstance(answer, Misfit)
    assert (answer.container, answer.text) == (1, "2/2 ResourceQuotaNotFit")


@pytest.mark.parametrize(
    ("memory", "text"),
    [
        (0, "1/5 CardNotHealth, 1/5 CardTimeSlicingExhausted, 3/5 ResourceQuotaNotFit"),
        (
            100,
            "1/5 AllocatedCardsInsufficientRequest, 1/5 CardInsufficientMemory, 1/5 CardNotHealth, "
            "1/5 CardTimeSlicingExhausted, 1/5 ResourceQuotaNotFit",
        ),
    ],
)
def test_cards_that_could_not_be_used_anyway_keep_their_own_reason(memory: int, text: str) -> None:
    cards = node().gpu("ill", healthy=False).gpu("full", slots=0).gpu("small", memory=50).gpu("good").gpu("better")
    world = cluster(cards).quota(memory=memory)
    asking = gpu_pod(gpu=2, mem=100)
    assert world.refused(asking) == {"n1": text}
    assert world.fit(asking).text == text  # type: ignore[union-attr]


def test_a_short_quota_is_told_on_every_kind_of_node() -> None:
    mig = node("mig").gpu("M", memory=40960, mode="mig", slots=7, profiles=A100_40GB)
    broken = node("broken").gpus(1).annotate(("hami.io/node-dcu-register", "nonsense"))
    other = node("other").annotate(("hami.io/node-dcu-register", "D,10,1000,100,DCU-K100,0,true:"))
    world = cluster(node("plain").gpus(2), mig, broken, other).quota(memory=100)
    assert world.refused(gpu_pod(mem=101), ["plain", "mig", "broken", "other", "nowhere"]) == {
        "plain": "2/2 ResourceQuotaNotFit",
        "mig": "1/1 ResourceQuotaNotFit",
        "broken": "node usage unavailable",
        "other": "NodeInsufficientDevice",
        "nowhere": "node unregistered",
    }


def test_a_percentage_fits_where_the_quota_pays_for_the_cards_memory() -> None:
    large, small = node("a-large").gpus(1, memory=8000), node("small").gpus(1, memory=2000)
    world = cluster(large, small).quota(memory=1500)
    asking = gpu_pod(percent=50, cores=1)
    assert world.chosen(asking).placement.node == "small"
    assert world.refused(asking, ["a-large"]) == {"a-large": "1/1 ResourceQuotaNotFit"}
    world.start(asking)
    assert world.refused(asking.called("second")) == dict.fromkeys(("a-large", "small"), "1/1 ResourceQuotaNotFit")


def test_of_dear_and_cheap_cards_the_quota_pays_for_a_cheap_pair() -> None:
    cards = node().gpu("cheap0", memory=100).gpu("cheap1", memory=100).gpu("dear", memory=160)
    world = cluster(cards).quota(memory=100)
    asking = gpu_pod(gpu=2, percent=50, cores=1)
    assert sorted(uuids(world.chosen(asking).placement)[0]) == ["cheap0", "cheap1"]


def test_where_the_quota_pays_for_some_cards_of_a_percentage_these_are_counted() -> None:
    world = cluster(node().gpus(3, memory=1000)).quota(memory=1200)
    assert world.refused(gpu_pod(gpu=3, percent=50, cores=1)) == {
        "n1": "1/3 ResourceQuotaNotFit, 2/3 AllocatedCardsInsufficientRequest"
    }


def test_a_mig_instance_counts_as_large_as_it_is() -> None:
    world = cluster(node().gpu("M", memory=40960, mode="mig", slots=7, profiles=A100_40GB)).quota(memory=12000)
    world.start(gpu_pod("first", mem=5000))
    assert world.ledger.quotas.used("default", "NVIDIA") == Use(1, 9856, 29)
    assert world.refused(gpu_pod("second", mem=2000)) == {"n1": "1/1 ResourceQuotaNotFit"}


def test_instances_of_init_containers_count_beside_those_of_apps() -> None:
    world = cluster(node().gpu("M", memory=40960, mode="mig", slots=7, profiles=A100_40GB)).quota(memory=12000)
    two = pod().init(gpu=1, mem=5000).container(gpu=1, mem=5000)
    assert world.refused(two) == {"n1": "1/1 ResourceQuotaNotFit"}
    world.quota(memory=2 * 9856)
    assert world.chosen(two).placement.node == "n1"


def test_a_container_shares_the_quota_with_those_that_run_beside_it_only() -> None:
    world = cluster(node().gpu("dear", memory=200).gpu("cheap", memory=100)).quota(memory=80 + 40)
    world.start(gpu_pod("other", mem=1).called("other", namespace="other").annotate(("nvidia.com/use-gpuuuid", "dear")))
    part, binpacked = {"gpu": 1, "percent": 40, "cores": 1}, pod().policy(device="binpack")
    assert uuids(world.fit(binpacked.container(**part).container(**part))) == [["dear"], ["cheap"]]
    assert uuids(world.fit(binpacked.init(**part).container(**part))) == [["dear"], ["dear"]]


def test_a_short_quota_names_its_container_where_the_vendor_has_no_cards() -> None:
    world = cluster(node().annotate(("hami.io/node-dcu-register", "D,10,1000,100,DCU-K100,0,true:"))).quota(memory=100)
    two = pod().container(gpu=1, mem=60).container(gpu=1, mem=160)
    answer = world.fit(two)
    assert isinstance(answer, Misfit)
    assert (answer.container, answer.text) == (1, "NodeInsufficientDevice")
    assert world.refused(two) == {"n1": answer.text}


def test_cores_beyond_a_whole_card_count_as_a_whole_card() -> None:
    world = cluster(node().gpus(1)).quota(cores=120)
    asking = gpu_pod(mem=10, cores=150)
    assert not isinstance(world.fit(asking), Misfit)
    assert world.chosen(asking).placement.node == "n1"


def test_a_vendor_without_quota_names_is_never_limited() -> None:
    world = cluster(node().capacity(**{"enflame.com/gcu": 1})).quota(hard={"limits.enflame.com/gcu": 0})
    assert world.chosen(pod().container(limits={"enflame.com/gcu": 1})).placement.node == "n1"


def test_a_vendor_that_rounds_cores_up_stays_within_the_quota_of_cores() -> None:
    text = '{"devices":[{"index":"0","minor":"0","capacity":6}],"profiles":{"3g.24gb":"2","6g.48gb":"0"}}'
    world = cluster(node().annotate(("enflame.com/gcu-drs-capacity", text)))
    asking = pod().container(limits={"enflame.com/drs-gcu": 3})
    world.quota(hard={"limits.enflame.com/gcu-core": 49})
    assert world.refused(asking) == {"n1": "1/1 ResourceQuotaNotFit"}
    world.quota(hard={"limits.enflame.com/gcu-core": 50})
    assert world.chosen(asking).placement.node == "n1"


def test_of_dear_and_cheap_cards_the_best_that_the_quota_pays_for_are_taken() -> None:
    cards = node().gpu("dear0", memory=400).gpu("cheap", memory=100).gpu("dear1", memory=160)
    world = cluster(cards).quota(memory=150)
    assert uuids(world.chosen(gpu_pod(gpu=2, percent=50, cores=1)).placement) == [["dear1", "cheap"]]


def test_an_instance_of_an_app_counts_beside_the_share_of_an_init_container() -> None:
    cards = node().gpu("plain").gpu("M", memory=40960, mode="mig", slots=7, profiles=A100_40GB)
    both = pod().init(gpu=1, mem=60000).container(gpu=1, mem=8000).policy(device="binpack")
    assert cluster(cards).quota(memory=65000).refused(both) == {"n1": "2/2 ResourceQuotaNotFit"}
    world = cluster(cards).quota(memory=70000)
    assert uuids(world.chosen(both).placement) == [["plain"], ["M"]]
    world.start(both)
    assert world.ledger.quotas.used("default", "NVIDIA").memory == 60000 + 9856
