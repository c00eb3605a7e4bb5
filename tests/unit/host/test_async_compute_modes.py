"""Compute modes, asked from a thread."""

from __future__ import annotations

import threading

import pytest

from tessera.host.call_thread import AsyncComputeModes
from tessera.host.cards import CardError, ComputeMode, InventoryError
from tests.support.fake_mps import A, FakeModes

DEFAULT, PROHIBITED, EXCLUSIVE = ComputeMode.DEFAULT, ComputeMode.PROHIBITED, ComputeMode.EXCLUSIVE_PROCESS


@pytest.mark.parametrize(
    ("now", "before", "after"),
    [
        (EXCLUSIVE, DEFAULT, DEFAULT),
        (PROHIBITED, DEFAULT, DEFAULT),
        (EXCLUSIVE, EXCLUSIVE, EXCLUSIVE),
        (DEFAULT, EXCLUSIVE, DEFAULT),
    ],
)
async def test_the_mode_before_comes_back_unless_somebody_chose_another(
    now: ComputeMode, before: ComputeMode, after: ComputeMode
) -> None:
    hardware = FakeModes(A, mode=now)
    modes = AsyncComputeModes(hardware)
    await modes.restore(A, before)
    assert hardware.modes[A] is after
    await modes.close()


async def test_a_mode_that_is_right_is_not_set_again() -> None:
    hardware = FakeModes(A, mode=EXCLUSIVE)
    modes = AsyncComputeModes(hardware)
    await modes.ensure(A, EXCLUSIVE)
    assert hardware.changes == []
    await modes.close()


async def test_what_a_driver_comes_up_with_is_one_cards_problem() -> None:
    hardware = FakeModes(A)
    modes = AsyncComputeModes(hardware)
    with pytest.raises(InventoryError, match="KeyError"):
        await modes.current("GPU-nowhere")
    hardware.broken.add(A)
    with pytest.raises(CardError, match="GPU is lost"):
        await modes.current(A)
    await modes.close()


async def test_a_driver_that_hangs_is_one_cards_problem() -> None:
    go_on = threading.Event()

    class Hanging(FakeModes):
        def compute_mode(self, uuid: str) -> ComputeMode:
            go_on.wait()
            return DEFAULT

    modes = AsyncComputeModes(Hanging(), answer_s=0.05)
    with pytest.raises(InventoryError, match="no answer within"):
        await modes.current(A)
    go_on.set()
    await modes.close()
