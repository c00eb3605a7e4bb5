from __future__ import annotations

from pathlib import Path

import pytest

from tessera.host.nvml.hardware import numa_node, pcie_root


def sysfs(tmp_path: Path, text: str, *, device: str = "0000:3b:00.0") -> Path:
    node = tmp_path / "bus/pci/devices" / device / "numa_node"
    node.parent.mkdir(parents=True)
    node.write_text(text, "utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "numa"), [("0\n", 0), ("1\n", 1), ("-1\n", None), ("", None), ("x", None), ("é", None)]
)
def test_the_kernel_says_which_node(tmp_path: Path, text: str, numa: int | None) -> None:
    assert numa_node("00000000:3B:00.0", sysfs=sysfs(tmp_path, text)) == numa


@pytest.mark.parametrize(
    ("bus_id", "device"),
    [
        ("0000:3B:00.0", "0000:3b:00.0"),
        ("00000009:01:00.0", "0009:01:00.0"),
        ("00010000:00:00.0", "10000:00:00.0"),
    ],
)
def test_an_address_is_found_however_long_its_domain(tmp_path: Path, bus_id: str, device: str) -> None:
    assert numa_node(bus_id, sysfs=sysfs(tmp_path, "1", device=device)) == 1


@pytest.mark.parametrize("bus_id", ["", "0000", "00000000:99:00.0", "0000../../../x", "/etc", "00000000:3B:00.0\n"])
def test_an_address_without_a_device_has_no_node(tmp_path: Path, bus_id: str) -> None:
    assert numa_node(bus_id, sysfs=sysfs(tmp_path, "1")) is None


def test_the_root_complex_is_the_first_in_the_kernels_path(tmp_path: Path) -> None:
    card = tmp_path / "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"
    card.mkdir(parents=True)
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    (tmp_path / "bus/pci/devices/0000:3b:00.0").symlink_to(card)
    assert pcie_root("00000000:3B:00.0", sysfs=tmp_path) == "pci0000:3a"


@pytest.mark.parametrize("bus_id", ["", "00000000:99:00.0", "/etc"])
def test_an_address_without_a_device_has_no_root_complex(tmp_path: Path, bus_id: str) -> None:
    assert pcie_root(bus_id, sysfs=tmp_path) == ""
