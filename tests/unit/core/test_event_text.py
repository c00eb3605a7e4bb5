"""Sentences of events: complete for a few nodes, bounded for many."""

from __future__ import annotations

import pytest

from tessera.core import event_text
from tessera.core.misfits import CardMisfit, Misfit, Reason, cards_misfit, node_misfit
from tessera.core.selection import Refused
from tests.support.builders import cluster, gpu_pod, node, pod

LIMIT = event_text.NAMED_NODES


def names(count: int) -> list[str]:
    return [f"n{number:03}" for number in range(count)]


@pytest.mark.parametrize("count", [1, LIMIT, LIMIT + 1, 300])
def test_a_success_names_the_best_nodes_and_counts_the_rest(count: int) -> None:
    world = cluster(*(node(name).gpus(1) for name in names(count)))
    text = event_text.success_text(world.chosen(gpu_pod(mem=1), [*names(count), "unknown"]))
    shown = [f"{name}:0.00" for name in reversed(names(min(count, LIMIT)))]
    if count > LIMIT:
        shown.insert(0, f"{count - LIMIT} more ...")
    assert text == f"find fit node(n000), 1 nodes not fit, {count} nodes fit({','.join(shown)})"


def test_nodes_that_nobody_looked_at_are_neither_fit_nor_unfit() -> None:
    mig = [f"with-mig{i}" for i in range(3)]
    world = cluster(node("n1").gpus(1), node("n2").gpus(1), *(node(name).gpus(1, mode="mig") for name in mig))
    text = event_text.success_text(world.chosen(gpu_pod(mem=1), ["n1", "n2", *mig, "unknown"]))
    assert text == "find fit node(n1), 1 nodes not fit, 2 nodes fit(n2:0.00,n1:0.00), 3 nodes not looked at"


def test_where_only_a_look_decides_the_chosen_node_is_the_only_one_that_fits_for_sure() -> None:
    world = cluster(*(node(f"n{i}").gpus(2) for i in range(3)))
    several = pod().container(gpu=1, mem=1).container(gpu=1, mem=1)
    text = event_text.success_text(world.chosen(several, ["n0", "n1", "n2"]))
    assert text == "find fit node(n0), 0 nodes not fit, 1 nodes fit(n0:0.00), 2 nodes not looked at"


def test_in_a_rush_a_success_names_the_chosen_node_alone() -> None:
    placement = cluster(node("n1").gpus(1)).chosen(gpu_pod(mem=1), ["n1"]).placement
    assert event_text.brief_success_text(placement) == "find fit node(n1), score 0.00"


@pytest.mark.parametrize("count", [1, LIMIT, LIMIT + 1, 300])
def test_a_failure_names_some_nodes_for_each_reason_and_counts_the_rest(count: int) -> None:
    world = cluster(*(node(name).gpus(1, healthy=False) for name in names(count)))
    answer = world.select(gpu_pod(mem=1))
    assert isinstance(answer, Refused)
    shown = names(count)[:LIMIT] + ([f"... {count - LIMIT} more"] if count > LIMIT else [])
    assert event_text.failure_texts(answer) == [
        f"{count} nodes CardNotHealth({','.join(shown)})",
        f"no available node, {count} nodes do not meet",
    ]


def test_reasons_of_nodes_have_no_sentence_of_their_own() -> None:
    misfits = {"b": node_misfit(Reason.NODE_UNREGISTERED), "a": node_misfit(Reason.NODE_INSUFFICIENT_DEVICE)}
    assert event_text.failure_texts(Refused(misfits)) == ["no available node, 2 nodes do not meet"]


def test_reasons_are_sorted_and_a_node_may_have_several() -> None:
    one = cards_misfit(
        [CardMisfit("u", Reason.CARD_NOT_HEALTHY), CardMisfit("v", Reason.CARD_CORDONED)],
        total=3,
        vendor="V",
        taken=1,
    )
    two = cards_misfit([CardMisfit("u", Reason.CARD_NOT_HEALTHY)], total=1, vendor="V")
    assert event_text.failure_texts(Refused({"b": one, "a": two})) == [
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
