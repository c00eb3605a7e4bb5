"""Mode none: whole cards and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera.core.model.devices import MigPlacement, MigSlot
from tessera.node.fleet import Fleet
from tessera.node.modes.base import AllocationRefused, ContainerResponse
from tessera.node.modes.device_lists import DeviceLists
from tessera.node.modes.factory import WholeCards
from tessera.wire.node_config import NodeSettings
from tessera.wire.pod_devices import MigAllocation
from tests.support.sharing_modes import H200_MIB, A, B, card, claim, fleet, settings, slice_of


async def started(root: Path, cards: Fleet, *, preconfigured: int = 0) -> WholeCards:
    own = settings(root, node=NodeSettings(mode="none", preconfigured_memory=preconfigured))
    mode = WholeCards(own, DeviceLists(own))
    await mode.start(cards)
    return mode


@pytest.mark.parametrize("cores", [0, 100, 200])
async def test_a_whole_card_is_handed_over_plain(tmp_path: Path, cores: int) -> None:
    mode = await started(tmp_path, fleet(A, B))
    answer = await mode.hand_over(claim(slice_of(B, H200_MIB, cores), slice_of(A, H200_MIB, cores)), [])
    assert answer == ContainerResponse(env={"NVIDIA_VISIBLE_DEVICES": f"{A},{B}"})
    await mode.stop()


@pytest.mark.parametrize(("memory", "cores"), [(H200_MIB - 1, 0), (3000, 100), (H200_MIB, 99), (0, 0)])
async def test_less_than_a_card_is_refused_with_what_to_ask_for(tmp_path: Path, memory: int, cores: int) -> None:
    mode = await started(tmp_path, fleet(A))
    with pytest.raises(AllocationRefused, match=r"ask for nvidia\.com/gpu alone, without memory and cores"):
        await mode.hand_over(claim(slice_of(A, memory, cores)), [])


async def test_an_instance_is_not_a_card(tmp_path: Path) -> None:
    mode = await started(tmp_path, fleet(A))
    reserved = MigAllocation(0, 0, A, MigSlot("1g.18gb", MigPlacement(0, 1)))
    with pytest.raises(AllocationRefused, match="whole cards only"):
        await mode.hand_over(claim(slice_of(A, H200_MIB, 0), mig=(reserved,)), [])


@pytest.mark.parametrize(("memory", "whole"), [(8192, True), (8191, False)])
async def test_a_card_that_does_not_tell_its_memory_has_what_is_configured(
    tmp_path: Path, memory: int, whole: bool
) -> None:
    mode = await started(tmp_path, fleet(A, memory_bytes=None), preconfigured=8192)
    if whole:
        assert (await mode.hand_over(claim(slice_of(A, memory, 0)), [])).env
    else:
        with pytest.raises(AllocationRefused):
            await mode.hand_over(claim(slice_of(A, memory, 0)), [])


async def test_a_card_is_judged_as_it_is_now(tmp_path: Path) -> None:
    mode = await started(tmp_path, Fleet((card(A, problem="XID 79"),)))
    with pytest.raises(AllocationRefused, match="XID 79"):
        await mode.hand_over(claim(slice_of(A, H200_MIB, 0)), [])
    await mode.reconcile([], fleet(A))
    assert (await mode.hand_over(claim(slice_of(A, H200_MIB, 0)), [])).env


async def test_nobody_is_told_to_bring_its_own_card(tmp_path: Path) -> None:
    with pytest.raises(AllocationRefused):
        await (await started(tmp_path, fleet(A))).hand_over_downward_api([f"{A}-0"])
