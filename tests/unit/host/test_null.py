from __future__ import annotations

from collections.abc import Callable

import pytest

from tessera.core.devices import MigPlacement
from tessera.host.cards import CardError, ComputeMode, GpuInstanceProfile, Hardware, MigInstance
from tessera.host.no_driver import NullHardware

PLACE = MigPlacement(0, 1)
OFFER = GpuInstanceProfile("1g.5gb", 19, 1, 4864, 14, 7, (PLACE,))


def test_a_node_without_cards_has_none_and_hears_nothing() -> None:
    hardware: Hardware = NullHardware()
    assert hardware.scan() == []
    assert hardware.links([]) == {}
    assert hardware.listen([]) == {}
    assert hardware.listen(["GPU-1"]) == {"GPU-1": "this node has no cards"}
    assert hardware.wait(0) is None
    hardware.close()
    hardware.close()
    assert hardware.wait(60) is None


@pytest.mark.parametrize(
    "ask",
    [
        lambda hardware: hardware.links(["GPU-1"]),
        lambda hardware: hardware.mig_enabled("GPU-1"),
        lambda hardware: hardware.enable_mig("GPU-1"),
        lambda hardware: hardware.disable_mig("GPU-1"),
        lambda hardware: hardware.instances("GPU-1"),
        lambda hardware: hardware.create("GPU-1", OFFER, PLACE),
        lambda hardware: hardware.destroy(MigInstance("GPU-1", 1, 19, PLACE)),
        lambda hardware: hardware.compute_mode("GPU-1"),
        lambda hardware: hardware.set_compute_mode("GPU-1", ComputeMode.DEFAULT),
    ],
)
def test_a_card_that_nobody_has_is_an_error_of_that_card(ask: Callable[[Hardware], object]) -> None:
    with pytest.raises(CardError, match="this node has no cards") as caught:
        ask(NullHardware())
    assert caught.value.uuid == "GPU-1"


def test_a_card_that_nobody_has_is_never_free() -> None:
    assert NullHardware().is_busy("GPU-1")
