"""The journal as files: rotation, disks that fail or are slow, and processes that were killed."""

from __future__ import annotations

import asyncio
import os
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
from tests.support.journalled_scheduler import JournalledWorld
from tests.support.journals import assert_same_ledger, replayed
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


async def read(*paths: Path) -> list[Record]:
    return [record async for record in FileSource(*map(str, paths)).records()]


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


@in_real_time
async def test_a_disk_that_fails_is_reported_and_written_again_once_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, path = a_world(), tmp_path / "journal"
    is_full = False
    write = os.write

    def failing(descriptor: int, data: bytes) -> int:
        if is_full:
            write(descriptor, bytes(data)[:10])
            raise OSError(28, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", failing)
    with captured() as logs:
        async with writing(world, path) as file:
            place(world, range(5))
            await until(lambda: path.exists() and path.stat().st_size > 0)
            is_full = True
            place(world, range(5, 10))
            await until(lambda: file.errors > 1)
            place(world, range(10, 15))
            is_full = False
        assert logs.of("journal file not written")[0]["error"] == "[Errno 28] No space left on device"
    # Where a line was cut off, the next file or process begins with the state.
    last = path.read_bytes().rpartition(b'{"kind":"start"')
    path.write_bytes(b"".join(last[1:]))
    assert_same_ledger(replayed(await read(path)), world.ledger)


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
