"""Use of cards as NVML tells it, with cards that do not know or do not answer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tessera.host.cards import InventoryError
from tessera.host.nvml.session import NvmlConnection
from tessera.monitor.device_usage import CardUtilization, HostUsage


class NvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"code {value}")
        self.value = value


NOT_SUPPORTED, LOST, UNINITIALIZED = 3, 15, 1


class Driver:
    """What pynvml would say about these cards; a number is the code of a refusal."""

    NVMLError = NvmlError
    NVML_ERROR_UNINITIALIZED, NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_FUNCTION_NOT_FOUND = UNINITIALIZED, NOT_SUPPORTED, 13
    NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_LIB_RM_VERSION_MISMATCH = 9, 18

    def __init__(self, *cards: dict[str, Any]) -> None:
        self.cards = cards
        self.open = 0
        self.refuses = 0

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        if self.refuses:
            raise NvmlError(self.refuses)
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        return self.cards[index]

    def _ask(self, card: dict[str, Any], what: str) -> Any:
        found = card[what]
        if isinstance(found, int):
            raise NvmlError(found)
        return found

    def nvmlDeviceGetUUID(self, card: dict[str, Any]) -> Any:
        return self._ask(card, "uuid")

    def nvmlDeviceGetName(self, card: dict[str, Any]) -> Any:
        return self._ask(card, "name")

    def nvmlDeviceGetMemoryInfo(self, card: dict[str, Any]) -> Any:
        return self._ask(card, "memory")

    def nvmlDeviceGetUtilizationRates(self, card: dict[str, Any]) -> Any:
        return self._ask(card, "rates")


def card(uuid: str, **other: Any) -> dict[str, Any]:
    usual = {"memory": SimpleNamespace(used=500), "rates": SimpleNamespace(gpu=70, memory=30)}
    return {"uuid": uuid, "name": b"NVIDIA H200", **usual, **other}


def host(driver: Driver) -> HostUsage:
    return HostUsage(Path("/"), nvml=NvmlConnection(lambda: driver))


def test_every_card_is_read() -> None:
    driver = Driver(card("GPU-a"), card("GPU-b"))
    reader = host(driver)
    assert reader.read() == tuple(
        CardUtilization(i, uuid, "NVIDIA H200", 500, 70, 30) for i, uuid in enumerate(("GPU-a", "GPU-b"))
    )
    assert driver.open == 1
    reader.close()
    assert driver.open == 0


def test_what_a_card_does_not_know_is_left_out() -> None:
    driver = Driver(card("GPU-a", memory=NOT_SUPPORTED), card("GPU-b", rates=NOT_SUPPORTED))
    assert host(driver).read() == (
        CardUtilization(0, "GPU-a", "NVIDIA H200", None, 70, 30),
        CardUtilization(1, "GPU-b", "NVIDIA H200", 500),
    )


def test_a_card_that_is_lost_takes_no_other_away() -> None:
    assert [each.uuid for each in host(Driver(card("GPU-a", memory=LOST), card("GPU-b"))).read()] == ["GPU-b"]


def test_a_driver_that_is_replaced_is_asked_anew() -> None:
    driver = Driver(card("GPU-a"))
    reader = host(driver)
    driver.refuses = UNINITIALIZED
    with pytest.raises(InventoryError):
        reader.read()
    driver.refuses = 0
    assert len(reader.read()) == 1
    assert driver.open == 1
