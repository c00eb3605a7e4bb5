from __future__ import annotations

import pytest

from tessera.kube import transport
from tessera.kube.errors import BadResponse
from tessera.kube.transport import LineSplitter


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
    splitter = LineSplitter()
    assert [line for chunk in chunks for line in splitter.feed(chunk)] == found
    assert splitter.has_partial_line is partial


def test_a_line_without_end_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_LINE_BYTES", 1000)
    splitter = LineSplitter()
    splitter.feed(b"x" * 1000)
    with pytest.raises(BadResponse, match="longer than"):
        splitter.feed(b"x")
