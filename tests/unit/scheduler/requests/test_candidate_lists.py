"""Lists of candidates are recognised by their members."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from tessera.core.search.selection import PROBES, Candidates, Selected
from tessera.scheduler.requests.candidate_lists import (
    LONGEST_NAME,
    REMEMBERED,
    CandidateList,
    CandidateLists,
    Fingerprint,
    Fingerprinter,
)
from tessera.wire.errors import WireError
from tests.support.builders import cluster, gpu_pod, node

ONE = cluster(*(node(f"n{i}").gpus(1) for i in range(4)))


def listed(names: Sequence[str]) -> Raw:
    return Raw(json.dumps(names).encode())


def looked_up(lists: CandidateLists, *names: str) -> Candidates:
    return CandidateList(listed(names), lists).resolve()


def test_the_same_text_is_looked_up_once() -> None:
    lists = CandidateLists(ONE.selector)
    assert looked_up(lists, "n1", "n2") is looked_up(lists, "n1", "n2")


def test_the_order_of_the_names_does_not_matter() -> None:
    lists = CandidateLists(ONE.selector)
    assert looked_up(lists, "n1", "n2", "gone") is looked_up(lists, "gone", "n2", "n1")


def test_a_list_that_names_a_node_twice_is_not_taken_for_one_with_another_node() -> None:
    lists = CandidateLists(ONE.selector)
    looked_up(lists, "n1", "n2")
    assert looked_up(lists, "n1", "n1").names == ("n1",)


def test_other_members_are_other_candidates() -> None:
    lists = CandidateLists(ONE.selector)
    assert looked_up(lists, "n1", "n2").names != looked_up(lists, "n1", "n3").names
    assert looked_up(lists, "n1").names == ("n1",)


def test_a_list_is_looked_up_again_when_nodes_come_or_go() -> None:
    one = cluster(node("n1").gpus(1))
    lists = CandidateLists(one.selector)
    assert looked_up(lists, "n1", "late").registered == ("n1",)
    one.add(node("late").gpus(1))
    assert looked_up(lists, "n1", "late").registered == ("late", "n1")
    assert looked_up(lists, "late", "n1").registered == ("late", "n1")


def test_only_the_newest_lists_are_kept() -> None:
    lists = CandidateLists(ONE.selector)
    first = looked_up(lists, "x")
    for i in range(REMEMBERED):
        looked_up(lists, f"x{i}")
    assert looked_up(lists, "x") is not first


# -- searching


@pytest.mark.parametrize("text", [b'["n1","n22"]', b'[ "n22" , "n1" ]', rb'["\u006e1","n22"]'])
def test_a_list_is_searched_for_whole_names(text: bytes) -> None:
    names = CandidateList(Raw(text), CandidateLists(ONE.selector))
    assert [name for name in ("n1", "n22", "n2", "1", "n", "n3") if name in names] == ["n1", "n22"]


def test_a_decision_looks_up_all_names_only_if_the_best_nodes_are_no_candidates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = cluster(*(node(f"n{i:02}").gpus(1) for i in range(PROBES + 2)))
    lists = CandidateLists(one.selector)
    resolve = mock.Mock(wraps=lists.resolve)
    monkeypatch.setattr(lists, "resolve", resolve)

    def chosen(*names: str) -> str:
        answer = one.selector.select(gpu_pod().request(), CandidateList(listed(names), lists))
        assert isinstance(answer, Selected)
        return answer.placement.node

    assert chosen("n09", "n03") == "n03"
    resolve.assert_not_called()
    assert chosen("n09") == "n09"
    resolve.assert_called()


# -- fingerprints

TAKEN = Fingerprinter()

names_of_nodes = st.text(alphabet="abcz019.-", max_size=30)


def taken(names: Sequence[str]) -> Fingerprint | None:
    return TAKEN.fingerprint(bytes(listed(names)))


@given(names=st.lists(names_of_nodes, min_size=1, max_size=40), dice=st.randoms())
def test_a_shuffled_list_has_the_same_fingerprint(names: list[str], dice: random.Random) -> None:
    shuffled = list(names)
    dice.shuffle(shuffled)
    assert taken(shuffled) == taken(names) is not None


@given(
    one=st.lists(names_of_nodes, min_size=1, max_size=12, unique=True),
    other=st.lists(names_of_nodes, min_size=1, max_size=12, unique=True),
)
def test_lists_with_other_members_have_other_fingerprints(one: list[str], other: list[str]) -> None:
    assert (taken(one) == taken(other)) == (sorted(one) == sorted(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["node-12", "node-11"], ["node-21", "node-11"]),
        (["node-11", "node-22"], ["node-12", "node-21"]),
        (["ab", "c"], ["a", "bc"]),
        (["a" * 8, "b" * 8], ["b" * 8, "b" * 8]),
        (["12345678x", "12345678y"], ["12345678x", "12345678x"]),
        (["", "ab"], ["a", "b"]),
    ],
)
def test_the_same_letters_in_other_names_are_another_list(one: list[str], other: list[str]) -> None:
    assert taken(one) != taken(other)


@pytest.mark.parametrize("text", [b"[]", rb'["a\"b"]', rb'["\u0061"]', b'["' + b"a" * (LONGEST_NAME + 1) + b'"]'])
def test_lists_that_take_reading_have_no_fingerprint(text: bytes) -> None:
    assert TAKEN.fingerprint(text) is None


def test_a_list_without_a_fingerprint_is_read_every_time() -> None:
    lists = CandidateLists(ONE.selector)
    escaped = rb'["\u006e1"]'
    assert lists.resolve(escaped).names == lists.resolve(escaped).names == ("n1",)


def test_a_list_with_something_else_in_it_is_not_taken_for_one_without() -> None:
    lists = CandidateLists(ONE.selector)
    looked_up(lists, "n1")
    with pytest.raises(WireError):
        lists.resolve(b'["n1",1]')
