"""Directories of containers, against tenants that put links, trees and floods into them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tessera.host.writable_dirs import (
    SPARES,
    UnsafePath,
    WritableDirs,
    container_dir_name,
    ids_dir_name,
    make_shared_dir,
    region_file_name,
)

NAME = "uid-1_main"


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "hook" / "vgpu"


@pytest.fixture
def folders(base: Path) -> WritableDirs:
    return WritableDirs(base)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """What a tenant would like to see changed."""
    folder = tmp_path / "outside"
    folder.mkdir(mode=0o700)
    (folder / "precious").write_text("untouched")
    return folder


def is_untouched(outside: Path) -> bool:
    return (
        (outside / "precious").read_text() == "untouched"
        and stat.S_IMODE(outside.stat().st_mode) == 0o700
        and os.listdir(outside) == ["precious"]
    )


def test_a_folder_is_named_after_the_pods_uid_and_the_container() -> None:
    uid = "0f7a3c1e-aaaa-4bbb-8ccc-123456789abc"
    assert container_dir_name(uid, "init-2") == f"{uid}_init-2"
    assert region_file_name(uid, "init-2") == f"{uid}_init-2.cache"


@pytest.mark.parametrize(
    ("uid", "container"),
    [
        ("", "main"),
        ("uid", ""),
        ("..", "main"),
        ("../../etc", "main"),
        ("uid", "../x"),
        ("uid/x", "main"),
        ("uid", "a/b"),
        ("uid\x00", "main"),
        ("uid", "main\n"),
        ("uid_x", "main"),
        ("uid", "Main"),
        ("uid", "-main"),
        ("uïd", "main"),
        ("u" * 65, "main"),
        ("uid", "m" * 64),
    ],
)
def test_names_that_no_apiserver_gives_make_no_folder(uid: str, container: str) -> None:
    with pytest.raises(UnsafePath, match="cannot be the name of a directory"):
        container_dir_name(uid, container)


def test_the_same_ids_have_the_same_folder_and_others_another() -> None:
    assert ids_dir_name(["a-1", "b-0"]) == ids_dir_name(["b-0", "a-1", "a-1"])
    assert len({ids_dir_name(ids) for ids in (["a"], ["b"], ["a", "b"], ["ab"], [], ["größe"], ["\udc80"])}) == 7


def test_monitors_that_look_for_pods_do_not_take_a_folder_of_ids_for_one() -> None:
    assert ids_dir_name(["a"]).startswith("ids-")
    assert "_" not in ids_dir_name(["a"])


@pytest.mark.usefixtures("_umask")
def test_a_new_folder_is_empty_and_open_to_everybody_whatever_the_umask(folders: WritableDirs, base: Path) -> None:
    path = folders.recreate(NAME)
    assert path == base / "containers" / NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o777
    assert stat.S_IMODE((base / "containers").stat().st_mode) == 0o755
    assert os.listdir(path) == []


def test_a_folder_that_was_there_is_replaced_by_an_empty_one(folders: WritableDirs) -> None:
    first = folders.recreate(NAME)
    (first / "old.cache").touch()
    first.chmod(0o700)
    second = folders.recreate(NAME)
    assert os.listdir(second) == []
    assert stat.S_IMODE(second.stat().st_mode) == 0o777


def test_the_base_may_be_a_link_of_the_administrator(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "vgpu").symlink_to(tmp_path / "disk")
    WritableDirs(tmp_path / "vgpu").recreate(NAME)
    assert (tmp_path / "disk" / "containers" / NAME).is_dir()


@pytest.mark.parametrize("kind", ["link", "dangling link", "file", "fifo"])
@pytest.mark.parametrize("place", ["containers", f"containers/{NAME}"])
def test_what_is_no_folder_is_refused_and_left_as_it_is(
    folders: WritableDirs, base: Path, outside: Path, kind: str, place: str
) -> None:
    path = base / place
    path.parent.mkdir(parents=True)
    match kind:
        case "link":
            path.symlink_to(outside)
        case "dangling link":
            path.symlink_to(outside / "missing")
        case "file":
            path.touch()
        case _:
            os.mkfifo(path)
    with pytest.raises(UnsafePath, match="on the host is"):
        folders.recreate(NAME)
    with pytest.raises(UnsafePath, match="on the host is"):
        folders.discard(NAME)
    assert os.path.lexists(path)
    assert is_untouched(outside)


def test_links_that_a_tenant_left_are_removed_and_never_followed(
    folders: WritableDirs, base: Path, outside: Path
) -> None:
    own = folders.recreate(NAME)
    (own / "link").symlink_to(outside)
    (own / "file-link").symlink_to(outside / "precious")
    (own / "dangling").symlink_to("/nowhere")
    (own / "inner").mkdir()
    (own / "inner" / "link").symlink_to(outside)
    (own / "inner" / "up").symlink_to("../..")
    os.link(outside / "precious", own / "hard")
    os.mkfifo(own / "fifo")
    assert os.listdir(folders.recreate(NAME)) == []
    assert folders.empty() == (True, ())
    assert is_untouched(outside)
    assert os.listdir(base / "discarded") == []


def test_a_tree_of_any_depth_is_removed(folders: WritableDirs, base: Path) -> None:
    deep = os.open(folders.recreate(NAME), os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=deep)
        inner = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = inner
    os.close(deep)
    assert folders.discard(NAME)
    assert folders.empty(steps=10_000) == (True, ())
    assert os.listdir(base / "discarded") == []


def test_a_flood_is_removed_bit_by_bit(folders: WritableDirs, base: Path) -> None:
    own = folders.recreate(NAME)
    for number in range(50):
        (own / f"f{number}").touch()
        (own / f"d{number}").mkdir()
    folders.discard(NAME)
    rounds = 0
    while not folders.empty(steps=20).finished:
        rounds += 1
    assert 5 <= rounds <= 20
    assert os.listdir(base / "discarded") == []


def test_what_cannot_be_removed_is_told_and_the_rest_goes(
    folders: WritableDirs, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("uid-1_a", "uid-2_b"):
        (folders.recreate(name) / f"{name}.cache").touch()
        folders.discard(name)
    unlink = os.unlink

    def stubborn(path: str, *, dir_fd: int) -> None:
        if path == "uid-1_a.cache":
            raise PermissionError("immutable")
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", stubborn)
    finished, problems = folders.empty()
    assert not finished
    assert len(problems) == 1
    assert "immutable" in problems[0]
    assert len(os.listdir(base / "discarded")) == 1
    monkeypatch.undo()
    assert folders.empty() == (True, ())


def test_stray_files_among_the_discarded_are_removed(folders: WritableDirs, base: Path, outside: Path) -> None:
    (base / "discarded").mkdir(parents=True)
    (base / "discarded" / "file").touch()
    (base / "discarded" / "link").symlink_to(outside)
    assert folders.empty() == (True, ())
    assert is_untouched(outside)


def test_only_folders_named_as_ours_are_listed(folders: WritableDirs, base: Path, outside: Path) -> None:
    folders.recreate("uid-2_main")
    folders.recreate(ids_dir_name(["a"]))
    for stranger in ("lost+found", "no-mark", "_x", "x_", "uid_Main", ".hidden_x", "ids-x", "ids-0123"):
        (base / "containers" / stranger).mkdir()
    (base / "containers" / "uid-3_link").symlink_to(outside)
    (base / "containers" / "uid-4_file").touch()
    assert folders.names() == [ids_dir_name(["a"]), "uid-2_main"]


def test_a_folder_in_which_a_living_container_counts_is_not_discarded(folders: WritableDirs) -> None:
    own = folders.recreate(NAME)
    (own / "uid-9_main.cache").touch()
    assert not folders.discard(NAME, unless=["uid-8_main.cache", "uid-9_main.cache"])
    assert own.is_dir()
    assert folders.discard(NAME, unless=["uid-8_main.cache"])
    assert not own.exists()


def test_discarding_what_is_gone_is_done(folders: WritableDirs) -> None:
    assert folders.discard(NAME)


def test_two_threads_may_make_the_same_tree(folders: WritableDirs, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mkdir = os.mkdir

    def late(path: str, mode: int, *, dir_fd: int | None = None) -> None:
        # Somebody else was faster by a moment.
        mkdir(path, mode, dir_fd=dir_fd)
        if path == "discarded":
            raise FileExistsError(path)

    monkeypatch.setattr(os, "mkdir", late)
    assert folders.empty() == (True, ())


@pytest.mark.usefixtures("_umask")
def test_the_shared_folder_is_open_to_everybody(tmp_path: Path) -> None:
    path = tmp_path / "new" / "vgpulock"
    make_shared_dir(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o777
    (path / "kept").touch()
    path.chmod(0o700)
    make_shared_dir(path)
    make_shared_dir(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o777
    assert os.listdir(path) == ["kept"]


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_shared_folder_that_somebody_put_elsewhere_is_refused(tmp_path: Path, outside: Path, kind: str) -> None:
    path = tmp_path / "vgpulock"
    path.symlink_to(outside) if kind == "link" else path.touch()
    with pytest.raises(UnsafePath, match="on the host is"):
        make_shared_dir(path)
    assert is_untouched(outside)


@pytest.mark.usefixtures("_umask")
def test_a_folder_made_ahead_is_like_one_that_is_made_at_once(folders: WritableDirs, base: Path) -> None:
    folders.stock()
    ahead = {each.stat().st_ino for each in (base / "spare").iterdir()}
    assert len(ahead) == SPARES
    for number in range(SPARES + 1):
        made = folders.recreate(f"uid-{number}_main").stat()
        assert stat.S_IMODE(made.st_mode) == 0o777
        assert (made.st_ino in ahead) is (number < SPARES)
    assert list((base / "spare").iterdir()) == []
    folders.stock()
    folders.stock()
    assert len(list((base / "spare").iterdir())) == SPARES


def test_what_an_earlier_process_made_ahead_is_not_trusted(base: Path, folders: WritableDirs) -> None:
    (base / "spare").mkdir(parents=True)
    (base / "spare" / "half-made").mkdir(mode=0o700)
    (base / "spare" / "half-made" / "file").touch()
    folders.stock()
    made = folders.recreate(NAME)
    assert list(made.iterdir()) == []
    assert stat.S_IMODE(made.stat().st_mode) == 0o777
    assert folders.empty().finished
