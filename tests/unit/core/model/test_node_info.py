"""Scores of cards with a request on them, and of nodes before it."""

from __future__ import annotations

import pytest

from tessera.core.model.devices import Device
from tessera.core.model.node_info import Card, device_scores, node_score
from tessera.core.model.requests import Request, Weights

HALF = Request("V", 1, memory=4000, cores=50)


def card(*, slots: int = 10, memory: int = 8000, cores: int = 100, use: tuple[int, int, int] = (0, 0, 0)) -> Card:
    device = Device("u", "V", slots=slots, memory=memory, cores=cores, model="NVIDIA A100")
    return Card(device, used=use[0], used_memory=use[1], used_cores=use[2])


@pytest.mark.parametrize(
    ("one", "request_", "weights", "score"),
    [
        (card(), HALF, Weights(), 10 * (0.1 + 0.5 + 0.5)),
        (card(use=(1, 2000, 25)), HALF, Weights(), 10 * (0.2 + 0.75 + 0.75)),
        (card(), Request("V", 3, memory=4000, cores=50), Weights(), 10 * (0.1 + 0.5 + 0.5)),
        (card(), Request("V", 1, percent=25), Weights(), 10 * (0.1 + 0.25)),
        (card(), Request("V", 1, percent=100, cores=100), Weights(), 10 * (0.1 + 1 + 1)),
        (card(cores=200), Request("V", 1, memory=4000, cores=100), Weights(), 10 * (0.1 + 1 + 0.5)),
        (card(cores=50), Request("V", 1, memory=4000, cores=50), Weights(), 10 * (0.1 + 1 + 0.5)),
        (card(), HALF, Weights(slot=2, core=0, memory=3), 10 * (2 * 0.1 + 3 * 0.5)),
        (card(memory=0), HALF, Weights(), 10 * (0.1 + 0.5)),
        (card(cores=0), HALF, Weights(), 10 * (0.1 + 0.5)),
        (card(slots=0), HALF, Weights(), 10 * (0.5 + 0.5)),
    ],
)
def test_the_score_of_a_card(one: Card, request_: Request, weights: Weights, score: float) -> None:
    assert device_scores([one], request_, weights) == pytest.approx([score])


def test_the_score_of_a_card_does_not_depend_on_how_its_model_is_written() -> None:
    plain = Card(Device("u", "V", slots=10, memory=8000, model="V"))
    assert device_scores([plain], HALF, Weights()) == device_scores([card()], HALF, Weights())


def test_every_card_is_scored_by_its_own_size() -> None:
    request = Request("V", 1, percent=50, cores=100)
    mixed = [card(), card(memory=1000), card(cores=50), card(use=(2, 0, 0)), card(memory=1000, use=(0, 500, 0))]
    assert device_scores(mixed, request, Weights()) == [device_scores([one], request, Weights())[0] for one in mixed]


@pytest.mark.parametrize(
    ("cards", "score"),
    [
        ([], 0.0),
        ([card()], 0.0),
        ([card(use=(1, 2000, 25)), card()], 10 * (1 / 20 + 25 / 200 + 2000 / 16000)),
        ([card(use=(1, 6000, 75)), card()], 10 * (1 / 20 + 75 / 200 + 6000 / 16000)),
        ([card(use=(10, 8000, 100))], 30.0),
        ([card(memory=0, use=(5, 0, 50))], 10 * (0.5 + 0.5)),
        ([card(slots=0, memory=0, cores=0)], 0.0),
    ],
)
def test_the_score_of_a_node_is_the_use_of_all_its_cards(cards: list[Card], score: float) -> None:
    assert node_score(cards) == pytest.approx(score)
