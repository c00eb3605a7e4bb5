"""The control daemon of one card, with real processes."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tessera.host.call_thread import AsyncComputeModes
from tessera.host.cards import CardError, ComputeMode
from tessera.node.modes.mps.control import ControlError, MpsProgram, ProcessIdentity
from tessera.node.modes.mps.daemon import LOG_LIMIT_BYTES, CardDir, DaemonRecord, MpsDaemon, card_dirs
from tests.support.fake_mps import PATIENT_S, A, B, FakeModes, FakeMps, limits

DEFAULT, PROHIBITED, EXCLUSIVE = ComputeMode.DEFAULT, ComputeMode.PROHIBITED, ComputeMode.EXCLUSIVE_PROCESS


class Node:
    """A card, its folder, and one agent after the other."""

    def __init__(self, folder: Path) -> None:
        self.fake = FakeMps(folder, folder / "mps")
        self.hardware = FakeModes(A)
        self.modes = AsyncComputeModes(self.hardware)
        self.folder = CardDir(self.fake.root, A)
        self.agents: list[MpsDaemon] = []
        self._ended = asyncio.Event()

    def agent(self, *, program: MpsProgram | None = None, start_s: float = PATIENT_S) -> MpsDaemon:
        daemon = MpsDaemon(self.folder, A, program=program or self.fake.program, modes=self.modes, start_s=start_s)
        daemon.on_end = self._ended.set
        self.agents.append(daemon)
        return daemon

    async def until_ended(self) -> None:
        async with asyncio.timeout(PATIENT_S):
            await self._ended.wait()

    async def close(self) -> None:
        for daemon in self.agents:
            daemon.close()
        await self.modes.close()
        self.fake.close()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    found = Node(tmp_path)
    yield found
    await found.close()


async def test_a_daemon_serves_its_card_alone_and_the_card_is_shut_until_it_has_a_ceiling(node: Node) -> None:
    daemon = node.agent()
    assert await daemon.start() is True
    assert daemon.running
    assert node.fake.state()["environ"] == {
        "CUDA_VISIBLE_DEVICES": A,
        "CUDA_MPS_LOG_DIRECTORY": str(node.folder.log),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": None,
    }
    assert node.hardware.modes[A] is PROHIBITED
    await daemon.set_ceiling(limits(3000, 30))
    await daemon.open_card()
    assert (node.hardware.modes[A], node.fake.default()) == (EXCLUSIVE, ("3000M", 30))


async def test_an_agent_that_ends_leaves_its_daemon_and_the_next_one_takes_it_over(node: Node) -> None:
    first = node.agent()
    await first.start()
    await first.set_ceiling(limits(3000, 30))
    await first.open_card()
    first.close()
    second = node.agent()
    assert await second.start() is False
    assert second.running
    assert second.remembered == limits(3000, 30)
    assert len(node.fake.started()) == 1
    assert node.hardware.modes[A] is EXCLUSIVE


async def test_a_daemon_that_was_begun_and_not_written_down_is_found(node: Node) -> None:
    first = node.agent()
    await first.start()
    first.close()
    node.folder.save(DaemonRecord(DEFAULT))
    second = node.agent()
    assert await second.start() is False
    record = node.folder.load()
    assert record is not None
    assert record.process is not None
    assert record.process.pid == node.fake.started()[0]


async def test_a_recorded_process_that_is_another_one_now_is_not_touched(node: Node) -> None:
    node.folder.save(DaemonRecord(DEFAULT, ProcessIdentity(os.getpid(), 1), limits(3000)))
    daemon = node.agent()
    assert await daemon.start() is True
    assert daemon.remembered == limits(3000)


async def test_the_compute_mode_before_is_remembered_over_restarts(node: Node) -> None:
    daemon = node.agent()
    await daemon.start()
    await daemon.open_card()
    node.fake.kill()
    await node.until_ended()
    later = node.agent()
    assert await later.start() is True
    await later.retire()
    assert node.hardware.modes[A] is DEFAULT


async def test_a_daemon_that_ends_at_once_says_why_and_the_card_stays_shut(node: Node) -> None:
    node.fake.script("no-start")
    daemon = node.agent()
    with pytest.raises(ControlError, match="ended at once: no CUDA-capable device is detected"):
        await daemon.start()
    assert (daemon.running, daemon.ended, node.hardware.modes[A]) == (False, False, PROHIBITED)


@pytest.mark.parametrize("gone", ["before it is looked for", "later"])
async def test_a_program_that_says_nothing_and_ends_is_an_error(
    node: Node, gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if gone != "later":
        monkeypatch.setattr("tessera.node.modes.mps.control.identify", lambda pid: None)
    with pytest.raises(ControlError, match="ended at once: no output"):
        await node.agent(program=MpsProgram(("false",))).start()


async def test_a_program_that_is_not_there_is_an_error(node: Node) -> None:
    with pytest.raises(OSError, match="nowhere"):
        await node.agent(program=MpsProgram(("/nowhere/mps",))).start()


async def test_a_daemon_that_never_answers_is_not_left_behind(node: Node) -> None:
    node.fake.script("deaf")
    with pytest.raises(ControlError, match="does not answer"):
        await node.agent(program=replace(node.fake.program, answer_s=0.05), start_s=0.5).start()
    assert node.fake.running() == []


async def test_a_card_that_is_lost_is_an_error_and_nothing_begins(node: Node) -> None:
    node.hardware.broken.add(A)
    with pytest.raises(CardError, match="GPU is lost"):
        await node.agent().start()
    assert node.fake.started() == []


async def test_a_retired_card_is_as_it_was_before(node: Node) -> None:
    daemon = node.agent()
    await daemon.start()
    await daemon.open_card()
    await daemon.retire()
    assert (node.fake.running(), node.folder.path.exists(), node.hardware.modes[A]) == ([], False, DEFAULT)
    await daemon.retire()


async def test_a_daemon_with_clients_is_not_retired(node: Node) -> None:
    daemon = node.agent()
    await daemon.start()
    node.fake.serve(7, 8)
    with pytest.raises(ControlError, match="2 processes still use it through MPS"):
        await daemon.retire()
    assert len(node.fake.running()) == 1
    assert not any(each.startswith("quit") for each in node.fake.asked())


async def test_a_daemon_that_answers_nobody_is_killed_when_it_is_retired(node: Node) -> None:
    first = node.agent()
    await first.start()
    first.close()
    node.fake.script("deaf")
    later = node.agent(program=replace(node.fake.program, answer_s=0.05))
    assert await later.find()
    await later.retire()
    assert (node.fake.running(), node.hardware.modes[A]) == ([], DEFAULT)


async def test_a_daemon_that_does_not_quit_is_killed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tessera.node.modes.mps.daemon.END_S", 0.05)
    daemon = node.agent()
    await daemon.start()
    node.fake.script("stubborn")
    await daemon.retire()
    await node.until_ended()
    assert node.fake.running() == []


async def test_a_card_without_a_daemon_is_retired_too(node: Node) -> None:
    node.folder.save(DaemonRecord(DEFAULT))
    node.hardware.modes[A] = EXCLUSIVE
    daemon = node.agent()
    assert not await daemon.find()
    await daemon.kill()
    await daemon.retire()
    assert (node.folder.path.exists(), node.hardware.modes[A]) == (False, DEFAULT)


# -- what a card's folder keeps for a later agent


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
