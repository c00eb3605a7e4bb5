from __future__ import annotations

from pathlib import Path

import pytest

from tessera.host.cards import InventoryError
from tessera.host.nvml.session import LIBRARY, LIBRARY_DIRS, library_names, load_binding
from tests.support.fake_nvml import FakeNvml


class Linker:
    """dlopen that knows some names."""

    def __init__(self, *known: str) -> None:
        self.known = known
        self.asked: list[str] = []

    def __call__(self, name: str) -> FakeNvml:
        self.asked.append(name)
        if name not in self.known:
            raise OSError(f"{name}: cannot open shared object file")
        library = FakeNvml()
        library._name = name  # type: ignore[attr-defined]
        return library


@pytest.mark.parametrize("folder", LIBRARY_DIRS)
def test_the_library_is_found_under_the_drivers_root_links_followed(tmp_path: Path, folder: str) -> None:
    real = tmp_path / folder / "libnvidia-ml.so.580.95"
    real.parent.mkdir(parents=True)
    real.touch()
    (tmp_path / folder / LIBRARY).symlink_to(real.name)
    assert list(library_names(tmp_path)) == [str(real.resolve()), LIBRARY]


def test_what_is_no_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "usr/lib64" / LIBRARY).mkdir(parents=True)
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / LIBRARY).symlink_to("gone")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/x86_64-linux-gnu").mkdir()
    (tmp_path / "lib/x86_64-linux-gnu" / LIBRARY).symlink_to(LIBRARY)
    assert list(library_names(tmp_path)) == [LIBRARY]


def test_a_library_for_another_machine_is_passed_over(tmp_path: Path, no_library: None) -> None:
    foreign = tmp_path / "usr/lib/aarch64-linux-gnu" / LIBRARY
    foreign.parent.mkdir(parents=True)
    foreign.touch()
    linker = Linker(LIBRARY)
    assert load_binding(tmp_path, dlopen=linker).nvmlLib._name == LIBRARY
    assert linker.asked == [str(foreign.resolve()), LIBRARY]


def test_the_library_is_loaded_once(tmp_path: Path, no_library: None) -> None:
    linker = Linker(LIBRARY)
    assert load_binding(tmp_path, dlopen=linker).nvmlLib is load_binding(tmp_path, dlopen=linker).nvmlLib


def test_a_replaced_driver_brings_another_library(tmp_path: Path, no_library: None) -> None:
    folder = (tmp_path / "usr/lib64").resolve()
    folder.mkdir(parents=True)
    for version in ("570", "580"):
        (folder / f"lib.{version}").touch()
    linker = Linker(str(folder / "lib.570"), str(folder / "lib.580"))
    (folder / LIBRARY).symlink_to("lib.570")
    old = load_binding(tmp_path, dlopen=linker).nvmlLib
    (folder / LIBRARY).unlink()
    (folder / LIBRARY).symlink_to("lib.580")
    assert load_binding(tmp_path, dlopen=linker).nvmlLib is not old


def test_without_a_library_the_error_says_what_was_tried(tmp_path: Path, no_library: None) -> None:
    with pytest.raises(InventoryError, match=rf"cannot load {LIBRARY}: {LIBRARY}: cannot open"):
        load_binding(tmp_path, dlopen=Linker())
