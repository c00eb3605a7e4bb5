from __future__ import annotations

import pytest

from tessera.inspect.render.journal import JournalTable
from tessera.inspect.render.lines import printable
from tessera.wire.journal import Refused
from tests.support.builders import node
from tests.support.journals import RecordedCluster, recorded_story, trainer


@pytest.mark.parametrize("width", [80, 100, 120])
def test_rows_fit_the_terminal_and_no_text_is_lost(width: int) -> None:
    cluster = recorded_story(RecordedCluster().add(node("a-node-with-quite-a-long-name").gpus(1, memory=100)))
    wide, table = JournalTable(width=None), JournalTable(width=width)
    for record in cluster.records:
        whole = [line.text for line in wide.lines(record)]
        lines = [line.text for line in table.lines(record)]
        assert all(len(line) <= width for line in lines), lines
        if width >= 100:
            assert " ".join(lines).split() == " ".join(whole).split()


def test_the_day_is_shown_once() -> None:
    table = JournalTable(width=80)
    shown = [line.text for record in recorded_story().records for line in table.lines(record)]
    assert shown.count("2023-11-14 UTC") == 1


def test_refusals_are_counted_by_what_they_mean() -> None:
    cluster = RecordedCluster().add(node("n1").gpus(1), node("n2").gpus(2), node("n3").gpus(1, model="NVIDIA-T4"))
    cluster.decide(trainer(1, memory=90_000))
    (refused,) = (record for record in cluster.records if isinstance(record, Refused))
    assert len(refused.reasons) == 2
    *_, row = JournalTable(width=None).lines(refused)
    assert row.text.endswith("3 nodes: not enough free memory on the card [3 nodes, 42 us]")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain \u00fc \u2588", "plain \u00fc \u2588"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\nb\tc\x07", "a\\nb\\tc\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202eright to left", "\\u202eright to left"),
        ("\ud800", "\\ud800"),
    ],
)
def test_control_characters_are_shown_as_escapes(text: str, shown: str) -> None:
    assert printable(text) == shown
