from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path

import pytest

from tessera.core.model.grants import Span
from tessera.core.model.requests import Role
from tessera.node.handover import checkpoint as checkpoint_module
from tessera.node.handover.assignments import Assignment
from tessera.node.handover.checkpoint import FILE, MAX_RECORDS, Checkpoint, Record
from tessera.services.failpoints import VARIABLE
from tessera.wire import keys
from tests.support.handover_node import bound, claims
from tests.support.logs import captured

MIG = '[{"gpuUUID":"GPU-a","profile":"1g.18gb+me","placement":{"start":2,"size":1}}]'
(P,) = claims(bound("p", "a/1/1", annotations={keys.MIG_ALLOCATIONS: MIG}))
(Q,) = claims(bound("q", "a/1/1"))
SPANS = (Span(Role.INIT, finished=True), Span(Role.APP))


def record(*ids: str, claim: Assignment = P) -> Record:
    return Record(ids, claim, (claim.key,), SPANS)


async def loaded(folder: Path) -> list[Record]:
    """What the next process reads."""
    return list(await Checkpoint(folder).load())


async def test_an_answer_is_known_to_the_next_process_as_soon_as_it_is_added(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "state")
    assert await checkpoint.load() == ()
    with captured() as logs:
        await checkpoint.add(record("a", "b"))
        await checkpoint.add(record("c", claim=Q))
    assert logs.of("allocation checkpoint cannot be written") == []
    assert await loaded(tmp_path / "state") == list(checkpoint) == [record("a", "b"), record("c", claim=Q)]
    assert [path.name for path in (tmp_path / "state").iterdir()] == [FILE]


async def test_failpoints_are_right_before_and_after_the_answer_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    was_there: list[bool] = []
    monkeypatch.setenv(VARIABLE, "allocate.before-record=kill,allocate.after-record=kill")
    monkeypatch.setattr(os, "kill", lambda _pid, _number: was_there.append((tmp_path / FILE).exists()))
    checkpoint = Checkpoint(tmp_path)
    await checkpoint.add(record("a"))
    assert was_there == [False, True]


async def test_the_file_has_the_names_that_earlier_agents_wrote(tmp_path: Path) -> None:
    await Checkpoint(tmp_path).add(record("a"))
    assert json.loads((tmp_path / FILE).read_text()).keys() == {"ids", "claim", "askers", "spans"}


async def test_an_answer_that_never_left_is_not_on_record(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    refused = record("a")
    await checkpoint.add(refused)
    checkpoint.discard(refused)
    assert list(checkpoint) == []
    await checkpoint.prune(lambda _uid: True)
    assert await loaded(tmp_path) == []


async def test_containers_that_may_have_been_answered_are_noted_once(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    await checkpoint.add(record("a"))
    for _ in range(2):
        checkpoint.note([P, Q], {"uid-q": SPANS})
    assert list(checkpoint) == [record("a"), record(claim=Q)]
    await asyncio.gather(*checkpoint._behind)
    assert await loaded(tmp_path) == [record("a"), record(claim=Q)]


async def test_answers_of_pods_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    shared = Record(("s",), P, (P.key, Q.key))
    for each in (record("a"), record("b", claim=Q), shared):
        await checkpoint.add(each)
    await checkpoint.prune(lambda uid: uid == "uid-q")
    assert await loaded(tmp_path) == [record("b", claim=Q), shared]
    await checkpoint.add(record("c", claim=Q))
    assert await loaded(tmp_path) == [record("b", claim=Q), shared, record("c", claim=Q)]
    await checkpoint.prune(lambda _uid: False)
    assert await loaded(tmp_path) == []


@pytest.mark.parametrize("text", ["{\n", "[{}]\n", '{"ids":["a"],"claim":7}\n', "[" * 20000 + "\n"])
async def test_a_file_that_cannot_be_read_costs_only_what_it_knew(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with captured() as logs:
        assert await loaded(tmp_path) == []
    assert len(logs.of("allocation checkpoint cannot be read")) == 1


async def test_a_line_that_a_crash_cut_off_spoils_no_later_one(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    await checkpoint.add(record("a"))
    await checkpoint.add(record("b", claim=Q))
    file = tmp_path / FILE
    file.write_bytes(file.read_bytes()[:-5])
    again = Checkpoint(tmp_path)
    assert await again.load() == (record("a"),)
    await again.add(record("c"))
    assert await loaded(tmp_path) == [record("a"), record("c")]


async def test_a_line_that_a_full_disk_cut_off_spoils_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Checkpoint(tmp_path)
    await checkpoint.add(record("a"))
    whole = os.write
    with captured() as logs, monkeypatch.context() as patch:
        patch.setattr("os.write", lambda descriptor, data: whole(descriptor, data[:20]))
        await checkpoint.add(record("cut"))
    assert len(logs.of("allocation checkpoint cannot be written")) == 1
    await checkpoint.add(record("b", claim=Q))
    again = Checkpoint(tmp_path)
    assert list(await again.load()) == [record("a"), record("b", claim=Q)]
    await again.add(record("c"))
    assert await loaded(tmp_path) == [record("a"), record("b", claim=Q), record("c")]


async def test_an_answer_is_not_written_while_the_file_is_being_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line would go into the old file and be lost with it."""
    checkpoint = Checkpoint(tmp_path)
    await checkpoint.add(record("a"))
    before, replacing, may_end = set(threading.enumerate()), asyncio.Event(), threading.Event()
    loop, rewrite = asyncio.get_running_loop(), checkpoint_module._rewrite

    def replace_slowly(path: Path, data: bytes) -> None:
        loop.call_soon_threadsafe(replacing.set)
        may_end.wait(10)
        rewrite(path, data)

    monkeypatch.setattr(checkpoint_module, "_rewrite", replace_slowly)
    pruned = asyncio.create_task(checkpoint.prune(lambda _uid: False))
    await replacing.wait()
    added = asyncio.create_task(checkpoint.add(record("b")))
    await asyncio.sleep(0)
    assert set(threading.enumerate()) <= before, "a second thread writes"
    may_end.set()
    await asyncio.gather(pruned, added)
    assert await loaded(tmp_path) == [record("b")]


async def test_a_folder_that_cannot_be_written_keeps_no_answer_back(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    checkpoint = Checkpoint(tmp_path / "file")
    with captured() as logs:
        await checkpoint.add(record("a"))
    assert list(checkpoint) == [record("a")]
    assert len(logs.of("allocation checkpoint cannot be written")) == 1


@pytest.mark.parametrize("name", [FILE, "allocations.draft"])
async def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / name).symlink_to(victim)
    checkpoint = Checkpoint(tmp_path)
    await checkpoint.add(record("a"))
    await checkpoint.prune(lambda _uid: False)
    assert victim.read_text() == "precious"


async def test_old_answers_make_room(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    for number in range(MAX_RECORDS + 3):
        await checkpoint.add(record(str(number)))
    await checkpoint.prune(lambda _uid: True)
    assert len(found := await loaded(tmp_path)) == MAX_RECORDS
    assert found[0] == record("3")
