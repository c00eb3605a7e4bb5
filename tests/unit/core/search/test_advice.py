"""What would help a pod that fits nowhere: numbers that are right, and changes that were seen to fit."""

from __future__ import annotations

import pytest

from tessera.core.fit.card_rules.amounts import Shortage
from tessera.core.model.misfits import CardMisfit, Misfit, Reason, cards_misfit, node_misfit
from tessera.core.model.requests import PodRequest
from tessera.core.search import advice, finish
from tessera.core.search.advice import advise, mode_advice, smallest_changes
from tessera.core.search.near_misses import FewCards, NearMiss, near_miss
from tessera.core.search.selection import Refused
from tessera.vendors.node_reader import node_facts
from tests.support.builders import A100_40GB, Cluster, NodeBuilder, PodBuilder, cluster, gpu_pod, node, pod, vendors


def world() -> Cluster:
    one = cluster(node("n1").gpu("small", memory=8000), node("n2").gpu("large", memory=80000))
    one.observe(gpu_pod("x").on("n1", "small,NVIDIA,1000,70:;"), gpu_pod("y").on("n2", "large,NVIDIA,60000,0:;"))
    return one


def asked(one: PodBuilder) -> PodRequest:
    return one.request()


def nearest(one: Cluster, asking: PodBuilder) -> NearMiss | FewCards | None:
    return near_miss(one.ledger, asked(asking), one.selector.candidates(one.ledger.node_names()).rows)


def test_the_nearest_card_lacks_the_least_of_what_is_asked() -> None:
    found = nearest(world(), gpu_pod(mem=21000))
    assert found == NearMiss("n2", "large", (Shortage("MiB", 21000, 20000, 80000),), is_most=True)
    assert found.text == "needs 21000 MiB; the most free on one card is 20000 of 80000 MiB on n2 (large)"


def test_a_full_card_is_not_nearest_because_it_is_large() -> None:
    one = cluster(node("big").gpu("b", memory=81920), node("l4-1").gpu("l", memory=23034))
    one.observe(gpu_pod("x").on("big", "b,NVIDIA,81920,0:;"), gpu_pod("y").on("l4-1", "l,NVIDIA,19500,0:;"))
    found = nearest(one, gpu_pod(mem=5000))
    assert found is not None
    assert found.text == "needs 5000 MiB; the most free on one card is 3534 of 23034 MiB on l4-1 (l)"


def test_where_every_card_is_full_no_card_is_called_near() -> None:
    one = cluster(node("a").gpu("a0", memory=100), node("b").gpu("b0", memory=9000))
    one.observe(gpu_pod("x").on("a", "a0,NVIDIA,100,0:;"), gpu_pod("y").on("b", "b0,NVIDIA,9000,0:;"))
    found = nearest(one, gpu_pod(mem=50))
    assert found is not None
    assert found.text == "needs 50 MiB on one card; no card that it accepts has any free"


def test_a_card_that_lacks_a_little_memory_and_all_cores_is_not_near() -> None:
    one = cluster(node("a").gpu("a0", memory=10000), node("b").gpu("b0", memory=10000))
    one.observe(gpu_pod("x").on("a", "a0,NVIDIA,2000,99:;"), gpu_pod("y").on("b", "b0,NVIDIA,5000,0:;"))
    found = nearest(one, gpu_pod(mem=8001, cores=50))
    assert found is not None
    assert found.text == "needs 8001 MiB on one card; nearest is b (b0) with 5000 of 10000 MiB free"


def test_of_cards_that_lack_as_many_cores_the_one_with_enough_memory_is_nearer() -> None:
    one = cluster(node("a").gpu("a0", memory=1000), node("b").gpu("b0", memory=1000))
    one.observe(gpu_pod("x").on("a", "a0,NVIDIA,100,75:;"), gpu_pod("y").on("b", "b0,NVIDIA,0,75:;"))
    found = nearest(one, gpu_pod(mem=1000, cores=50))
    assert found is not None
    assert found.text == "needs 50 cores; the most free on one card is 25 of 100 cores on b (b0)"


def test_everything_that_the_nearest_card_lacks_is_told() -> None:
    found = nearest(world(), gpu_pod(mem=21000, cores=100).annotate(("nvidia.com/use-gpuuuid", "large")))
    assert found is not None
    assert found.text == (
        "needs a card of its own; nearest is n2 (large) with 20000 of 80000 MiB and 9 of 10 slots free"
    )


@pytest.mark.parametrize(
    ("asking", "text"),
    [
        (
            gpu_pod(mem=10).policy(device="mutex"),
            "needs a card of its own; nearest is n1 (used) with 9 of 10 slots free",
        ),
        (
            gpu_pod(mem=10, cores=100),
            "needs a card of its own; nearest is n1 (used) with 9 of 10 slots free",
        ),
    ],
)
def test_a_pod_that_wants_a_card_of_its_own_is_told_the_card_with_the_fewest_others(
    asking: PodBuilder, text: str
) -> None:
    one = cluster(node("n0").gpu("busy"), node("n1").gpu("used"))
    one.observe(
        gpu_pod("x").on("n0", "busy,NVIDIA,10,0:;"),
        gpu_pod("z").on("n0", "busy,NVIDIA,10,0:;"),
        gpu_pod("y").on("n1", "used,NVIDIA,10,0:;"),
    )
    found = nearest(one, asking)
    assert found is not None
    assert found.text == text


def test_slots_may_be_what_is_short() -> None:
    one = cluster(node("n1").gpu("G", slots=1))
    one.observe(gpu_pod("x").on("n1", "G,NVIDIA,10,0:;"))
    found = nearest(one, gpu_pod(mem=10))
    assert found is not None
    assert found.text == "needs a card with a free slot; nearest is n1 (G) with 0 of 1 slots free"


MIG_ADVICE = (
    "every NVIDIA card is in MIG mode, and a pod gets a MIG instance only with the annotation nvidia.com/vgpu-mode: mig"
)


def mig_node(name: str = "m1") -> NodeBuilder:
    return node(name).gpu(f"{name}-0", mode="mig", profiles=A100_40GB).gpu(f"{name}-1", mode="mig", profiles=A100_40GB)


@pytest.mark.parametrize(
    ("nodes", "asking", "advice"),
    [
        ([mig_node()], gpu_pod(), MIG_ADVICE),
        ([mig_node(), mig_node("m2")], gpu_pod(), MIG_ADVICE),
        ([mig_node(), node("cpu")], gpu_pod(), MIG_ADVICE),
        ([mig_node()], gpu_pod().annotate(("nvidia.com/vgpu-mode", "hami-core")), MIG_ADVICE),
        ([mig_node()], gpu_pod().annotate(("nvidia.com/vgpu-mode", "mig")), ""),
        ([mig_node(), node("n1").gpus(1, mode="hami-core")], gpu_pod(), ""),
        ([mig_node(), node("n1").gpus(1)], gpu_pod(), ""),
        ([node("n1").gpus(1)], gpu_pod(), ""),
        ([], gpu_pod(), ""),
        ([mig_node()], pod().container(), ""),
        ([mig_node()], pod().container(limits={"hygon.com/dcunum": 1}), ""),
    ],
)
def test_a_pod_that_did_not_ask_for_mig_is_told_so_where_there_is_nothing_else(
    nodes: list[NodeBuilder], asking: PodBuilder, advice: str
) -> None:
    assert mode_advice(cluster(*nodes).ledger, asked(asking)) == advice


def test_cards_that_are_gone_or_changed_their_mode_do_not_count() -> None:
    one = cluster(mig_node(), node("n1").gpus(1))
    one.ledger.forget_node("n1")
    assert mode_advice(one.ledger, asked(gpu_pod())) == MIG_ADVICE
    one.ledger.observe_node(node_facts(node("m1").gpus(1, mode="hami-core").api(), vendors()))
    assert mode_advice(one.ledger, asked(gpu_pod())) == ""


def test_cores_may_be_what_is_short() -> None:
    one = world()
    found = near_miss(one.ledger, asked(gpu_pod(mem=10, cores=40)), one.selector.candidates(["n1"]).rows)
    assert found is not None
    assert found.text == "needs 40 cores; the most free on one card is 30 of 100 cores on n1 (small)"


def test_equal_shortfalls_are_decided_by_name() -> None:
    one = cluster(node("b").gpu("u", memory=10), node("a").gpu("w", memory=10).gpu("v", memory=10))
    found = nearest(one, gpu_pod(mem=11))
    assert isinstance(found, NearMiss)
    assert (found.node, found.uuid) == ("a", "w")


def test_a_pod_that_no_smaller_request_would_help_has_no_near_miss() -> None:
    one = world()
    assert nearest(one, gpu_pod(mem=1).annotate(("nvidia.com/use-gputype", "T4"))) is None
    assert nearest(cluster(), gpu_pod(mem=1)) is None
    assert nearest(one, gpu_pod(mem=1)) is None
    assert nearest(cluster(node().gpu("G", memory=0)), gpu_pod(mem=1)) is None
    assert nearest(one, pod().container()) is None
    assert nearest(one, pod().container(limits={"enflame.com/gcu": 9})) is None


def test_ill_and_closed_cards_and_unreadable_nodes_are_never_nearest() -> None:
    one = world().add(node("n0").gpu("ill", memory=20999, healthy=False))
    one.add(node("n4").gpu("unsure", memory=20999).annotate(("hami.io/node-dcu-register", "nonsense")))
    one.add(node("n5").gpu("closed", memory=20999).cordon("closed"))
    found = nearest(one, gpu_pod(mem=21000))
    assert isinstance(found, NearMiss)
    assert found.node == "n2"


def test_containers_that_fit_alone_but_not_together_have_the_numbers_of_the_plain_rule() -> None:
    one = world()
    both = pod().container(gpu=1, mem=15000).container(gpu=1, mem=15000)
    assert nearest(one, both) is None
    found = finish(advise(one.ledger, asked(both), ["n1", "n2"])).near_miss
    assert found is not None
    assert found.text == "needs 15000 MiB on one card; nearest is n2 (large) with 5000 of 80000 MiB free"


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (gpu_pod(mem=21000), ["container c0: 20000 instead of 21000 MiB of memory would fit on n2"]),
        (gpu_pod(percent=90, cores=1), ["container c0: 87 instead of 90 % of memory would fit on n1"]),
        (gpu_pod(gpu=3, mem=10), ["container c0: 1 instead of 3 cards would fit on n1"]),
        (gpu_pod(mem=5000, cores=200).annotate(("nvidia.com/use-gpuuuid", "small")), ["30 instead of 200 cores"]),
        (
            pod().container(gpu=1, mem=15000).container(gpu=1, mem=15000),
            [
                "container c0: 5000 instead of 15000 MiB of memory would fit on n2",
                "container c1: 5000 instead of 15000 MiB of memory would fit on n2",
            ],
        ),
        (gpu_pod(mem=10).annotate(("nvidia.com/use-gputype", "T4")), []),
        (gpu_pod(gpu=2, mem=90000), []),
    ],
)
def test_the_largest_change_that_fits_is_advised(one: PodBuilder, expected: list[str]) -> None:
    found = [change.text for change in finish(smallest_changes(world().ledger, asked(one), ["n1", "n2"]))]
    assert len(found) == len(expected)
    assert all(part in text for part, text in zip(expected, found, strict=True))


@pytest.mark.parametrize("mem", [21000, 77777, 10**6])
def test_an_advised_change_fits_and_one_more_does_not(mem: int) -> None:
    one = world()
    asking = gpu_pod(mem=mem)
    assert set(one.refused(asking)) == {"n1", "n2"}
    (change,) = finish(smallest_changes(one.ledger, asked(asking), ["n1", "n2"]))
    assert one.chosen(gpu_pod(mem=change.fits)).placement.node == change.node
    assert set(one.refused(gpu_pod(mem=change.fits + 1))) == {"n1", "n2"}


def test_advice_respects_quotas_and_changes_nothing() -> None:
    one = world().quota(memory=70000)
    before = one.ledger.state()
    advice = finish(advise(one.ledger, asked(gpu_pod(mem=30000)), ["n1", "n2"]))
    assert [change.fits for change in advice.changes] == [9000]
    assert advice.near_miss is None
    assert one.ledger.state() == before


def test_only_the_request_that_is_named_is_changed() -> None:
    one = cluster(node().gpu("G", memory=1000).capacity(**{"enflame.com/gcu": 2}))
    both = pod().container(gpu=1, mem=1500, limits={"enflame.com/gcu": 2})
    (change,) = finish(smallest_changes(one.ledger, asked(both), ["n1"]))
    assert (change.field, change.asked, change.fits) == ("memory", 1500, 1000)


def test_where_some_cards_fit_the_node_with_most_of_them_comes_nearest() -> None:
    one = cluster(
        node("a").gpu("a0", memory=10).gpu("a1", memory=10).gpu("a2", memory=5),
        node("b").gpu("b0", memory=10).gpu("b1", memory=5).gpu("b2", memory=5),
    )
    found = nearest(one, pod().container(gpu=3, mem=8))
    assert found == FewCards("a", asked=3, found=2)
    assert found.text == "needs 3 cards that fit on one node; the most are 2 on a"


def test_of_several_cards_a_little_less_memory_is_nearer_than_fewer_cards() -> None:
    one = cluster(
        node("a").gpu("a0", memory=100).gpu("a1", memory=100).gpu("a2", memory=99),
        node("b").gpu("b0", memory=100).gpu("b1", memory=100),
    )
    found = nearest(one, pod().container(gpu=3, mem=100))
    assert found is not None
    assert found.text == (
        "needs 3 cards on one node with 100 MiB each; nearest is a, where 2 of its cards fit, "
        "and the next has 99 of 99 MiB free (a2)"
    )


def test_more_cards_than_any_node_has_names_the_node_with_the_most() -> None:
    one = cluster(node("a").gpus(2), node("b").gpus(8), node("c").gpus(8))
    found = nearest(one, pod().container(gpu=9, mem=10))
    assert found is not None
    assert found.text == "needs 9 cards that fit on one node; the most are 8 on b"


LIMIT = advice.NAMED_NODES


def names(count: int) -> list[str]:
    return [f"n{number:03}" for number in range(count)]


@pytest.mark.parametrize("count", [1, LIMIT, LIMIT + 1, 300])
def test_a_success_names_the_best_nodes_and_counts_the_rest(count: int) -> None:
    world = cluster(*(node(name).gpus(1) for name in names(count)))
    text = advice.success_text(world.chosen(gpu_pod(mem=1), [*names(count), "unknown"]))
    shown = [f"{name}:0.00" for name in reversed(names(min(count, LIMIT)))]
    if count > LIMIT:
        shown.insert(0, f"{count - LIMIT} more ...")
    assert text == f"find fit node(n000), 1 nodes not fit, {count} nodes fit({','.join(shown)})"


def test_nodes_that_nobody_looked_at_are_neither_fit_nor_unfit() -> None:
    mig = [f"with-mig{i}" for i in range(3)]
    world = cluster(node("n1").gpus(1), node("n2").gpus(1), *(node(name).gpus(1, mode="mig") for name in mig))
    text = advice.success_text(world.chosen(gpu_pod(mem=1), ["n1", "n2", *mig, "unknown"]))
    assert text == "find fit node(n1), 1 nodes not fit, 2 nodes fit(n2:0.00,n1:0.00), 3 nodes not looked at"


def test_where_only_a_look_decides_the_chosen_node_is_the_only_one_that_fits_for_sure() -> None:
    world = cluster(*(node(f"n{i}").gpus(2) for i in range(3)))
    several = pod().container(gpu=1, mem=1).container(gpu=1, mem=1)
    text = advice.success_text(world.chosen(several, ["n0", "n1", "n2"]))
    assert text == "find fit node(n0), 0 nodes not fit, 1 nodes fit(n0:0.00), 2 nodes not looked at"


def test_in_a_rush_a_success_names_the_chosen_node_alone() -> None:
    placement = cluster(node("n1").gpus(1)).chosen(gpu_pod(mem=1), ["n1"]).placement
    assert advice.brief_success_text(placement) == "find fit node(n1), score 0.00"


@pytest.mark.parametrize("count", [1, LIMIT, LIMIT + 1, 300])
def test_a_failure_names_some_nodes_for_each_reason_and_counts_the_rest(count: int) -> None:
    world = cluster(*(node(name).gpus(1, healthy=False) for name in names(count)))
    answer = world.select(gpu_pod(mem=1))
    assert isinstance(answer, Refused)
    shown = names(count)[:LIMIT] + ([f"... {count - LIMIT} more"] if count > LIMIT else [])
    assert advice.failure_texts(answer) == [
        f"{count} nodes CardNotHealth({','.join(shown)})",
        f"no available node, {count} nodes do not meet",
    ]


def test_reasons_of_nodes_have_no_sentence_of_their_own() -> None:
    misfits = {"b": node_misfit(Reason.NODE_UNREGISTERED), "a": node_misfit(Reason.NODE_INSUFFICIENT_DEVICE)}
    assert advice.failure_texts(Refused(misfits)) == ["no available node, 2 nodes do not meet"]


def test_reasons_are_sorted_and_a_node_may_have_several() -> None:
    one = cards_misfit(
        [CardMisfit("u", Reason.CARD_NOT_HEALTHY), CardMisfit("v", Reason.CARD_CORDONED)],
        total=3,
        vendor="V",
        taken=1,
    )
    two = cards_misfit([CardMisfit("u", Reason.CARD_NOT_HEALTHY)], total=1, vendor="V")
    assert advice.failure_texts(Refused({"b": one, "a": two})) == [
        "1 nodes AllocatedCardsInsufficientRequest(b)",
        "1 nodes CardCordoned(b)",
        "2 nodes CardNotHealth(a,b)",
        "no available node, 2 nodes do not meet",
    ]


def test_the_text_of_a_misfit_is_sorted_as_strings() -> None:
    cards = [CardMisfit(f"u{i}", Reason.CARD_INSUFFICIENT_MEMORY) for i in range(10)]
    misfit = cards_misfit([*cards, CardMisfit("x", Reason.CARD_TYPE_MISMATCH)], total=12, vendor="V", taken=1)
    assert misfit.text == (
        "1/12 AllocatedCardsInsufficientRequest, 1/12 CardTypeMismatch, 10/12 CardInsufficientMemory"
    )


def test_a_misfit_about_nothing_is_a_node_that_cannot_be_used() -> None:
    assert Misfit(()).text == "node usage unavailable"


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (Reason.NODE_UNREGISTERED, "node unregistered"),
        (Reason.NODE_UNAVAILABLE, "node usage unavailable"),
        (Reason.NODE_INSUFFICIENT_DEVICE, "NodeInsufficientDevice"),
        (Reason.VENDOR_UNKNOWN, "Device type not found"),
    ],
)
def test_node_reasons_stand_alone(reason: Reason, text: str) -> None:
    assert node_misfit(reason, total=4, detail="more").text == text
