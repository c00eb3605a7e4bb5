from __future__ import annotations

import json
from typing import Any

import pytest

from tessera.files import documents
from tessera.files.documents import MAX_ALIASED, MAX_DEPTH, DocumentError, read_documents


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("a: 1\n---\n---\nb: [x, 'y', null]", [{"a": 1}, {"b": ["x", "y", None]}]),
        ('{"a": {"b": [1, 2.5, true, null, "x"]}}', [{"a": {"b": [1, 2.5, True, None, "x"]}}]),
        ("{a: b}", [{"a": "b"}]),
        ("[a, b]", [["a", "b"]]),
        ("a: &x {b: 1, c: [2]}\nd: *x", [{"a": {"b": 1, "c": [2]}, "d": {"b": 1, "c": [2]}}]),
        ("a: &x {b: 1, c: 2}\nd: {<<: *x, c: 3}", [{"a": {"b": 1, "c": 2}, "d": {"b": 1, "c": 3}}]),
        ("d: {c: 3, <<: [{b: 1, c: 2}, {b: 4, e: 5}]}", [{"d": {"c": 3, "b": 1, "e": 5}}]),
        ("'<<': 1", [{"<<": 1}]),
        ("1: a\ntrue: b", [{"1": "a", "true": "b"}]),
        ("a: 1\na: 2", [{"a": 2}]),
        ("&k key: 1\n*k : 2", [{"key": 2}]),
        ("t: 2026-01-31T12:00:00Z\nm: 0644\nb: 12:30", [{"t": "2026-01-31T12:00:00Z", "m": "0644", "b": "12:30"}]),
        ("a: !!str 5\nb: !!int '5'\nc: !!map {d: !!seq [1]}", [{"a": "5", "b": 5, "c": {"d": [1]}}]),
    ],
)
def test_json_and_yaml_become_plain_values(text: str, found: list[Any]) -> None:
    assert read_documents(text) == found
    assert read_documents(text.encode()) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not valid JSON"),
        ("a: [", "line 2: not valid YAML"),
        ("a\n\x00b", "line 2: not valid YAML"),
        (b"a: \xff", "line 1: not valid YAML"),
        ("\n? [a]\n: 1", "line 2: a list or table cannot be a key"),
        ("a: &x [1]\n*x : 2", "line 2: a list or table cannot be a key"),
        ("a: *b", "line 1: *b is used here, but not defined before"),
        ("&a [*a]", "line 1: *a is used here, but not defined before"),
        ("a: &x 1\n---\nb: *x", "line 3: *x is used here, but not defined before"),
        ("<<: 1", "line 1: << needs a table, or a list of tables"),
        ("a: !!python/name:os.system x", "line 1: the tag 'tag:yaml.org,2002:python/name:os.system'"),
        ("a: !mine {}", "line 1: the tag '!mine'"),
    ],
)
def test_what_is_no_document_is_refused_with_its_line(text: bytes | str, said: str) -> None:
    with pytest.raises(DocumentError) as caught:
        read_documents(text)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'], ids=str)
def test_exactly_so_many_levels_are_read(opening: str) -> None:
    levels = opening.count("[") + opening.count("{")
    closing = opening.replace('"a":', "").translate(str.maketrans("[{", "]}"))[::-1]
    fits = opening * (MAX_DEPTH // levels) + "1" + closing * (MAX_DEPTH // levels)
    for text in (fits, f"- {fits}"[2:]):
        assert len(read_documents(text)) == 1
    for text in (f"[{fits}]", f"x: {fits}"):
        with pytest.raises(DocumentError, match=f"nested more than {MAX_DEPTH} levels deep"):
            read_documents(text)


@pytest.mark.parametrize("inside", ["[" * 500, "]" * 500, '\\"' + "[" * 500, "\\\\", "{" * 500 + '\\\\\\"'])
def test_brackets_in_strings_do_not_count(inside: str) -> None:
    assert read_documents(f'{{"a": "{inside}", "b": []}}') == [json.loads(f'{{"a": "{inside}", "b": []}}')]


@pytest.mark.parametrize("text", ["[1,2,3,4,5,6,7,8,9,0]", "[[],[],[],[],[],[],[],[],[]]"])
def test_values_are_counted_before_they_are_made(text: str) -> None:
    with pytest.raises(DocumentError, match="more than 9 values"):
        documents.check_json(text.encode(), most=9)
    with pytest.raises(DocumentError, match="more than 9 values"):
        list(documents.yaml_events(text, most=9))


def test_quotes_alone_take_no_memory() -> None:
    with pytest.raises(DocumentError, match="more than 10 values"):
        documents.check_json(b'"' * 41, most=10)


def test_aliases_count_as_often_as_they_are_used() -> None:
    row = f"a: &a [{'x,' * 999}]\n"
    assert read_documents(row + "b: [" + "*a," * (MAX_ALIASED // 1000) + "]")
    with pytest.raises(DocumentError, match="aliases stand for more than"):
        read_documents(row + "b: [" + "*a," * (MAX_ALIASED // 1000 + 1) + "]")
    ladder = "- &a0 [x]\n" + "".join(f"- &a{i} [*a{i - 1}]\n" for i in range(1, 200))
    with pytest.raises(DocumentError, match="line 100: nested more than"):
        read_documents(ladder)
