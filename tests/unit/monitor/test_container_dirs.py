"""Whose region is where, and which folders may go: golden case 32, and bug 11."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tessera.monitor.container_dirs import (
    Folder,
    Owner,
    RegionPlace,
    Scan,
    containers_of,
    may_go,
    owner_of,
    places,
    scan,
)

NOW = 1_700_000_000.0
INTERVAL = 300.0
A, B = Owner("uid-a", "main"), Owner("uid-b", "main")
IDS = "ids-0123456789abcdef"


def look(base: Path) -> Scan:
    with containers_of(base) as tree:
        assert tree is not None
        return scan(tree)


@pytest.fixture
def containers(tmp_path: Path) -> Path:
    folder = tmp_path / "containers"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("uid-a_main", A),
        ("uid-a_x_y", Owner("uid-a", "x_y")),
        ("_main", None),
        ("uid-a_", None),
        ("uid-a", None),
        ("", None),
    ],
)
def test_a_folder_says_whose_it_is(name: str, owner: Owner | None) -> None:
    assert owner_of(name) == owner


@pytest.mark.parametrize(
    ("age", "goes"),
    [(60, False), (299, False), (300, True), (600, True), (-60, False), (-86_400 * 365, True)],
    ids=["case 32: one minute", "just not", "just", "case 32: ten minutes", "a little ahead", "a trick"],
)
def test_case_32_the_folder_of_an_unknown_pod_goes_when_it_is_old(age: float, goes: bool) -> None:
    folder = Folder("uid-a_main", A, NOW - age, ())
    assert may_go(folder, known=[B], known_uids=["uid-b"], now=NOW, interval=INTERVAL) is goes


@pytest.mark.parametrize(
    "folder",
    [
        Folder("uid-b_gone", Owner("uid-b", "gone"), 0.0, ()),
        Folder(IDS, None, 0.0, ()),
        Folder("uid-a_main", A, 0.0, ("uid-b_main.cache",)),
    ],
    ids=["its pod is known", "the agent's to remove", "a living container counts there"],
)
def test_other_folders_stay_however_old_they_are(folder: Folder) -> None:
    assert not may_go(folder, known=[B], known_uids=["uid-b"], now=NOW, interval=INTERVAL)


def test_folders_are_found_with_what_may_be_regions(containers: Path, tmp_path: Path) -> None:
    for name, files in {
        "uid-a_main": ["b.cache", "a.cache", "libvgpu.so.cache", "libvgpu.so", "notes"],
        IDS: ["uid-b_main.cache"],
        "ids-short": ["x.cache"],
        "plain": ["x.cache"],
    }.items():
        (containers / name).mkdir()
        for file in files:
            (containers / name / file).touch()
    (containers / "uid-a_main" / "c.cache").symlink_to(tmp_path)
    (containers / "uid-a_main" / "d.cache").mkdir()
    os.mkfifo(containers / "uid-a_main" / "e.cache")
    os.utime(containers / "uid-a_main", (NOW, NOW))
    found = look(tmp_path)
    assert [(each.name, each.owner, each.caches) for each in found.folders] == [
        (IDS, None, ("uid-b_main.cache",)),
        ("uid-a_main", A, ("a.cache", "b.cache")),
    ]
    assert found.folders[1].changed_at == NOW
    assert not found.problems


def test_a_link_in_place_of_a_folder_is_a_problem_and_hides_no_other(containers: Path, tmp_path: Path) -> None:
    (containers / "uid-a_main").symlink_to(tmp_path)
    (containers / "uid-b_main").mkdir()
    found = look(tmp_path)
    assert [each.owner for each in found.folders] == [B]
    assert len(found.problems) == 1
    assert "uid-a_main" in found.problems[0]


def test_a_folder_that_vanishes_between_two_looks_is_no_problem(
    containers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "listdir", lambda _tree: ["uid-a_main"])
    assert look(tmp_path) == Scan((), ())


def test_bug_11_a_folder_that_was_made_again_is_seen_as_it_is(containers: Path, tmp_path: Path) -> None:
    folder = containers / "uid-a_main"
    folder.mkdir()
    (folder / "old.cache").touch()
    assert look(tmp_path).folders[0].caches == ("old.cache",)
    (folder / "old.cache").unlink()
    folder.rmdir()
    assert look(tmp_path) == Scan((), ())
    folder.mkdir()
    (folder / "new.cache").touch()
    assert look(tmp_path).folders[0].caches == ("new.cache",)


def test_no_folder_of_containers_means_none_yet_but_no_base_is_a_fault(tmp_path: Path) -> None:
    with containers_of(tmp_path) as tree:
        assert tree is None
    with pytest.raises(FileNotFoundError), containers_of(tmp_path / "missing"):
        pass


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        ({"uid-a_main": ("x.cache",)}, {A: RegionPlace("uid-a_main", "x.cache")}),
        ({"uid-a_main": ()}, {}),
        ({"uid-x_main": ("x.cache",)}, {}),
        ({"uid-a_main": ("1.cache", "2.cache", "3.cache")}, {A: RegionPlace("uid-a_main", "1.cache")}),
        ({"uid-a_main": ("1.cache", "uid-a_main.cache")}, {A: RegionPlace("uid-a_main", "uid-a_main.cache")}),
        ({IDS: ("uid-a_main.cache", "uid-x_main.cache", "x.cache")}, {A: RegionPlace(IDS, "uid-a_main.cache")}),
        (
            {"uid-a_main": ("uid-b_main.cache",), "uid-b_main": ("uid-a_main.cache",)},
            {A: RegionPlace("uid-b_main", "uid-a_main.cache"), B: RegionPlace("uid-a_main", "uid-b_main.cache")},
        ),
        (
            {"uid-a_main": ("uid-b_main.cache", "x.cache"), "uid-b_main": ("z.cache",)},
            {A: RegionPlace("uid-a_main", "x.cache"), B: RegionPlace("uid-b_main", "z.cache")},
        ),
    ],
    ids=[
        "its own folder",
        "not started yet",
        "unknown pod",
        "bug 11: more than two files",
        "its own name first",
        "by device ids",
        "answers were swapped",
        "a file in another's name",
    ],
)
def test_the_region_of_a_container_is_found(
    folders: dict[str, tuple[str, ...]], expected: dict[Owner, RegionPlace]
) -> None:
    found = [
        Folder(name, None if name == IDS else owner_of(name), NOW, files) for name, files in sorted(folders.items())
    ]
    assert places(found, [A, B]) == expected
