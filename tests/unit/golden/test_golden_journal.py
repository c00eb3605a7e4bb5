"""A journal of format 2, with every kind of record and every field, as Tessera 0.2 wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from tessera.wire.journal import Record, decode_record, encode_record
from tests.support.journals import replayed

LINES = (Path(__file__).parents[2] / "samples" / "journal" / "format-2.jsonl").read_bytes().splitlines(keepends=True)


def test_every_kind_of_record_is_among_the_lines() -> None:
    assert {type(decode_record(line)) for line in LINES} == set(get_args(Record))


def test_a_line_is_written_as_it_was_read() -> None:
    for line in LINES:
        assert encode_record(decode_record(line)) == line


def test_its_decisions_come_out_the_same() -> None:
    counts = replayed(map(decode_record, LINES)).counts
    assert (counts.records, counts.checked, counts.unfinished, counts.of_gangs) == (66, 11, 1, 1)
