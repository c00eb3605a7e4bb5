"""How a container is told its cards, by every strategy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tessera.node.fleet import Fleet
from tessera.node.modes.base import AllocationRefused, ContainerResponse, DeviceNode, HostMount
from tessera.node.modes.cdi import CdiFiles
from tessera.node.modes.device_lists import CONTROL_NODES, Capability, DeviceLists, DeviceSpecs, parse_mig_minors
from tessera.node.settings import AgentSettings, DeviceIdStrategy, DeviceListStrategy
from tests.support.sharing_modes import MIG, OTHER_MIG, A, B, C, card, fleet, instance, paths_below, put_files, settings

ENVVAR = DeviceListStrategy.ENVVAR
MOUNTS = DeviceListStrategy.VOLUME_MOUNTS
ANNOTATIONS = DeviceListStrategy.CDI_ANNOTATIONS
CRI = DeviceListStrategy.CDI_CRI
KIND = "k8s.device-plugin.nvidia.com"

MINORS = """\
config 1
monitor 2
gpu0/gi1/access 12
gpu0/gi1/ci0/access 13
gpu3/gi1/access 30
gpu3/gi1/ci0/access 31
"""


class Offers(CdiFiles):
    """CDI specs that offer these names of every class."""

    def __init__(self, *names: str, problem: str = "") -> None:
        self._names = names
        self.problem = problem

    def offers(self, device_class: str, name: str) -> bool:
        return name in self._names or f"{device_class}={name}" in self._names


def lists(own: AgentSettings, root: Path, *, cdi: Offers | None = None) -> DeviceLists:
    return DeviceLists(own, specs=DeviceSpecs(own.paths, here=root), cdi=cdi, new_suffix=lambda: "suffix")


def answered(root: Path, ids: Sequence[str], *strategies: DeviceListStrategy, **more: Any) -> ContainerResponse:
    return lists(settings(root, *strategies, **more), root).response(ids, fleet(A, B, C))


@pytest.mark.parametrize(
    ("strategies", "expected"),
    [
        ((ENVVAR,), ContainerResponse(env={"NVIDIA_VISIBLE_DEVICES": f"{A},{B}"})),
        (
            (MOUNTS,),
            ContainerResponse(
                env={"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"},
                mounts=(
                    HostMount(f"/var/run/nvidia-container-devices/{A}", "/dev/null", read_only=False),
                    HostMount(f"/var/run/nvidia-container-devices/{B}", "/dev/null", read_only=False),
                ),
            ),
        ),
        (
            (ANNOTATIONS,),
            ContainerResponse(annotations={"cdi.k8s.io/nvidia-device-plugin_suffix": f"{KIND}/gpu={A},{KIND}/gpu={B}"}),
        ),
        ((CRI,), ContainerResponse(cdi_devices=(f"{KIND}/gpu={A}", f"{KIND}/gpu={B}"))),
    ],
    ids=["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"],
)
def test_every_strategy_has_its_own_way(
    tmp_path: Path, strategies: tuple[DeviceListStrategy, ...], expected: ContainerResponse
) -> None:
    assert answered(tmp_path, [A, B], *strategies) == expected


def test_the_folder_of_names_wins_over_the_variable(tmp_path: Path) -> None:
    both = answered(tmp_path, [A], ENVVAR, MOUNTS)
    assert both.env["NVIDIA_VISIBLE_DEVICES"] == "/var/run/nvidia-container-devices"


def test_cdi_beside_another_strategy_leaves_the_variable(tmp_path: Path) -> None:
    both = answered(tmp_path, [A], ENVVAR, CRI)
    assert (both.env["NVIDIA_VISIBLE_DEVICES"], both.cdi_devices) == (A, (f"{KIND}/gpu={A}",))


def test_the_prefix_of_the_annotation_can_be_chosen(tmp_path: Path) -> None:
    answer = answered(tmp_path, [A], ANNOTATIONS, cdi_annotation_prefix="my.io/")
    assert list(answer.annotations) == ["my.io/nvidia-device-plugin_suffix"]
    assert "NVIDIA_VISIBLE_DEVICES" not in answer.env


def test_every_annotation_has_a_key_of_its_own(tmp_path: Path) -> None:
    own = DeviceLists(settings(tmp_path, ANNOTATIONS))
    keys = {key for _ in range(20) for key in own.response([A], fleet(A)).annotations}
    assert len(keys) == 20
    assert all(re.fullmatch(r"cdi\.k8s\.io/nvidia-device-plugin_[0-9a-f-]{36}", key) for key in keys)


def test_names_are_unique_and_in_the_order_of_the_cards(tmp_path: Path) -> None:
    answer = answered(tmp_path, [C, f"{A}::3", B, A, C])
    assert answer.env["NVIDIA_VISIBLE_DEVICES"] == f"{A},{B},{C}"


@pytest.mark.parametrize("ids", [[B, C, A], [C, B, A], [A, B, C]])
def test_indices_are_in_order_whatever_the_order_of_the_request(tmp_path: Path, ids: list[str]) -> None:
    answer = answered(tmp_path, ids, id_strategy=DeviceIdStrategy.INDEX)
    assert answer.env["NVIDIA_VISIBLE_DEVICES"] == "0,1,2"


def test_cdi_names_are_uuids_whatever_the_id_strategy(tmp_path: Path) -> None:
    answer = answered(tmp_path, [B], CRI, id_strategy=DeviceIdStrategy.INDEX)
    assert answer.cdi_devices == (f"{KIND}/gpu={B}",)


@pytest.mark.parametrize("ids", [[], ["GPU-elsewhere"], [A, ""]])
def test_a_list_without_cards_or_with_unknown_ones_is_refused(tmp_path: Path, ids: list[str]) -> None:
    with pytest.raises(AllocationRefused):
        answered(tmp_path, ids)


def test_instances_follow_the_order_of_their_cards_and_keep_their_uuid(tmp_path: Path) -> None:
    known = [instance(B, mig_uuid=MIG, gpu=1), instance(A, mig_uuid=OTHER_MIG, gpu=5)]
    own = lists(settings(tmp_path, id_strategy=DeviceIdStrategy.INDEX), tmp_path)
    assert own.response([MIG, OTHER_MIG], fleet(A, B), known).env["NVIDIA_VISIBLE_DEVICES"] == f"{OTHER_MIG},{MIG}"


def test_an_instance_that_nobody_listed_is_named_after_the_others(tmp_path: Path) -> None:
    own = lists(settings(tmp_path), tmp_path)
    assert (
        own.response([OTHER_MIG, MIG], fleet(A), [instance(A, mig_uuid=MIG)]).env["NVIDIA_VISIBLE_DEVICES"]
        == f"{MIG},{OTHER_MIG}"
    )


def test_device_specs_are_the_control_nodes_and_every_card_once(tmp_path: Path) -> None:
    put_files(tmp_path, ["/dev/nvidiactl", "/dev/nvidia-uvm"])
    answer = answered(tmp_path, [B, A, B], pass_device_specs=True)
    assert answer.devices == tuple(
        DeviceNode(path, path, "rw") for path in ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1")
    )


@pytest.mark.parametrize(
    ("ids", "cards"),
    [([MIG], fleet(A)), ([A], fleet(A, minor=None)), ([OTHER_MIG], fleet(A))],
    ids=["no capabilities", "no minor", "unknown instance"],
)
def test_what_has_no_device_node_is_refused_where_nodes_are_passed(
    tmp_path: Path, ids: list[str], cards: Fleet
) -> None:
    own = lists(settings(tmp_path, pass_device_specs=True), tmp_path)
    with pytest.raises(AllocationRefused, match="has no device node"):
        own.response(ids, cards, [instance()])


@pytest.mark.parametrize(
    ("flags", "variables"),
    [
        ({"gdrcopy": True}, {"NVIDIA_GDRCOPY": "enabled"}),
        ({"gds": True, "mofed": True}, {"NVIDIA_GDS": "enabled", "NVIDIA_MOFED": "enabled"}),
        ({}, {}),
    ],
)
def test_features_are_variables(tmp_path: Path, flags: dict[str, bool], variables: dict[str, str]) -> None:
    assert answered(tmp_path, [A], **flags).env == {"NVIDIA_VISIBLE_DEVICES": A, **variables}


def test_features_by_cdi_are_named_where_a_spec_offers_them(tmp_path: Path) -> None:
    own = settings(tmp_path, CRI, gdrcopy=True, gds=True, pass_device_specs=True)
    answer = lists(own, tmp_path, cdi=Offers(A, "gds=all")).response([A], fleet(A))
    assert answer == ContainerResponse(cdi_devices=(f"{KIND}/gpu={A}", f"{KIND}/gds=all"))


@pytest.mark.parametrize(("problem", "said"), [("disk full", "disk full"), ("", "it has no device node")])
def test_a_card_that_no_spec_offers_is_refused_with_the_reason(tmp_path: Path, problem: str, said: str) -> None:
    own = lists(settings(tmp_path, CRI), tmp_path, cdi=Offers(A, problem=problem))
    with pytest.raises(AllocationRefused, match=f"{B} is in no CDI spec: {said}"):
        own.response([A, B], fleet(A, B))


def test_cards_that_changed_places_are_numbered_by_their_place_now(tmp_path: Path) -> None:
    turned = Fleet((card(B, 0), card(A, 1)))
    own = lists(settings(tmp_path), tmp_path)
    assert own.response([A, B], turned).env["NVIDIA_VISIBLE_DEVICES"] == f"{B},{A}"


# -- device nodes of cards, instances and the driver


def specs(root: Path, *, dev_root: str = "/") -> DeviceSpecs:
    return DeviceSpecs(paths_below(root, dev_root=Path(dev_root)), here=root)


def test_the_drivers_list_gives_the_numbers_of_capabilities() -> None:
    assert parse_mig_minors(MINORS) == {
        Capability(0, 1): 12,
        Capability(0, 1, 0): 13,
        Capability(3, 1): 30,
        Capability(3, 1, 0): 31,
    }


@pytest.mark.parametrize(
    "line",
    [
        "",
        "gpu0/gi1/access",
        "gpu0/gi1/access x",
        "gpu0/gi1/access 1 2",
        "gpu0/gi1/access -1",
        "gpu/gi1/access 1",
        "gpu0/gi1/ci0/ci0/access 1",
        "gpu0/gi1/access 99999999999999999999",
        "gpu٣/gi1/access 7",
        "\x00",
    ],
)
def test_a_bad_line_of_the_list_is_skipped_and_the_others_count(line: str) -> None:
    assert parse_mig_minors(f"{line}\ngpu0/gi2/access 5\n{line}") == {Capability(0, 2): 5}


def test_the_first_of_two_equal_lines_counts() -> None:
    assert parse_mig_minors("gpu0/gi2/access 5\ngpu0/gi2/access 6") == {Capability(0, 2): 5}


def test_control_nodes_are_those_that_are_here(tmp_path: Path) -> None:
    put_files(tmp_path, ["/dev/nvidiactl", "/dev/nvidia-uvm-tools", "/dev/nvidia7"])
    assert [each.container_path for each in specs(tmp_path).control()] == ["/dev/nvidiactl", "/dev/nvidia-uvm-tools"]
    put_files(tmp_path, CONTROL_NODES)
    assert [each.container_path for each in specs(tmp_path).control()] == list(CONTROL_NODES)


def test_a_cards_node_is_named_after_its_minor_and_found_below_the_hosts_root(tmp_path: Path) -> None:
    found = specs(tmp_path, dev_root="/run/nvidia/driver").of_card(card(index=1, minor=3).facts)
    assert found == (DeviceNode("/dev/nvidia3", "/run/nvidia/driver/dev/nvidia3", "rw"),)


def test_a_card_without_a_node_has_that_of_a_windows_host_or_none(tmp_path: Path) -> None:
    assert specs(tmp_path).of_card(card(minor=None).facts) == ()
    put_files(tmp_path, ["/dev/dxg"])
    assert specs(tmp_path).of_card(card(minor=None).facts) == (DeviceNode("/dev/dxg", "/dev/dxg"),)


def test_an_instance_has_its_cards_node_and_both_capabilities(tmp_path: Path) -> None:
    (tmp_path / "mig-minors").write_text(MINORS)
    found = specs(tmp_path).of_instance(instance(gpu=1, compute=0), card(minor=3).facts)
    assert [each.container_path for each in found] == [
        "/dev/nvidia3",
        "/dev/nvidia-caps/nvidia-cap30",
        "/dev/nvidia-caps/nvidia-cap31",
    ]


@pytest.mark.parametrize(
    ("gpu", "compute", "minor"),
    [(1, 0, None), (1, None, 3), (2, 0, 3), (1, 5, 3), (1, 0, 1)],
    ids=["no minor", "no compute instance", "unknown instance", "unknown compute instance", "another card"],
)
def test_an_instance_that_the_driver_does_not_tell_of_has_no_nodes(
    tmp_path: Path, gpu: int, compute: int | None, minor: int | None
) -> None:
    (tmp_path / "mig-minors").write_text(MINORS)
    assert specs(tmp_path).of_instance(instance(gpu=gpu, compute=compute), card(minor=minor).facts) == ()


def test_a_driver_without_mig_has_no_list(tmp_path: Path) -> None:
    assert specs(tmp_path).of_instance(instance(), card(minor=3).facts) == ()
