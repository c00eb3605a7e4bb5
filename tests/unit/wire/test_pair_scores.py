from __future__ import annotations

import pytest

from tessera.wire.errors import WireError
from tessera.wire.registration import decode_pair_scores, encode_pair_scores

TEXT = '[{"uuid":"GPU-a","score":{"GPU-b":400,"GPU-c":20}},{"uuid":"GPU-b","score":{"GPU-a":400,"GPU-c":0}}]'
SCORES = {"GPU-a": {"GPU-b": 400, "GPU-c": 20}, "GPU-b": {"GPU-a": 400, "GPU-c": 0}}


def test_pair_scores_are_read_and_written_byte_for_byte() -> None:
    assert decode_pair_scores(TEXT) == SCORES
    assert encode_pair_scores(SCORES) == TEXT


def test_a_row_is_written_in_order_of_uuid() -> None:
    assert encode_pair_scores({"x": {"b": 1, "a": 2}}) == '[{"uuid":"x","score":{"a":2,"b":1}}]'


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        ("[]", {}),
        ("null", {}),
        ('[{"UUID":"a","Score":{"B":1},"new":true}]', {"a": {"B": 1}}),
        ('[{"uuid":"a"}]', {"a": {}}),
        ('[{"uuid":"a","score":null}]', {"a": {}}),
    ],
)
def test_reading_follows_gos_rules(text: str, scores: dict[str, dict[str, int]]) -> None:
    assert decode_pair_scores(text) == scores


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        "[{}]",
        '[{"uuid":""}]',
        '[{"uuid":1}]',
        '[{"uuid":"a"},{"uuid":"a"}]',
        '[{"uuid":"a","score":{"b":-1}}]',
        '[{"uuid":"a","score":{"b":2147483648}}]',
        '[{"uuid":"a","score":{"b":1.5}}]',
        '[{"uuid":"a","score":[]}]',
        "[" * 50_000,
    ],
)
def test_bad_scores_are_refused(text: str) -> None:
    with pytest.raises(WireError):
        decode_pair_scores(text)
