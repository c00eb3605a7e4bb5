"""A driver that comes later than the agent is found, and from then on it is asked."""

from __future__ import annotations

from collections.abc import Callable
from json import dumps
from pathlib import Path
from typing import Any

import pytest

from tessera.host.cards import CardError, CardEvent, CardFacts, ComputeMode, Hardware
from tessera.host.no_driver import AwaitedHardware
from tessera.host.simulated.hardware import SimulatedHardware, simulated_hardware


class Driver:
    """Cards that are there once it came."""

    def __init__(self, folder: Path) -> None:
        file = folder / "cards.json"
        file.write_text(dumps({"cards": [{"model": "H200", "count": 2}]}))
        self.cards: SimulatedHardware = simulated_hardware(file, node_name="n")
        self.came = False
        self.made = 0

    def make(self) -> Hardware:
        self.made += 1
        return self.cards

    @property
    def uuid(self) -> str:
        found = self.cards.scan()[0]
        assert isinstance(found, CardFacts)
        return found.uuid


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path)


@pytest.fixture
def awaited(driver: Driver) -> AwaitedHardware:
    return AwaitedHardware(lambda: driver.came, driver.make)


def test_a_node_without_a_driver_has_no_cards_until_it_comes(driver: Driver, awaited: AwaitedHardware) -> None:
    assert (awaited.scan(), awaited.scan(), driver.made) == ([], [], 0)
    driver.came = True
    assert awaited.scan() == driver.cards.scan()
    assert awaited.scan() == driver.cards.scan()
    assert driver.made == 1


def test_a_driver_that_goes_again_is_not_looked_for_anew(driver: Driver, awaited: AwaitedHardware) -> None:
    driver.came = True
    awaited.scan()
    driver.came = False
    assert awaited.scan() == driver.cards.scan()


QUESTIONS: dict[str, Callable[[AwaitedHardware, str], Any]] = {
    "mig_enabled": lambda hardware, uuid: hardware.mig_enabled(uuid),
    "instances": lambda hardware, uuid: hardware.instances(uuid),
    "compute_mode": lambda hardware, uuid: hardware.compute_mode(uuid),
    "links": lambda hardware, uuid: hardware.links([uuid]),
    "enable_mig": lambda hardware, uuid: hardware.enable_mig(uuid),
    "disable_mig": lambda hardware, uuid: hardware.disable_mig(uuid),
    "set_compute_mode": lambda hardware, uuid: hardware.set_compute_mode(uuid, ComputeMode.EXCLUSIVE_PROCESS),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_no_card_can_answer_a_card_answers_later(driver: Driver, awaited: AwaitedHardware, question: str) -> None:
    with pytest.raises(CardError, match="no cards"):
        QUESTIONS[question](awaited, driver.uuid)
    driver.came = True
    awaited.scan()
    QUESTIONS[question](awaited, driver.uuid)


def test_instances_are_made_and_destroyed_by_the_driver(driver: Driver, awaited: AwaitedHardware) -> None:
    driver.came = True
    (card, _) = awaited.scan()
    assert isinstance(card, CardFacts)
    awaited.enable_mig(card.uuid)
    offer = card.mig_profiles[0]
    made = awaited.create(card.uuid, offer, offer.placements[0])
    assert awaited.instances(card.uuid) == [made]
    awaited.destroy(made)
    assert awaited.instances(card.uuid) == []
    assert not awaited.is_busy(card.uuid)


def test_events_are_heard_once_the_driver_is_there(driver: Driver, awaited: AwaitedHardware) -> None:
    assert awaited.wait(0.0) is None
    assert list(awaited.listen([driver.uuid])) == [driver.uuid]
    driver.came = True
    awaited.scan()
    assert awaited.listen([driver.uuid]) == {}
    event = CardEvent(driver.uuid, xid=79)
    driver.cards.push(event)
    assert awaited.wait(1.0) == event
    awaited.close()
