"""Lists of candidates are recognised by their members."""

from __future__ import annotations

import json
from collections.abc import Sequence

from msgspec import Raw

from tessera.core.selection import Candidates
from tessera.scheduler.name_lists import REMEMBERED, NameLists
from tests.support.builders import cluster, node

ONE = cluster(*(node(f"n{i}").gpus(1) for i in range(4)))


def listed(names: Sequence[str]) -> Raw:
    return Raw(json.dumps(names).encode())


def looked_up(lists: NameLists, *names: str) -> Candidates:
    return lists.look_up(listed(names))


def test_the_same_text_is_looked_up_once() -> None:
    lists = NameLists(ONE.selector)
    assert looked_up(lists, "n1", "n2") is looked_up(lists, "n1", "n2")


def test_the_order_of_the_names_does_not_matter() -> None:
    lists = NameLists(ONE.selector)
    assert looked_up(lists, "n1", "n2", "gone") is looked_up(lists, "gone", "n2", "n1")


def test_a_list_that_names_a_node_twice_is_not_taken_for_one_with_another_node() -> None:
    lists = NameLists(ONE.selector)
    looked_up(lists, "n1", "n2")
    assert looked_up(lists, "n1", "n1").names == ("n1",)


def test_other_members_are_other_candidates() -> None:
    lists = NameLists(ONE.selector)
    assert looked_up(lists, "n1", "n2").names != looked_up(lists, "n1", "n3").names
    assert looked_up(lists, "n1").names == ("n1",)


def test_a_list_is_looked_up_again_when_nodes_come_or_go() -> None:
    one = cluster(node("n1").gpus(1))
    lists = NameLists(one.selector)
    assert looked_up(lists, "n1", "late").registered == ("n1",)
    one.add(node("late").gpus(1))
    assert looked_up(lists, "n1", "late").registered == ("n1", "late")
    assert looked_up(lists, "late", "n1").registered == ("n1", "late")


def test_only_the_newest_lists_are_kept() -> None:
    lists = NameLists(ONE.selector)
    first = looked_up(lists, "x")
    for i in range(REMEMBERED):
        looked_up(lists, f"x{i}")
    assert looked_up(lists, "x") is not first
