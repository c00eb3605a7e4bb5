"""Device nodes of cards, instances and the driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera.node.modes.base import DeviceNode
from tessera.node.modes.device_lists import CONTROL_NODES, Capability, DeviceSpecs, parse_mig_minors
from tests.support.sharing_modes import card, instance, paths_below, put_files

MINORS = """\
config 1
monitor 2
gpu0/gi1/access 12
gpu0/gi1/ci0/access 13
gpu3/gi1/access 30
gpu3/gi1/ci0/access 31
"""


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
