"""What of the driver is found below its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera.node.modes.base import HostMount
from tessera.node.modes.cdi import DriverFiles, find_driver_files
from tests.support.sharing_modes import paths_below, put_files

LIBRARIES = "usr/lib/x86_64-linux-gnu"
INSTALLED = (
    f"{LIBRARIES}/libcuda.so.580.65.06",
    f"{LIBRARIES}/libnvidia-ml.so.580.65.06",
    f"{LIBRARIES}/libnvidia-ptxjitcompiler.so.580.65.06",
    f"{LIBRARIES}/libssl.so.1.1",
    f"{LIBRARIES}/nvidia.so.580.65.06",
    "usr/bin/nvidia-smi",
    "usr/bin/nvidia-debugdump",
    "usr/bin/python3",
)


def found(root: Path, **more: Path) -> DriverFiles:
    return find_driver_files(paths_below(root, **({"cdi_hook": root / "nvidia-ctk"} | more)))


def test_libraries_and_programs_of_the_drivers_version_are_mounted_where_they_are(tmp_path: Path) -> None:
    put_files(tmp_path / "driver", INSTALLED)
    files = found(tmp_path, driver_root=Path("/run/nvidia"))
    assert files.mounts == tuple(
        HostMount(f"/{path}", f"/run/nvidia/{path}")
        for path in (*INSTALLED[:3], "usr/bin/nvidia-debugdump", "usr/bin/nvidia-smi")
    )
    assert files.library_folders == (f"/{LIBRARIES}",)


def test_nothing_is_invented_where_there_is_no_driver(tmp_path: Path) -> None:
    assert found(tmp_path) == DriverFiles()
    put_files(tmp_path / "driver", ["usr/bin/nvidia-smi", f"{LIBRARIES}/libcuda.so.1.1", f"{LIBRARIES}/libssl.so.1.1"])
    assert found(tmp_path) == DriverFiles()


def test_without_cuda_the_version_is_that_of_the_management_library(tmp_path: Path) -> None:
    put_files(tmp_path / "driver", ["usr/lib64/libnvidia-ml.so.550.90.07"])
    assert found(tmp_path).mounts == (
        HostMount("/usr/lib64/libnvidia-ml.so.550.90.07", "/usr/lib64/libnvidia-ml.so.550.90.07"),
    )


def test_two_versions_at_once_tell_nothing(tmp_path: Path) -> None:
    put_files(tmp_path / "driver", [f"{LIBRARIES}/libcuda.so.{version}" for version in ("580.65.06", "550.90.07")])
    assert found(tmp_path) == DriverFiles()


def test_a_folder_that_is_another_by_a_link_is_listed_once(tmp_path: Path) -> None:
    put_files(tmp_path / "driver", ["usr/lib64/libcuda.so.580.65.06"])
    (tmp_path / "driver" / "lib64").symlink_to("usr/lib64")
    assert [each.container_path for each in found(tmp_path).mounts] == ["/usr/lib64/libcuda.so.580.65.06"]


def test_a_link_out_of_the_drivers_folder_is_not_followed(tmp_path: Path) -> None:
    put_files(tmp_path / "image", ["libcuda.so.580.65.06"])
    put_files(tmp_path / "driver", ["usr/bin/none"])
    (tmp_path / "driver" / "lib64").symlink_to(tmp_path / "image")
    assert found(tmp_path) == DriverFiles()


def test_links_to_libraries_and_programs_are_left_to_the_loader(tmp_path: Path) -> None:
    put_files(tmp_path / "driver", ["usr/lib64/libcuda.so.580.65.06", "usr/bin/real"])
    (tmp_path / "driver/usr/lib64/libcuda.so.1").symlink_to("libcuda.so.580.65.06")
    (tmp_path / "driver/usr/lib64/libodd.so.580.65.06").symlink_to("libcuda.so.580.65.06")
    (tmp_path / "driver/usr/bin/nvidia-smi").symlink_to("real")
    assert [each.container_path for each in found(tmp_path).mounts] == ["/usr/lib64/libcuda.so.580.65.06"]


@pytest.mark.parametrize("where", ["driver/usr/bin/nvidia-ctk", "own/nvidia-ctk", None])
def test_the_hook_is_named_where_it_is_seen(tmp_path: Path, where: str | None) -> None:
    hook = Path("/usr/bin/nvidia-ctk-of-this-test") if where is None else Path("/usr/bin/nvidia-ctk")
    if where == "own/nvidia-ctk":
        hook = tmp_path / where
    if where is not None:
        put_files(tmp_path, [where])
    assert found(tmp_path, cdi_hook=hook).hook == ("" if where is None else str(hook))
