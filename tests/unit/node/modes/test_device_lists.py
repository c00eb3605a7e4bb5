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
from tessera.node.modes.device_lists import DeviceLists, DeviceSpecs
from tessera.node.settings import AgentSettings, DeviceIdStrategy, DeviceListStrategy
from tests.support.sharing_modes import MIG, OTHER_MIG, A, B, C, card, fleet, instance, put_files, settings

ENVVAR = DeviceListStrategy.ENVVAR
MOUNTS = DeviceListStrategy.VOLUME_MOUNTS
ANNOTATIONS = DeviceListStrategy.CDI_ANNOTATIONS
CRI = DeviceListStrategy.CDI_CRI
KIND = "k8s.device-plugin.nvidia.com"


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


def test_device_specs_of_instances_have_their_capabilities(tmp_path: Path) -> None:
    (tmp_path / "mig-minors").write_text("gpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\n")
    own = lists(settings(tmp_path, pass_device_specs=True), tmp_path)
    assert [each.container_path for each in own.response([MIG], fleet(A), [instance()]).devices] == [
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap12",
        "/dev/nvidia-caps/nvidia-cap13",
    ]


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
