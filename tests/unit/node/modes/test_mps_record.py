"""What a card's folder keeps for a later agent."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tessera.host.cards import ComputeMode
from tessera.node.modes.mps.control import ProcessIdentity
from tessera.node.modes.mps.daemon import LOG_LIMIT_BYTES, CardDir, DaemonRecord, card_dirs
from tests.support.fake_mps import A, B, limits


@pytest.mark.parametrize(
    "record",
    [
        DaemonRecord(ComputeMode.DEFAULT),
        DaemonRecord(ComputeMode.EXCLUSIVE_PROCESS, ProcessIdentity(7, 9), limits(3000, 30)),
        DaemonRecord(ComputeMode.PROHIBITED, None, limits(1, 1)),
    ],
)
def test_a_record_is_read_as_it_was_written(tmp_path: Path, record: DaemonRecord) -> None:
    folder = CardDir(tmp_path, A)
    folder.save(record)
    assert folder.load() == record
    assert sorted(each.name for each in folder.path.iterdir()) == ["daemon.json"]


def test_there_is_no_record_before_one_is_written(tmp_path: Path) -> None:
    assert CardDir(tmp_path, A).load() is None


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b'{"compute_mode": 9}', b'{"compute_mode": 0, "x": 1}'])
def test_a_record_that_cannot_be_read_is_as_good_as_none(tmp_path: Path, text: bytes) -> None:
    folder = CardDir(tmp_path, A)
    folder.prepare()
    (folder.path / "daemon.json").write_bytes(text)
    assert folder.load() is None


def test_a_record_that_is_a_folder_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / A / "daemon.json").mkdir(parents=True)
    assert CardDir(tmp_path, A).load() is None


def test_clients_of_any_user_reach_the_pipes_whatever_the_umask(tmp_path: Path) -> None:
    folder = CardDir(tmp_path / "mps", A)
    before = os.umask(0o077)
    try:
        folder.prepare()
        folder.prepare()
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (folder.root, folder.path, folder.pipe, folder.log)]
    assert modes == [0o755] * 4


def test_logs_do_not_grow_for_ever(tmp_path: Path) -> None:
    folder = CardDir(tmp_path, A)
    folder.prepare()
    (folder.log / "control.log").touch()
    os.truncate(folder.log / "control.log", LOG_LIMIT_BYTES + 1)
    (folder.log / "server.log").write_text("short")
    (folder.log / "vanished.log").symlink_to("nowhere")
    folder.trim()
    assert [(folder.log / name).stat().st_size for name in ("control.log", "server.log")] == [0, 5]


def test_only_cards_with_a_record_are_the_agents(tmp_path: Path) -> None:
    CardDir(tmp_path, B).save(DaemonRecord(ComputeMode.DEFAULT))
    (tmp_path / A).mkdir()
    (tmp_path / "file").touch()
    assert [each.path.name for each in card_dirs(tmp_path)] == [B]
    assert card_dirs(tmp_path / "nowhere") == []
