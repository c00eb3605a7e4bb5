"""Mode hami-core: the answer that limits a container, as the protocol has it."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from tessera.core.model.devices import MigPlacement, MigSlot
from tessera.host.writable_dirs import ids_dir_name
from tessera.node.fleet import Fleet
from tessera.node.handover.assignments import Assignment
from tessera.node.modes.base import AllocationRefused, ContainerResponse, slices_by_card
from tessera.node.modes.device_lists import DeviceLists
from tessera.node.modes.hami_core import HamiCore, common_variables, limits_of
from tessera.node.settings import AgentSettings, DeviceListStrategy
from tessera.vendors.nvidia.downward_api import MAX_DEVICES
from tessera.wire.node_config import NodeSettings
from tessera.wire.pod_devices import MigAllocation
from tests.support.sharing_modes import A, B, card, claim, fleet, paths_below, put_files, settings, slice_of

LIBRARY = ("libvgpu.so", "ld.so.preload")
IDS = [f"{A}-0"]
RESERVED = MigAllocation(0, 0, A, MigSlot("1g.18gb", MigPlacement(0, 1)))


class Node:
    """One node with the library on its disk."""

    def __init__(self, root: Path, **more: Any) -> None:
        self.settings: AgentSettings = settings(root, **more)
        self.home = self.settings.paths.hook / "vgpu"
        put_files(self.home, LIBRARY)
        self.mode = HamiCore(self.settings, DeviceLists(self.settings), new_cache=lambda: "random")

    async def answer(self, of: Assignment, *, cards: Fleet | None = None, **more: Any) -> ContainerResponse:
        await self.mode.start(cards or fleet(A, B))
        answer = await self.mode.hand_over(of, IDS, **more)
        await self.mode.stop()
        return answer

    def sources(self, answer: ContainerResponse) -> dict[str, str]:
        """Mounts by path in the container, with our own folder as `~`."""
        home = str(self.home)
        return {
            each.container_path.replace(home, "~"): each.host_path.replace(home, "~")
            + ("" if each.read_only else " rw")
            for each in answer.mounts
        }


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    yield made
    await made.mode.stop()


async def test_a_container_gets_its_card_its_limits_its_region_and_the_library(node: Node) -> None:
    answer = await node.answer(claim(slice_of(A, 3000, 50)))
    assert answer.env == {
        "NVIDIA_VISIBLE_DEVICES": A,
        "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
        "CUDA_DEVICE_SM_LIMIT": "50",
        "CUDA_DEVICE_SM_LIMIT_0": "50",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": f"{node.home}/random.cache",
        "CUDA_REDIRECT": f"{node.home}/libvgpu.so",
    }
    assert node.sources(answer) == {
        "~": "~/containers/uid-1_main rw",
        "~/libvgpu.so": "~/libvgpu.so",
        "/tmp/vgpulock": f"{node.settings.paths.lock} rw",
        "/etc/ld.so.preload": "~/ld.so.preload",
    }
    for folder in (node.home / "containers" / "uid-1_main", node.settings.paths.lock):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o777


async def test_two_cards_are_limited_one_by_one_in_the_order_in_which_the_container_counts_them(node: Node) -> None:
    answer = await node.answer(claim(slice_of(B, 4000, 60), slice_of(A, 3000, 0)))
    limits = {name: value for name, value in answer.env.items() if "LIMIT" in name}
    assert answer.env["NVIDIA_VISIBLE_DEVICES"] == f"{A},{B}"
    assert limits == {
        "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "4000m",
        "CUDA_DEVICE_SM_LIMIT": "0",
        "CUDA_DEVICE_SM_LIMIT_0": "100",
        "CUDA_DEVICE_SM_LIMIT_1": "60",
    }


async def test_every_region_has_a_file_of_its_own(node: Node) -> None:
    mode = HamiCore(node.settings, DeviceLists(node.settings))
    await mode.start(fleet(A))
    files = {
        (await mode.hand_over(claim(uid=f"uid-{number}"), IDS)).env["CUDA_DEVICE_MEMORY_SHARED_CACHE"]
        for number in range(5)
    }
    assert len(files) == 5
    await mode.stop()


@pytest.mark.parametrize(
    ("hook", "redirect"),
    [("/usr/local", None), ("/usr/local/", None), ("/opt/tessera", "/opt/tessera/vgpu/libvgpu.so")],
)
def test_the_library_is_told_where_it_is_unless_it_is_at_home(tmp_path: Path, hook: str, redirect: str | None) -> None:
    own = settings(tmp_path, paths=paths_below(tmp_path, hook=Path(hook)))
    assert common_variables(own).get("CUDA_REDIRECT") == redirect


@pytest.mark.parametrize(
    ("more", "variables"),
    [
        ({"node": NodeSettings(memory_scaling=1.5)}, {"CUDA_OVERSUBSCRIBE": "true"}),
        ({"node": NodeSettings(memory_scaling=1.0)}, {}),
        ({"node": NodeSettings(memory_scaling=0.5)}, {}),
        ({"node": NodeSettings(log_level="1")}, {"LIBCUDA_LOG_LEVEL": "1"}),
        ({"node": NodeSettings(log_level="0")}, {"LIBCUDA_LOG_LEVEL": "0"}),
        ({"disable_core_limit": True}, {"GPU_CORE_UTILIZATION_POLICY": "disable"}),
    ],
)
def test_settings_of_the_node_reach_every_container(
    tmp_path: Path, more: dict[str, Any], variables: dict[str, str]
) -> None:
    own = settings(tmp_path, paths=paths_below(tmp_path, hook=Path("/usr/local")), **more)
    assert common_variables(own) == variables


async def test_a_container_that_asked_to_be_free_misses_only_the_preload(node: Node) -> None:
    bound = await node.answer(claim())
    free = await node.answer(claim(uncontrolled=True))
    assert set(node.sources(bound)) - set(node.sources(free)) == {"/etc/ld.so.preload"}
    assert free.env == bound.env


async def test_where_another_container_may_be_meant_nobody_is_free(node: Node) -> None:
    answer = await node.answer(claim(uncontrolled=True), certain=False)
    assert "/etc/ld.so.preload" in node.sources(answer)
    assert node.sources(answer)["~"] == f"~/containers/{ids_dir_name(IDS)} rw"


async def test_the_folder_is_empty_for_every_handover(node: Node) -> None:
    await node.answer(claim())
    folder = node.home / "containers" / "uid-1_main"
    (folder / "raised-limits.cache").touch()
    await node.answer(claim())
    assert os.listdir(folder) == []


async def test_a_library_of_the_agents_version_goes_before_the_plain_one(tmp_path: Path) -> None:
    node = Node(tmp_path, library_version="v2.10.0")
    assert node.sources(await node.answer(claim()))["~/libvgpu.so"] == "~/libvgpu.so"
    put_files(node.home, ["libvgpu.so.v2.10.0"])
    assert node.sources(await node.answer(claim()))["~/libvgpu.so"] == "~/libvgpu.so.v2.10.0"


async def test_a_license_brings_two_more_files(node: Node) -> None:
    put_files(node.home, ["license"])
    sources = node.sources(await node.answer(claim()))
    assert sources["/tmp/license"] == "~/license"
    assert sources["/usr/bin/vgpuvalidator"] == "~/vgpuvalidator"
    assert len(sources) == 6


@pytest.mark.parametrize("missing", LIBRARY)
async def test_simulated_cards_need_no_library(tmp_path: Path, missing: str) -> None:
    node = Node(tmp_path, has_real_cards=False)
    assert "/etc/ld.so.preload" in node.sources(await node.answer(claim()))
    (node.home / missing).unlink()
    sources = node.sources(await node.answer(claim()))
    assert sources.keys() == {"~", "/tmp/vgpulock"}


@pytest.mark.parametrize("missing", LIBRARY)
async def test_without_the_library_nobody_starts_without_limits(node: Node, missing: str) -> None:
    (node.home / missing).unlink()
    with structlog.testing.capture_logs() as logs:
        await node.mode.start(fleet(A))
    assert [each["log_level"] for each in logs] == ["error"]
    with pytest.raises(AllocationRefused, match="nothing would limit the container"):
        await node.mode.hand_over(claim(), IDS)
    with pytest.raises(AllocationRefused, match="nothing would limit the container"):
        await node.mode.hand_over_downward_api(IDS)
    assert not (node.home / "containers").exists()


@pytest.mark.parametrize(
    ("of", "cards", "reason"),
    [
        (claim(slice_of(A, 0, 10)), fleet(A), "would be no limit"),
        (claim(slice_of(A, -5, 10)), fleet(A), "would be no limit"),
        (claim(slice_of(A, 5, 10), slice_of(B, 0, 0)), fleet(A, B), "would be no limit"),
        (claim(slice_of("GPU-gone")), fleet(A), "is not among this node's cards"),
        (claim(slice_of(A)), Fleet(), "is not among this node's cards"),
        (claim(slice_of(A)), Fleet((card(A, problem="XID 79"),)), "XID 79"),
        (claim(slice_of(A), mig=(RESERVED,)), fleet(A), "MIG"),
        (claim(uid="../../etc"), fleet(A), "cannot be the name of a directory"),
        (claim(container="a/b"), fleet(A), "cannot be the name of a directory"),
    ],
)
async def test_what_cannot_be_limited_is_refused_before_anything_is_made(
    node: Node, of: Assignment, cards: Fleet, reason: str
) -> None:
    with pytest.raises(AllocationRefused, match=reason):
        await node.answer(of, cards=cards)
    assert not (node.home / "containers").exists()


def test_no_more_cards_than_the_library_limits() -> None:
    uuids = [f"GPU-{number:02}" for number in range(MAX_DEVICES + 1)]
    many = fleet(*uuids)
    slices = tuple(slice_of(uuid) for uuid in uuids)
    with pytest.raises(AllocationRefused, match="no more than 16"):
        limits_of(claim(*slices), slices_by_card(claim(*slices), many))
    fitting = claim(*slices[:MAX_DEVICES])
    assert limits_of(fitting, slices_by_card(fitting, many))["CUDA_DEVICE_MEMORY_LIMIT_15"] == "3000m"


async def test_a_container_that_carries_its_slice_gets_what_is_the_same_for_all_and_no_card(tmp_path: Path) -> None:
    node = Node(tmp_path, gdrcopy=True, disable_core_limit=True)
    await node.mode.start(fleet(A))
    answer = await node.mode.hand_over_downward_api([f"{A}-3", f"{B}-1"])
    assert answer.env == {
        "NVIDIA_VISIBLE_DEVICES": "void",
        "NVIDIA_GDRCOPY": "enabled",
        "CUDA_REDIRECT": f"{node.home}/libvgpu.so",
        "GPU_CORE_UTILIZATION_POLICY": "disable",
    }
    folder = ids_dir_name([f"{B}-1", f"{A}-3"])
    assert node.sources(answer) == {
        "~": f"~/containers/{folder} rw",
        "~/libvgpu.so": "~/libvgpu.so",
        "/tmp/vgpulock": f"{node.settings.paths.lock} rw",
        "/etc/ld.so.preload": "~/ld.so.preload",
    }
    await node.mode.stop()


async def test_two_containers_that_carry_their_slices_never_share_a_folder(node: Node) -> None:
    await node.mode.start(fleet(A))
    answers = [await node.mode.hand_over_downward_api([f"{A}-{number}"]) for number in range(10)]
    assert len({answer.mounts[0].host_path for answer in answers}) == 10


async def test_cards_are_judged_as_they_are_at_the_handover(node: Node) -> None:
    await node.mode.start(fleet(A))
    await node.mode.reconcile([], Fleet((card(A, problem="XID 79"),)))
    with pytest.raises(AllocationRefused, match="XID 79"):
        await node.mode.hand_over(claim(), IDS)
    await node.mode.reconcile([], fleet(A))
    assert (await node.mode.hand_over(claim(), IDS)).env["NVIDIA_VISIBLE_DEVICES"] == A


async def test_limits_come_with_every_way_to_tell_cards(tmp_path: Path) -> None:
    node = Node(tmp_path)
    own = settings(tmp_path, DeviceListStrategy.CDI_CRI)
    node.mode = HamiCore(own, DeviceLists(own))
    answer = await node.answer(claim())
    assert answer.cdi_devices == (f"k8s.device-plugin.nvidia.com/gpu={A}",)
    assert answer.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    assert "NVIDIA_VISIBLE_DEVICES" not in answer.env


async def test_a_link_where_the_shared_folder_should_be_is_refused(node: Node, tmp_path: Path) -> None:
    node.settings.paths.lock.parent.mkdir(parents=True)
    node.settings.paths.lock.symlink_to(tmp_path)
    mode = stat.S_IMODE(tmp_path.stat().st_mode)
    with pytest.raises(AllocationRefused, match="is a link"):
        await node.answer(claim())
    assert stat.S_IMODE(tmp_path.stat().st_mode) == mode
