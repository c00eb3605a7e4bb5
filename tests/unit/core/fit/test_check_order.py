"""A card that breaks several rules shows the first of them, in HAMi's order, judged alone or among thousands."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tessera.core.fit import card_checks
from tessera.core.model.devices import Device
from tessera.core.model.misfits import CardMisfit, Misfit, Reason
from tessera.core.model.node_info import Card
from tests.support.builders import Cluster, PodBuilder, cluster, gpu_pod, node, pod

ORDER = (
    Reason.CARD_NOT_HEALTHY,
    Reason.CARD_CORDONED,
    Reason.CARD_TYPE_MISMATCH,
    Reason.CARD_UUID_MISMATCH,
    Reason.CARD_SLOTS_EXHAUSTED,
    "mutex",
    Reason.CARD_TOO_MANY_PODS,
    Reason.QUOTA_NOT_FIT,
    Reason.CARD_INSUFFICIENT_MEMORY,
    Reason.CARD_INSUFFICIENT_CORES,
    "whole card",
)
SHOWN = {"mutex": Reason.EXCLUSIVE_CONFLICT, "whole card": Reason.EXCLUSIVE_CONFLICT}


def breaking(rules: Sequence[str]) -> tuple[Cluster, PodBuilder]:
    """A card that another pod shares, and a pod that breaks exactly these rules."""
    card = node().gpu(
        "G",
        healthy=Reason.CARD_NOT_HEALTHY not in rules,
        slots=1 if Reason.CARD_SLOTS_EXHAUSTED in rules else 10,
    )
    if Reason.CARD_CORDONED in rules:
        card = card.cordon("G")
    cores = 50 if Reason.CARD_INSUFFICIENT_CORES in rules else 0
    world = cluster(card).observe(gpu_pod("other").on("n1", f"G,NVIDIA,5000,{cores}:;"))
    if Reason.QUOTA_NOT_FIT in rules:
        world.quota(memory=5500)
    asking = pod("asking").container(
        gpu=1,
        mem=81920 if Reason.CARD_INSUFFICIENT_MEMORY in rules else 1000,
        cores=100 if "whole card" in rules else 10,
    )
    if Reason.CARD_TYPE_MISMATCH in rules:
        asking = asking.annotate(("nvidia.com/use-gputype", "H100"))
    if Reason.CARD_UUID_MISMATCH in rules:
        asking = asking.annotate(("nvidia.com/nouse-gpuuuid", "G"))
    if Reason.CARD_TOO_MANY_PODS in rules:
        asking = asking.annotate(("tessera.io/max-pods-per-card", "1"))
    return world, asking.policy(device="mutex" if "mutex" in rules else "spread")


@pytest.mark.parametrize("first", range(len(ORDER)), ids=ORDER)
def test_the_first_broken_rule_is_shown_before_all_later_ones(first: int) -> None:
    world, asking = breaking(ORDER[first:])
    reason = SHOWN.get(ORDER[first], ORDER[first])
    assert world.refused(asking) == {"n1": f"1/1 {reason}"}
    answer = world.fit(asking)
    assert isinstance(answer, Misfit)
    assert [card.reason for card in answer.cards] == [reason]


@pytest.mark.parametrize("only", [rule for rule in ORDER if rule != Reason.CARD_INSUFFICIENT_CORES])
def test_every_rule_refuses_by_itself(only: str) -> None:
    world, asking = breaking([only])
    assert world.refused(asking) == {"n1": f"1/1 {SHOWN.get(only, only)}"}


def test_a_pod_that_breaks_no_rule_fits() -> None:
    world, asking = breaking([])
    assert world.chosen(asking).placement.node == "n1"


@pytest.mark.parametrize(
    ("mem", "reason"), [(81920, Reason.CARD_INSUFFICIENT_MEMORY), (1000, Reason.CARD_CORES_EXHAUSTED)]
)
def test_a_pod_without_cores_is_refused_on_a_card_whose_cores_are_all_taken(mem: int, reason: Reason) -> None:
    world = cluster(node().gpu("G")).observe(
        gpu_pod("a").on("n1", "G,NVIDIA,5000,60:;"), gpu_pod("b").on("n1", "G,NVIDIA,5000,40:;")
    )
    assert world.refused(gpu_pod(mem=mem)) == {"n1": f"1/1 {reason}"}


def test_a_custom_rule_comes_last() -> None:
    world = cluster(node().capacity(**{"mthreads.com/sgpu-core": 32, "mthreads.com/sgpu-memory": 192}))
    names = {"vgpu": "mthreads.com/vgpu", "memory": "mthreads.com/sgpu-memory", "core": "mthreads.com/sgpu-core"}

    def container(memory: int) -> dict[str, dict[str, int]]:
        return {"limits": {names["vgpu"]: 1, names["memory"]: memory, names["core"]: 8}}

    two = pod().container(**container(64)).container(**container(64))
    assert world.refused(two) == {"n1": "1/2 CardInsufficientMemory, 1/2 CardNotFoundCustomFilterRule"}


@pytest.mark.parametrize(
    ("rules", "misfit"),
    [
        ([Reason.CARD_SLOTS_EXHAUSTED], CardMisfit("G", Reason.CARD_SLOTS_EXHAUSTED, asked=1, free=0, total=1)),
        (["mutex"], CardMisfit("G", Reason.EXCLUSIVE_CONFLICT, asked=10, free=9)),
        ([Reason.CARD_TOO_MANY_PODS], CardMisfit("G", Reason.CARD_TOO_MANY_PODS, asked=1, free=0, total=1)),
        ([Reason.QUOTA_NOT_FIT], CardMisfit("G", Reason.QUOTA_NOT_FIT, asked=1000, free=500)),
        (
            [Reason.CARD_INSUFFICIENT_MEMORY],
            CardMisfit("G", Reason.CARD_INSUFFICIENT_MEMORY, asked=81920, free=76920, total=81920),
        ),
        (
            [Reason.CARD_INSUFFICIENT_CORES, "whole card"],
            CardMisfit("G", Reason.CARD_INSUFFICIENT_CORES, asked=100, free=50, total=100),
        ),
        (["whole card"], CardMisfit("G", Reason.EXCLUSIVE_CONFLICT, asked=100, free=100, total=100)),
    ],
)
def test_a_refused_card_carries_the_numbers_behind_its_reason(rules: list[str], misfit: CardMisfit) -> None:
    world, asking = breaking(rules)
    answer = world.fit(asking)
    assert isinstance(answer, Misfit)
    assert answer.cards == (misfit,)


def test_a_container_that_does_not_fit_alone_is_refused_as_if_it_were_alone() -> None:
    two = pod().container(gpu=1, mem=1000).container(gpu=1, mem=90000)
    answer = cluster(node().gpu("G", slots=1)).fit(two)
    assert isinstance(answer, Misfit)
    assert (answer.container, answer.text) == (1, f"1/1 {Reason.CARD_INSUFFICIENT_MEMORY}")


def test_cards_are_counted_by_reason_and_the_good_ones_as_too_few() -> None:
    cards = node().gpu("a", healthy=False).gpu("b", model="NVIDIA T4").gpu("c", memory=1000).gpu("d")
    asking = gpu_pod(gpu=2, mem=2000).annotate(("nvidia.com/use-gputype", "a100"))
    assert cluster(cards).refused(asking) == {
        "n1": "1/4 AllocatedCardsInsufficientRequest, 1/4 CardInsufficientMemory, 1/4 CardNotHealth, "
        "1/4 CardTypeMismatch"
    }


@pytest.mark.parametrize(("free", "refused"), [(100, False), (99, True)])
def test_a_card_that_lacks_one_mib_or_one_core_is_refused_with_the_numbers(free: int, refused: bool) -> None:
    card = Card(Device("G", "V", memory=1000, cores=200), used_memory=1000 - free, used_cores=200 - free)
    memory = CardMisfit("G", Reason.CARD_INSUFFICIENT_MEMORY, asked=100, free=free, total=1000)
    cores = CardMisfit("G", Reason.CARD_INSUFFICIENT_CORES, asked=100, free=free, total=200)
    found = card_checks.refuse_memory(card, 100), card_checks.refuse_cores(card, 100)
    assert found == ((memory, cores) if refused else (None, None))
