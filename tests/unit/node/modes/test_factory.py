"""The mode that the configuration names, with what belongs to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from tessera.host.cards import Hardware
from tessera.node.handover.assignments import ObjectKey
from tessera.node.modes.factory import WholeCards, build_mode
from tessera.node.modes.hami_core import HamiCore
from tessera.node.modes.mig.mode import Mig
from tessera.node.modes.mps.mode import Mps
from tessera.node.settings import DeviceListStrategy
from tessera.wire.mig import MigAllocation
from tessera.wire.node_config import Mode, NodeSettings
from tests.support.mig_cards import BOTH, ONE, ModelHardware, claim, ids
from tests.support.sharing_modes import settings

NO_HARDWARE = cast(Hardware, None)
MODES: list[tuple[Mode, type]] = [("hami-core", HamiCore), ("mig", Mig), ("mps", Mps), ("none", WholeCards)]


CAPABILITIES = "gpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\n"


async def write(pod: ObjectKey, allocations: Sequence[MigAllocation]) -> None:
    """Nobody reads it here."""


@pytest.mark.parametrize(("name", "kind"), MODES)
async def test_every_mode_has_its_name(tmp_path: Path, name: Mode, kind: type) -> None:
    mode = build_mode(settings(tmp_path, node=NodeSettings(mode=name)), NO_HARDWARE, write=write)
    assert isinstance(mode, kind)
    await mode.stop()


@pytest.mark.parametrize("strategy", [DeviceListStrategy.CDI_CRI, DeviceListStrategy.CDI_ANNOTATIONS])
@pytest.mark.parametrize(("name", "kind"), MODES)
async def test_every_mode_comes_with_cdi_specs_where_they_are_wanted(
    tmp_path: Path, name: Mode, kind: type, strategy: DeviceListStrategy
) -> None:
    mode = build_mode(settings(tmp_path, strategy, node=NodeSettings(mode=name)), NO_HARDWARE, write=write)
    assert isinstance(mode, kind)
    assert mode.cdi is not None
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
