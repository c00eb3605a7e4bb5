from __future__ import annotations

from pathlib import Path

import pytest

from tessera.node.handover.answers import Given, spot
from tessera.node.handover.records import FILE, JOURNAL, MOST_RECORDS, Record, Records
from tessera.wire import keys
from tests.support.logs import captured
from tests.unit.node.handover.world import bound, claims

MIG = '[{"gpuUUID":"GPU-a","profile":"1g.18gb+me","placement":{"start":2,"size":1}}]'
(P,) = claims(bound("p", "a/1/1", annotations={keys.MIG_ALLOCATIONS: MIG}))
(Q,) = claims(bound("q", "a/1/1"))


def given(*ids: str, claim: object = P, holder: tuple[str, int] | None = None) -> Given:
    return Given(frozenset(ids), frozenset(), claim, True, holder=holder)  # type: ignore[arg-type]


async def test_what_was_written_is_read_by_the_next_process(tmp_path: Path) -> None:
    records = Records(tmp_path / "state")
    assert await records.load() == []
    records.add(given("b", "a"))
    records.add(given("c", claim=Q, holder=("uid-p", 0)))
    await records.save()
    await records.save()
    again = Records(tmp_path / "state")
    assert await again.load() == [Record(("a", "b"), P), Record(("c",), Q, ("uid-p", 0))]
    assert list(again) == list(records)
    assert [path.name for path in (tmp_path / "state").iterdir()] == [FILE]
    for each in (records, again):
        each.close()


@pytest.mark.parametrize("text", ["", "{", "[{}]", '[{"ids":["a"],"claim":7}]', "[" * 20000])
async def test_a_file_that_cannot_be_read_costs_only_what_it_knew(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    records = Records(tmp_path)
    with captured() as logs:
        assert await records.load() == []
    assert len(logs.of("records of handovers cannot be read")) == 1
    records.close()


async def test_a_folder_that_cannot_be_written_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    records = Records(tmp_path / "file")
    records.add(given("a"))
    with captured() as logs:
        await records.save()
    assert len(logs.of("records of handovers cannot be written")) == 1
    records.close()


async def test_a_link_in_place_of_the_new_file_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / FILE).with_suffix(".new").symlink_to(victim)
    records = Records(tmp_path)
    records.add(given("a"))
    await records.save()
    assert victim.read_text() == "precious"
    records.close()


def test_devices_have_one_record(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.add(given("a", "b"))
    records.add(given("a", "b"))
    records.add(given("b", claim=Q))
    records.add(given("w", claim=None))
    assert [record.ids for record in records] == [("b",)]
    records.drop(["b"])
    records.drop(["b"])
    assert list(records) == []


def test_old_records_make_room(tmp_path: Path) -> None:
    records = Records(tmp_path)
    for number in range(MOST_RECORDS + 3):
        records.add(given(f"{number:06}"))
    assert len(list(records)) == MOST_RECORDS
    assert next(iter(records)).ids == ("000003",)


def test_records_of_pods_that_are_gone_go(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.add(given("a", holder=("uid-q", 0)))
    records.add(given("b", claim=Q))
    records.prune(lambda uid: uid == "uid-q")
    assert len(list(records)) == 2
    records.prune(lambda uid: uid == "uid-p")
    assert list(records) == []


def test_an_answer_that_serves_another_pod_stays_live_with_that_pod(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.add(given("a", claim=P, holder=spot(Q)))
    records.add(given("b", claim=Q, holder=spot(Q)))
    assert records.live([Q], lambda uid: uid == "uid-q") == [Q, P]
    assert records.live([P, Q], lambda uid: True) == [P, Q]
    assert records.live([], lambda uid: False) == []


async def test_an_answer_is_known_to_the_next_process_as_soon_as_it_is_kept(tmp_path: Path) -> None:
    records = Records(tmp_path / "state")
    await records.keep(given("a"))
    await records.keep(given("b", claim=Q))
    await records.keep(given("b", "c"))
    again = Records(tmp_path / "state")
    assert await again.load() == [Record(("a",), P), Record(("b", "c"), P)]
    await again.save()
    assert [path.name for path in (tmp_path / "state").iterdir()] == [FILE]
    third = Records(tmp_path / "state")
    assert await third.load() == list(again)
    for each in (records, again, third):
        each.close()


async def test_a_journal_is_read_up_to_the_line_that_is_not_whole(tmp_path: Path) -> None:
    records = Records(tmp_path)
    await records.keep(given("a"))
    await records.keep(given("b", claim=Q))
    journal = tmp_path / f"{JOURNAL}.0"
    journal.write_bytes(journal.read_bytes()[:-5])
    again = Records(tmp_path)
    assert await again.load() == [Record(("a",), P)]
    (tmp_path / f"{JOURNAL}.old").touch()
    journal.write_bytes(b"{\n" + journal.read_bytes())
    with captured() as logs:
        assert await again.load() == []
    assert len(logs.of("records of handovers cannot be read")) == 1
    for each in (records, again):
        each.close()


async def test_a_journal_that_cannot_be_written_keeps_no_answer_back(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    records = Records(tmp_path / "file")
    with captured() as logs:
        await records.keep(given("a"))
        await records.keep(given("b", claim=None))
    assert list(records) == [Record(("a",), P)]
    assert len(logs.of("records of handovers cannot be written")) == 1
    records.close()
