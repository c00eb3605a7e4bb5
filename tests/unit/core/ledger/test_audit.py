"""Every kind of finding, made to appear; and what looks like one but is none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tessera.core.ledger.audit import BROKEN, OVERCOMMITTED, AuditFinding, audit, overcommitments
from tests.support.builders import A100_40GB, MIG_ALLOCATIONS, Cluster, cluster, gpu_pod, node, pod


def world() -> Cluster:
    one = cluster(node().gpu("G").gpu("H"))
    one.start(gpu_pod(mem=100, cores=10).annotate(("nvidia.com/use-gpuuuid", "G")))
    return one


def texts(one: Cluster, kind: str) -> list[str]:
    return [finding.text for finding in audit(one.ledger) if finding.kind == kind]


def test_a_ledger_that_is_true_has_no_findings() -> None:
    assert audit(world().ledger) == []
    assert audit(cluster().ledger) == []


# -- overcommitted: what the cluster shows is more than there is


@pytest.mark.parametrize(
    ("allocated", "text"),
    [
        ("G,NVIDIA,81821,0:;", "81921 of 81920 MiB granted"),
        ("G,NVIDIA,10,91:;", "101 of 100 cores granted"),
        ("G,NVIDIA,10,0:;" * 10, "11 of 10 slots granted"),
    ],
)
def test_more_than_a_card_has_is_overcommitted(allocated: str, text: str) -> None:
    one = world().observe(gpu_pod("foreign").on("n1", allocated))
    assert audit(one.ledger) == [AuditFinding(OVERCOMMITTED, "n1", "G", text)]


def test_two_pods_on_a_card_of_one_slot_are_overcommitted() -> None:
    one = cluster(node().gpu("G", slots=1)).observe(
        gpu_pod("first").on("n1", "G,NVIDIA,10,0:;"), gpu_pod("second").on("n1", "G,NVIDIA,10,0:;")
    )
    assert texts(one, OVERCOMMITTED) == ["2 of 1 slots granted"]


def test_a_whole_card_that_is_shared_is_overcommitted() -> None:
    one = cluster(node().gpu("G", cores=200)).observe(
        gpu_pod("whole").on("n1", "G,NVIDIA,10,100:;"), gpu_pod("beside").on("n1", "G,NVIDIA,10,0:;")
    )
    assert [(finding.card, finding.kind) for finding in audit(one.ledger)] == [("G", OVERCOMMITTED)]
    assert "whole card shares it" in audit(one.ledger)[0].text


def test_two_containers_that_use_up_the_cores_together_may_share() -> None:
    one = cluster(node().gpu("G"))
    one.start(gpu_pod("first", mem=10))
    one.start(pod().container(gpu=1, mem=10, cores=50).container(gpu=1, mem=10, cores=50))
    assert one.cards() == {"G": (3, 30, 100)}


def test_an_init_container_that_had_the_whole_card_and_ended_is_no_finding() -> None:
    one = cluster(node().gpu("G"))
    running = one.start(pod().init(gpu=1, mem=10, cores=100).container(gpu=1, mem=10, cores=10))
    one.observe(running.after_init("init0"))
    one.start(gpu_pod("beside", mem=10))
    assert one.cards() == {"G": (2, 20, 10)}


def test_mig_instances_on_one_place_are_overcommitted() -> None:
    card = node().gpu("M", memory=40960, mode="mig", slots=7, profiles=A100_40GB)
    reserved = '[{"gpuUUID":"M","profile":"1g.5gb","placement":{"start":6,"size":1}}]'
    holders = [
        gpu_pod(name).on("n1", "M,NVIDIA,4864,14:;").annotate((MIG_ALLOCATIONS, reserved)) for name in ("a", "b")
    ]
    assert texts(cluster(card).observe(*holders), OVERCOMMITTED) == ["MIG instances overlap"]


@pytest.mark.parametrize(("claimed", "expected"), [(81_920, []), (81_921, ["81921 of 81920 MiB granted"])])
def test_what_is_nominated_must_fit_once_its_victims_have_left(claimed: int, expected: list[str]) -> None:
    one = cluster(node().gpu("G")).observe(gpu_pod("victim").on("n1", "G,NVIDIA,81920,0:;"))
    one.ledger.nominate(gpu_pod("nominee").on("n1", f"G,NVIDIA,{claimed},0:;").facts(), frozenset({"uid-victim"}))
    assert list(overcommitments(one.ledger, "n1", ["G"])) == texts(one, OVERCOMMITTED) == expected
    assert texts(one, BROKEN) == []


def test_a_card_of_one_core_is_shared_by_pods_without_cores_only() -> None:
    one = cluster(node().gpu("G", cores=1)).observe(
        gpu_pod("whole").on("n1", "G,NVIDIA,10,1:;"), gpu_pod("beside").on("n1", "G,NVIDIA,10,0:;")
    )
    assert texts(one, OVERCOMMITTED) == ["a container that has the whole card shares it"]


def test_of_a_card_in_mig_mode_slots_and_places_are_the_limit_and_not_its_memory() -> None:
    card = node().gpu("M", memory=9000, mode="mig", slots=1, profiles=A100_40GB)
    reserved = '[{{"gpuUUID":"M","profile":"1g.5gb","placement":{{"start":{},"size":1}}}}]'
    holders = [
        gpu_pod(f"p{at}").on("n1", "M,NVIDIA,4864,14:;").annotate((MIG_ALLOCATIONS, reserved.format(at)))
        for at in (5, 6)
    ]
    assert texts(cluster(card).observe(*holders), OVERCOMMITTED) == ["2 of 1 slots granted"]


# -- broken: the books do not agree with themselves


def unbook_a_pod(one: Cluster) -> None:
    entry = one.ledger.pod("uid-p")
    assert entry is not None
    entry.holdings = {}


def miscount_a_card(one: Cluster) -> None:
    view = one.ledger.node("n1")
    assert view is not None
    view.cards[0].used_memory += 1


def lose_a_column(one: Cluster) -> None:
    one.ledger.arrays.remove("n1")


def miscount_a_score(one: Cluster) -> None:
    one.ledger.arrays.score[one.ledger.arrays.row("n1")] += 1


def open_a_node(one: Cluster) -> None:
    one.ledger.arrays.unavailable[one.ledger.arrays.row("n1")] = True


def miscount_the_arrays(one: Cluster) -> None:
    one.ledger.arrays.used[0, one.ledger.arrays.row("n1")] += 1


def cure_a_card(one: Cluster) -> None:
    one.ledger.arrays.sick[1, one.ledger.arrays.row("n1")] = True


def miscount_a_quota(one: Cluster) -> None:
    entry = one.ledger.pod("uid-p")
    assert entry is not None
    one.ledger.quotas.charge("default", "NVIDIA", next(iter(entry.holdings.values())).use)


@pytest.mark.parametrize(
    ("damage", "parts"),
    [
        (unbook_a_pod, ["pod uid-p is charged {}, not"]),
        (miscount_a_card, ["card shows (1, 101, 10), its pods hold (1, 100, 10)", "score", "arrays show"]),
        (lose_a_column, ["node has no column"]),
        (miscount_a_score, ["score"]),
        (open_a_node, ["the arrays disagree about whether the node is available"]),
        (miscount_the_arrays, ["arrays show"]),
        (cure_a_card, ["the arrays disagree about the card's health"]),
        (miscount_a_quota, ["quota use of default is"]),
    ],
)
def test_books_that_disagree_are_broken(damage: Callable[[Cluster], None], parts: list[str]) -> None:
    one = world()
    damage(one)
    found = texts(one, BROKEN)
    assert len(found) == len(parts)
    assert all(text.startswith(part) for text, part in zip(found, parts, strict=True))


def test_instances_that_the_arrays_do_not_show_are_broken() -> None:
    one = cluster(node("n1").gpu("M", memory=40960, mode="mig", slots=7, profiles=A100_40GB))
    one.place(gpu_pod(mem=4000))
    assert audit(one.ledger) == []
    one.ledger.arrays.taken[0, one.ledger.arrays.row("n1")] = 0
    assert [finding.text for finding in audit(one.ledger)] == ["the arrays disagree about the card's instances"]


def test_a_node_too_wide_for_the_arrays_and_one_without_cards_are_audited_too() -> None:
    one = cluster(node("wide").gpus(65), node("bare"))
    one.start(gpu_pod(mem=100), ["wide"])
    assert audit(one.ledger) == []
