from __future__ import annotations

import pytest

from tessera.kube import lines
from tessera.kube.errors import BadAnswer
from tessera.kube.lines import Lines


@pytest.mark.parametrize(
    ("chunks", "found", "partial"),
    [
        ([b'{"a":1}\n'], [b'{"a":1}'], False),
        ([b"a\nb\nc"], [b"a", b"b"], True),
        ([b"a", b"b", b"\n"], [b"ab"], False),
        ([b"a\nb", b"c\nd\n"], [b"a", b"bc", b"d"], False),
        ([b"\n\r\n \n"], [], False),
        ([b"", b""], [], False),
        ([b"a\r\n"], [b"a\r"], False),
    ],
)
def test_lines_are_found_wherever_the_chunks_end(chunks: list[bytes], found: list[bytes], partial: bool) -> None:
    cutter = Lines()
    assert [line for chunk in chunks for line in cutter.feed(chunk)] == found
    assert cutter.partial is partial


def test_a_line_without_end_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 1000)
    cutter = Lines()
    cutter.feed(b"x" * 1000)
    with pytest.raises(BadAnswer, match="longer than"):
        cutter.feed(b"x")
