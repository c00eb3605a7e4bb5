"""The journal as files: rotation, disks that fail or are slow, and processes that were killed."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tessera.inspect.journal_source import FileSource
from tessera.kube.backoff import Backoff
from tessera.scheduler import journal_file
from tessera.scheduler.journal_file import JournalFile
from tessera.wire.journal import Placed, Record, Start, encode_record
from tests.support.builders import gpu_pod, node
from tests.support.event_loops import in_real_time
from tests.support.journals import JournalledWorld, assert_same_ledger, replayed
from tests.support.logs import captured

WAIT_S = 30.0


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_file, "WRITE_EVERY", 0.001)
    monkeypatch.setattr(journal_file, "PAUSES", Backoff(initial=0.02, cap=0.02))


def a_world(memory: int = 1 << 20) -> JournalledWorld:
    return JournalledWorld(node("n1").gpus(8), node("n2").gpus(2), memory=memory)


@asynccontextmanager
async def writing(
    world: JournalledWorld, path: Path, *, limit: int = 1 << 30, files: int = 4
) -> AsyncIterator[JournalFile]:
    file = JournalFile(world.journal, str(path), limit=limit, files=files)
    task = asyncio.create_task(file.run())
    try:
        yield file
    finally:
        file.stop()
        await task


async def until(predicate: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not predicate():
            await asyncio.sleep(0.001)


async def read(*paths: Path, strict: bool = False) -> list[Record]:
    return [record async for record in FileSource(*map(str, paths), strict=strict).records()]


def place(world: JournalledWorld, numbers: range) -> None:
    for number in numbers:
        world.chosen(gpu_pod(f"p{number}", mem=10, cores=0))


@in_real_time
async def test_a_file_has_everything_up_to_the_stop_and_replays(tmp_path: Path) -> None:
    world, path = a_world(), tmp_path / "journal"
    async with writing(world, path):
        place(world, range(20))
        await until(path.exists)
        place(world, range(20, 30))
    records = await read(path)
    assert sum(isinstance(record, Placed) for record in records) == 30
    assert_same_ledger(replayed(records), world.ledger)
    assert path.stat().st_mode & 0o777 == 0o600


@in_real_time
async def test_a_file_that_is_full_is_renamed_and_each_one_replays_alone(tmp_path: Path) -> None:
    world, path = a_world(), tmp_path / "journal"
    async with writing(world, path, limit=20_000, files=3) as file:
        for first in range(0, 200, 10):
            place(world, range(first, first + 10))
            await until(lambda: file.position == world.journal.sequence)
            for number in range(first, first + 10):
                world.cycles.observe_gone(f"uid-p{number}")
    paths = sorted(tmp_path.iterdir())
    assert [found.name for found in paths] == ["journal", "journal.1", "journal.2"]
    for one in paths:
        assert isinstance((await read(one))[0], Start)
        replayed(await read(one))
    assert_same_ledger(replayed(await read(path)), world.ledger)
    assert_same_ledger(replayed(await read(*reversed(paths))), world.ledger)


@in_real_time
async def test_a_state_larger_than_a_file_does_not_begin_a_file_for_every_record(tmp_path: Path) -> None:
    world, path = a_world(), tmp_path / "journal"
    place(world, range(60))
    async with writing(world, path, limit=2_000, files=50) as file:
        for number in range(60, 75):
            place(world, range(number, number + 1))
            await until(lambda: file.position == world.journal.sequence)
    assert len(list(tmp_path.iterdir())) <= 3


class FullDisk:
    """A disk with little room: a write takes what there is, and then fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None
        """bytes; None = enough"""
        self._write = os.write
        monkeypatch.setattr(os, "write", self._take)

    def _take(self, descriptor: int, data: bytes) -> int:
        if self.room is None or not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return self._write(descriptor, data)
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._write(descriptor, bytes(data)[: self.room])
        self.room -= written
        return written


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(monkeypatch)


@in_real_time
@pytest.mark.parametrize("room", [0, 1, 10, 400, 1_500])
async def test_a_full_disk_leaves_no_garbage_and_is_written_again_once_there_is_room(
    tmp_path: Path, disk: FullDisk, room: int
) -> None:
    world, path = a_world(), tmp_path / "journal"
    with captured() as logs:
        async with writing(world, path) as file:
            place(world, range(5))
            await until(lambda: path.exists() and path.stat().st_size > 0)
            disk.room = room
            place(world, range(5, 10))
            await until(lambda: file.errors > 3)
            place(world, range(10, 15))
            disk.room = None
        assert [event["error"] for event in logs.of("journal file not written")] == [
            "[Errno 28] No space left on device"
        ]
        assert len(logs.of("journal file written again")) == 1
    records = await read(path, strict=True)
    assert sum(isinstance(record, Placed) for record in records) == 15
    assert file.lost == 0
    assert_same_ledger(replayed(records), world.ledger)


@in_real_time
async def test_a_full_disk_costs_no_descriptors_and_counts_what_is_lost_once(tmp_path: Path, disk: FullDisk) -> None:
    world, path = a_world(memory=20_000), tmp_path / "journal"
    path.write_bytes(b"half a line")
    disk.room = 0
    with captured() as logs:
        async with writing(world, path) as file:
            await until(lambda: file.errors > 1)
            before = len(os.listdir("/dev/fd"))
            place(world, range(60))
            await until(lambda: file.errors > 12)
            assert len(os.listdir("/dev/fd")) <= before
            # Room for the end of the half line, and for a part of the state.
            disk.room = 500
            errors = file.errors
            await until(lambda: file.errors > errors + 4)
            disk.room = None
        assert len(logs.of("journal file not written")) == 1
    assert 0 < file.lost <= world.journal.sequence
    assert_same_ledger(replayed(await read(path, strict=True)), world.ledger)


@in_real_time
async def test_records_that_left_the_ring_of_a_full_disk_are_counted_once(tmp_path: Path, disk: FullDisk) -> None:
    world, path = a_world(memory=20_000), tmp_path / "journal"
    with captured() as logs:
        async with writing(world, path) as file:
            await until(lambda: file.position == world.journal.sequence)
            before, disk.room = world.journal.sequence, 0
            place(world, range(60))
            await until(lambda: file.errors > 4)
            disk.room = None
        assert len(logs.of("journal file fell behind, and goes on with the state as it is")) == 1
    assert 0 < file.lost <= world.journal.sequence - before
    assert_same_ledger(replayed(await read(path, strict=True)), world.ledger)


@in_real_time
async def test_a_write_that_takes_nothing_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", lambda _descriptor, _data: 0)
    with captured():
        async with writing(a_world(), tmp_path / "journal") as file:
            await until(lambda: file.errors > 1)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def moved(path: Path) -> None:
    path.rename(path.with_name("moved"))


def replaced(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"something else")


def without_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


@in_real_time
@pytest.mark.parametrize("meddle", [emptied, Path.unlink, moved, replaced, without_folder])
async def test_a_file_that_was_taken_away_begins_again_with_the_state(
    tmp_path: Path, meddle: Callable[[Path], None]
) -> None:
    world, path = a_world(), tmp_path / "folder" / "journal"
    path.parent.mkdir()
    with captured():
        async with writing(world, path) as file:
            place(world, range(5))
            await until(lambda: file.position == world.journal.sequence)
            meddle(path)
            place(world, range(5, 8))
            if meddle is without_folder:
                await until(lambda: file.errors > 1)
                path.parent.mkdir()
            await until(lambda: file.position == world.journal.sequence)
            place(world, range(8, 10))
    assert_same_ledger(replayed(await read(path, strict=True)), world.ledger)


TAILS = {
    "half a record": lambda whole: whole[:-40],
    "garbage": lambda whole: whole + b"\xff\x00garbage",
    "lines of garbage": lambda whole: whole + b"\xff\n\x00\n{}\n[\n",
    "zeros": lambda whole: whole + b"\0" * 4_096,
    "zeros instead of the end": lambda whole: whole[:-500] + b"\0" * 500,
    "a flipped bit": lambda whole: whole[:-300] + bytes([whole[-300] ^ 0x80]) + whole[-299:],
    "a length of four bytes": lambda whole: whole + b"\xff\xff\xff\x7f",
    "a record of an older format": lambda whole: whole + b'{"kind":"placed","pod":"default/p","node":"n1"}\n',
    "deep nesting": lambda whole: whole + b"[" * 50_000,
    "nothing but garbage": lambda _whole: b"\x7fELF" * 100,
}


@in_real_time
@pytest.mark.parametrize("damage", TAILS.values(), ids=TAILS)
async def test_behind_a_damaged_file_everything_is_readable(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    first, second, path = a_world(), a_world(), tmp_path / "journal"
    async with writing(first, path):
        place(first, range(3))
    path.write_bytes(damage(path.read_bytes()))
    async with writing(second, path):
        place(second, range(5, 7))
    records = await read(path, strict=damage is not TAILS["a flipped bit"])
    begins = max(place for place, record in enumerate(records) if isinstance(record, Start))
    assert sum(isinstance(record, Placed) for record in records[begins:]) == 2
    assert_same_ledger(replayed(records[begins:]), second.ledger)


@in_real_time
async def test_a_fault_of_our_own_is_reported_counted_and_not_the_end_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, path = a_world(), tmp_path / "journal"
    is_broken = True

    def encode(record: Record) -> bytes:
        if is_broken:
            raise TypeError("no such field")
        return encode_record(record)

    monkeypatch.setattr(journal_file, "encode_record", encode)
    with captured() as logs:
        async with writing(world, path) as file:
            place(world, range(3))
            await until(lambda: file.errors > 0)
            is_broken = False
        assert isinstance(logs.of("journal file not written")[0]["exc_info"], TypeError)
    assert_same_ledger(replayed(await read(path)), world.ledger)


@in_real_time
async def test_a_directory_that_is_not_there_disturbs_nothing(tmp_path: Path) -> None:
    world, path = a_world(), tmp_path / "missing" / "journal"
    with captured():
        async with writing(world, path) as file:
            await until(lambda: file.errors > 1)
            place(world, range(3))
            path.parent.mkdir()
            await until(path.exists)
    assert_same_ledger(replayed(await read(path)), world.ledger)


@in_real_time
async def test_a_disk_that_is_too_slow_leaves_a_gap_and_goes_on_with_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, path = a_world(memory=20_000), tmp_path / "journal"
    gate, write_all, begun = asyncio.Event(), journal_file._write_all, []
    loop = asyncio.get_running_loop()

    def slow(descriptor: int, data: bytes) -> None:
        begun.append(data)
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()
        write_all(descriptor, data)

    monkeypatch.setattr(journal_file, "_write_all", slow)
    with captured() as logs:
        async with writing(world, path) as file:
            await until(lambda: len(begun) > 0)
            place(world, range(60))
            gate.set()
        assert file.lost > 0
        assert len(logs.of("journal file fell behind, and goes on with the state as it is")) == 1
    records = await read(path)
    assert sum(isinstance(record, Start) for record in records) == 2
    assert_same_ledger(replayed(records), world.ledger)


@in_real_time
async def test_what_a_killed_process_left_is_kept_and_readable(tmp_path: Path) -> None:
    first, second, path = a_world(), a_world(), tmp_path / "journal"
    async with writing(first, path):
        place(first, range(3))
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    async with writing(second, path):
        place(second, range(5, 7))
    assert path.read_bytes().count(b'\n{"kind":"start"') == 1
    records = await read(path)
    assert sum(isinstance(record, Start) for record in records) == 2
    assert_same_ledger(replayed(records), second.ledger)


@in_real_time
async def test_a_reload_is_no_gap(tmp_path: Path) -> None:
    world, path = a_world(), tmp_path / "journal"
    async with writing(world, path) as file:
        place(world, range(3))
        await until(lambda: path.exists() and path.stat().st_size > 0)
        world.reload(world.settings)
        place(world, range(3, 6))
    assert file.lost == 0
    assert_same_ledger(replayed(await read(path)), world.ledger)
