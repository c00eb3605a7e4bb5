"""The last good node configuration, kept for the day when the file is broken."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tessera.node.configuration import LAST_GOOD, save_last_good


def test_what_was_kept_is_there_with_its_folder(tmp_path: Path) -> None:
    save_last_good("{}", tmp_path / "a" / "b")
    save_last_good('{"nodeconfig": []}', tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b" / LAST_GOOD).read_text() == '{"nodeconfig": []}'
    assert os.listdir(tmp_path / "a" / "b") == [LAST_GOOD]


def test_where_it_cannot_be_kept_nothing_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / LAST_GOOD).mkdir()
    with pytest.raises(OSError, match="directory"):
        save_last_good("{}", tmp_path)
    assert os.listdir(tmp_path) == [LAST_GOOD]
