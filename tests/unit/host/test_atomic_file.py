"""A file is there as a whole, old or new, whatever goes wrong."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tessera.host.atomic_file import replace_file


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_and_its_folders_are_made_and_replaced(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "state" / "cards.json"
    for data in (b"first", b"second"):
        replace_file(path, data, durable=durable)
        assert path.read_bytes() == data
    assert os.listdir(path.parent) == ["cards.json"]


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_its_rights_do_not_depend_on_the_umask(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "cards.json"
    before = os.umask(0o077)
    try:
        replace_file(path, b"", mode=mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_failure_leaves_the_old_file_and_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cards.json"
    replace_file(path, b"old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        replace_file(path, b"new", durable=True)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["cards.json"]


def test_a_link_in_the_place_of_the_draft_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "cards.draft").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        replace_file(tmp_path / "cards.json", b"new")
    assert victim.read_text() == "precious"
