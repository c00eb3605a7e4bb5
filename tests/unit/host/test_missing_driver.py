"""A node without cards, and a driver that comes later than the agent."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tessera.core.model.devices import MigPlacement
from tessera.host.cards import CardError, CardFacts, Hardware, InventoryError, MigInstance
from tessera.host.nvml.hardware import NvmlHardware
from tessera.host.nvml.session import load_binding
from tessera.host.simulated.hardware import no_cards
from tests.support.logs import captured
from tests.unit.host.fake_cards import FakeCard
from tests.unit.host.fake_nvml import FakeNvml


class Driver:
    """dlopen of a library that is there once it came."""

    def __init__(self) -> None:
        self.library = FakeNvml(FakeCard())
        self.came = False

    def __call__(self, name: str) -> FakeNvml:
        if not self.came:
            raise OSError(f"{name}: not here")
        return self.library


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def awaited(driver: Driver, no_library: None, tmp_path: Path) -> NvmlHardware:
    return NvmlHardware(awaits_driver=True, load=partial(load_binding, tmp_path, dlopen=driver), sysfs=tmp_path)


def test_a_node_has_no_cards_until_its_driver_comes(driver: Driver, awaited: NvmlHardware) -> None:
    with captured() as logs:
        assert (awaited.scan(), awaited.scan(), awaited.is_busy("GPU-a")) == ([], [], True)
        (missing,) = logs.events
        assert "not here" in missing["problem"]
        driver.came = True
        (card,) = awaited.scan()
        assert isinstance(card, CardFacts)
        awaited.scan()
        assert [each["event"] for each in logs.events[1:]] == ["NVIDIA's management library was found"]
    awaited.close()


def test_a_driver_that_is_there_at_once_is_not_announced(driver: Driver, awaited: NvmlHardware) -> None:
    driver.came = True
    with captured() as logs:
        assert len(awaited.scan()) == 1
    assert not logs.events
    awaited.close()


def test_a_driver_that_goes_again_is_a_fault(driver: Driver, awaited: NvmlHardware) -> None:
    driver.came = True
    awaited.scan()
    awaited.close()
    driver.library.errors["nvmlInitWithFlags"] = 9
    with pytest.raises(InventoryError):
        awaited.scan()


def test_a_node_without_cards_has_none_and_hears_nothing() -> None:
    hardware: Hardware = no_cards()
    assert (hardware.scan(), hardware.links([]), hardware.listen([]), hardware.wait(0)) == ([], {}, {}, None)
    assert list(hardware.listen(["GPU-1"])) == ["GPU-1"]
    hardware.close()
    assert hardware.wait(60) is None


def test_a_card_that_no_node_has_is_an_error_of_that_card_and_never_free() -> None:
    hardware = no_cards()
    with pytest.raises(CardError, match="no such card") as caught:
        hardware.destroy(MigInstance("GPU-1", 1, 19, MigPlacement(0, 1)))
    assert caught.value.uuid == "GPU-1"
    assert hardware.is_busy("GPU-1")
