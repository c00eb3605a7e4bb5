"""The mode that the configuration names, with what belongs to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from tessera.host.cards import Hardware
from tessera.node.fleet import Fleet, replicas
from tessera.node.handover.assignments import Assignment, ObjectKey
from tessera.node.modes.base import AllocationRefused, SharingMode
from tessera.node.modes.factory import MixedModes, WholeCards, build_mode
from tessera.node.modes.hami_core import HamiCore
from tessera.node.modes.mig.mode import Mig
from tessera.node.modes.mig.mode_switch import RETRY_S
from tessera.node.modes.mps.mode import Mps
from tessera.node.registration.devices import registrable
from tessera.node.settings import DeviceListStrategy
from tessera.wire.node_config import CardModes, Mode, NodeSettings
from tessera.wire.pod_devices import MigAllocation
from tests.support.cards import BOTH, ONE, A, B, ModelHardware, card, claim, ids
from tests.support.sharing_modes import C, put_files, settings, slice_of
from tests.support.sharing_modes import claim as shares

NO_HARDWARE = cast(Hardware, None)
MODES: list[tuple[Mode, type]] = [("hami-core", HamiCore), ("mig", Mig), ("mps", Mps), ("none", WholeCards)]

CAPABILITIES = "gpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\n"

NODE = NodeSettings(card_modes=(CardModes(mode="mig", uuid=(A,)), CardModes(mode="none", index=(2,))))
FLEET = Fleet(
    (
        replace(card(A), mode="mig"),
        replace(card(B, index=1), mode="hami-core"),
        replace(card(C, index=2, capable=False), mode="none"),
    )
)


async def write(pod: ObjectKey, allocations: Sequence[MigAllocation]) -> None:
    """Nobody reads it here."""


@pytest.mark.parametrize("strategy", DeviceListStrategy)
@pytest.mark.parametrize(("name", "kind"), MODES)
async def test_every_mode_has_its_name_and_comes_with_cdi_specs_where_they_are_wanted(
    tmp_path: Path, name: Mode, kind: type, strategy: DeviceListStrategy
) -> None:
    mode = build_mode(settings(tmp_path, strategy, node=NodeSettings(mode=name)), NO_HARDWARE, write=write)
    assert isinstance(mode, kind)
    assert (mode.cdi is not None) == strategy.is_cdi
    await mode.stop()


async def test_an_instance_is_in_the_cdi_spec_before_the_container_is_told_of_it(tmp_path: Path) -> None:
    (tmp_path / "mig-minors").write_text(CAPABILITIES)
    own = settings(tmp_path, DeviceListStrategy.CDI_CRI, node=NodeSettings(mode="mig"))
    mode = build_mode(own, cast(Hardware, ModelHardware()), write=write)
    await mode.start(BOTH)
    answer = await mode.hand_over(claim(ONE), ids(claim(ONE)))
    assert answer.cdi_devices == ("k8s.device-plugin.nvidia.com/gpu=MIG-1",)
    spec = json.loads((own.paths.cdi / "k8s.device-plugin.nvidia.com-gpu.json").read_text())
    (made,) = (device for device in spec["devices"] if device["name"] == "MIG-1")
    assert [node["path"] for node in made["containerEdits"]["deviceNodes"]] == [
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap12",
        "/dev/nvidia-caps/nvidia-cap13",
    ]
    await mode.stop()


async def test_device_nodes_of_an_instance_are_known_at_its_handover(tmp_path: Path) -> None:
    (tmp_path / "mig-minors").write_text(CAPABILITIES)
    own = settings(tmp_path, node=NodeSettings(mode="mig"), pass_device_specs=True)
    mode = build_mode(own, cast(Hardware, ModelHardware()), write=write)
    await mode.start(BOTH)
    answer = await mode.hand_over(claim(ONE), ids(claim(ONE)))
    assert answer.env == {"NVIDIA_VISIBLE_DEVICES": "MIG-1"}
    assert [node.container_path for node in answer.devices][-2:] == [
        "/dev/nvidia-caps/nvidia-cap12",
        "/dev/nvidia-caps/nvidia-cap13",
    ]
    await mode.stop()


# -- one node whose cards are shared in different modes


class Scene:
    def __init__(self, folder: Path) -> None:
        (folder / "mig-minors").write_text(CAPABILITIES)
        put_files(folder / "hook", ["vgpu/libvgpu.so", "vgpu/ld.so.preload"])
        self.hardware = ModelHardware()
        self.settings = settings(folder, DeviceListStrategy.CDI_CRI, node=replace(NODE, preconfigured_memory=1000))
        self.mode = build_mode(self.settings, cast(Hardware, self.hardware), write=write)

    def specs(self) -> set[str]:
        spec = json.loads((self.settings.paths.cdi / "k8s.device-plugin.nvidia.com-gpu.json").read_text())
        return {device["name"] for device in spec["devices"]}


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path)
    await made.mode.start(FLEET)
    yield made
    await made.mode.stop()


async def refusal(mode: SharingMode, wanted: Assignment) -> str:
    with pytest.raises(AllocationRefused) as caught:
        await mode.hand_over(wanted, ["x"])
    return str(caught.value)


async def test_each_container_gets_its_slice_in_the_mode_of_its_card(scene: Scene) -> None:
    assert (scene.hardware.cards[A].enabled, scene.hardware.cards[B].enabled) == (True, False)
    instance = await scene.mode.hand_over(claim(ONE), ["x"])
    assert instance.cdi_devices == ("k8s.device-plugin.nvidia.com/gpu=MIG-1",)
    share = await scene.mode.hand_over(shares(slice_of(B, 3000, 30)), ["x"])
    assert share.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    whole = await scene.mode.hand_over(shares(slice_of(C, 1000, 0)), ["x"])
    assert whole.cdi_devices == (f"k8s.device-plugin.nvidia.com/gpu={C}",)
    assert not whole.env
    # One set of specs has them all.
    assert {"MIG-1", B, C} <= scene.specs()


async def test_a_container_with_cards_in_different_modes_is_refused_with_both_modes(scene: Scene) -> None:
    reason = await refusal(scene.mode, shares(slice_of(B), slice_of(C)))
    assert reason == (
        f"the container's cards are shared in different modes: {B} by hami-core, {C} by none;"
        " choose one with nvidia.com/vgpu-mode"
    )


async def test_a_card_of_another_node_or_of_a_mode_to_come_is_refused(scene: Scene) -> None:
    assert "is not among this node's cards" in await refusal(scene.mode, shares(slice_of("GPU-x")))
    await scene.mode.reconcile([], Fleet((replace(card(B, index=1), mode="mps"),)))
    assert "is about to be shared in another mode" in await refusal(scene.mode, shares(slice_of(B)))


async def test_an_instance_goes_with_its_pod_and_a_card_that_left_the_mode_is_given_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    parts = cast(MixedModes, scene.mode)._parts
    monkeypatch.setattr(parts["mig"], "_clock", lambda: now[0])
    held = claim(ONE)
    await scene.mode.hand_over(held, ["x"])
    left = Fleet((replace(card(A, enabled=True), mode="hami-core"), *FLEET.cards[1:]))
    await scene.mode.reconcile([held], left)
    assert scene.hardware.cards[A].enabled
    now[0] += RETRY_S
    await scene.mode.reconcile([], left)
    assert (scene.hardware.cards[A].instances, scene.hardware.cards[A].enabled) == ([], False)


async def test_a_fault_of_one_mode_keeps_no_other_from_its_work(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(cast(MixedModes, scene.mode)._parts["hami-core"], "reconcile", fail)
    await scene.mode.hand_over(claim(ONE), ["x"])
    with pytest.raises(RuntimeError, match="a fault"):
        await scene.mode.reconcile([], FLEET)
    assert scene.hardware.cards[A].instances == []


def test_every_card_is_registered_and_counted_in_its_own_mode(tmp_path: Path) -> None:
    own = settings(tmp_path, node=replace(NODE, split_count=3, preconfigured_memory=1000))
    found = {each.uuid: (each.mode, each.slots) for each in registrable(FLEET, own).devices}
    assert found == {A: ("mig", 7), B: ("hami-core", 3), C: ("none", 1)}
    counted = [each.id.rpartition("-")[0] for each in replicas(FLEET, own.node)]
    assert {uuid: counted.count(uuid) for uuid in (A, B, C)} == {A: 7, B: 3, C: 1}


def test_slices_reach_containers_through_the_downward_api_only_if_all_cards_are_in_hami_core(tmp_path: Path) -> None:
    same = NodeSettings(card_modes=(CardModes(mode="hami-core", index=(0,)),))
    assert settings(tmp_path, node=same).uses_downward_api
    assert not settings(tmp_path, node=NODE).uses_downward_api
