"""What gangs of a namespace may hold without being bound."""

from __future__ import annotations

import pytest

from tessera.core.ledger.holdings import Holding
from tessera.core.model.devices import Device
from tessera.core.model.grants import Use
from tessera.scheduler.features.gangs.accounts import FULL_S, RESERVE_S, cards_taken
from tests.support.gangs import CARDS, SHARE, Accounts


def test_a_full_account_pays_for_all_cards_for_five_minutes() -> None:
    accounts = Accounts()
    accounts.open("a", "held", CARDS)
    accounts.now = FULL_S - RESERVE_S
    assert accounts.pays_for("a")
    accounts.now += 1
    assert not accounts.pays_for("a")
    assert accounts.overdrawn() == ["a"]
    assert accounts.pays_for("b")


def test_what_is_bound_costs_nothing() -> None:
    accounts = Accounts()
    for _ in range(100):
        accounts.open("a", "held", CARDS)
        accounts.now += 100
        accounts.close("held", bound=True)
    accounts.open("a", "held", CARDS)
    assert accounts.pays_for("a")


@pytest.mark.parametrize(("cards", "seconds"), [(CARDS, 200.0), (CARDS / 2, 100.0), (1, RESERVE_S / (SHARE * CARDS))])
def test_an_empty_account_pays_again_after_a_while(cards: float, seconds: float) -> None:
    accounts = Accounts()
    accounts.open("a", "held", CARDS)
    accounts.now += FULL_S
    accounts.close("held")
    assert accounts.pays_again_at("a", cards) == pytest.approx(accounts.now + seconds)
    accounts.now = accounts.pays_again_at("a", cards) + 0.001
    accounts.open("a", "held", cards)
    assert accounts.pays_for("a")


def test_what_goes_on_under_another_name_is_paid_from_its_beginning() -> None:
    accounts = Accounts()
    accounts.open("a", "hold", CARDS)
    accounts.open("a", "hold", CARDS)
    accounts.now = FULL_S
    accounts.rename("hold", "member")
    assert (accounts.held_by("a"), accounts.cards_of("hold"), accounts.cards_of("member")) == (CARDS, None, CARDS)
    accounts.close("hold")
    accounts.close("member")
    assert accounts.held_by("a") == 0
    assert accounts.pays_again_at("a", CARDS) > accounts.now


@pytest.mark.parametrize(
    ("use", "cards"),
    [
        (Use(1, 80_000, 100), 1.0),
        (Use(1, 8_000, 10), 0.1),
        (Use(1, 8_000, 100), 1.0),
        (Use(5, 8_000, 10), 0.5),
        (Use(20, 160_000, 200), 1.0),
    ],
)
def test_a_part_of_a_card_counts_as_its_largest_share(use: Use, cards: float) -> None:
    devices = {"u": Device("u", "NVIDIA", slots=10, memory=80_000, cores=100)}
    assert cards_taken({"u": Holding(use), "gone": Holding(use)}, devices) == pytest.approx(cards)
