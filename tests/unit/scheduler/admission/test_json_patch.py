from __future__ import annotations

import copy
from typing import Any

import pytest

from tessera.scheduler.admission.json_patch import diff
from tests.support.admission import patched

A, B, C, D, E = ({"name": name, "value": name.lower()} for name in "ABCDE")


@pytest.mark.parametrize(
    ("original", "draft", "operations"),
    [
        pytest.param({"a": 1}, {"a": 1}, [], id="nothing changed"),
        pytest.param({"a": 1}, {"a": 2}, [{"op": "replace", "path": "/a", "value": 2}], id="a value"),
        pytest.param({}, {"a": {"b": 1}}, [{"op": "add", "path": "/a", "value": {"b": 1}}], id="a missing parent"),
        pytest.param(
            {"a": {}}, {"a": {"b": 1}}, [{"op": "add", "path": "/a/b", "value": 1}], id="a parent that is there"
        ),
        pytest.param({"a": 1, "b": 2}, {"b": 2}, [{"op": "remove", "path": "/a"}], id="a removal"),
        pytest.param({"a": None}, {"a": {}}, [{"op": "replace", "path": "/a", "value": {}}], id="a null"),
        pytest.param({"a": []}, {"a": {}}, [{"op": "replace", "path": "/a", "value": {}}], id="another kind"),
        pytest.param({"a": 1}, {"a": True}, [{"op": "replace", "path": "/a", "value": True}], id="true is not 1"),
        pytest.param(1, 2, [{"op": "replace", "path": "", "value": 2}], id="the whole document"),
        pytest.param(
            {}, {"x.io/a~b": 1}, [{"op": "add", "path": "/x.io~1a~0b", "value": 1}], id="slashes and tildes in names"
        ),
        pytest.param([A], [A, B], [{"op": "add", "path": "/1", "value": B}], id="appended"),
        pytest.param([A, B], [C, A, B], [{"op": "add", "path": "/0", "value": C}], id="put before"),
        pytest.param([A, B, C], [A, C], [{"op": "remove", "path": "/1"}], id="taken out of the middle"),
        pytest.param([A, B, C], [A, D, C], [{"op": "replace", "path": "/1", "value": D}], id="another member"),
        pytest.param(
            [A, B, C],
            [A, {"name": "B", "value": "x"}, C],
            [{"op": "replace", "path": "/1/value", "value": "x"}],
            id="a member that changed",
        ),
        pytest.param(
            [A, B, C],
            [D, A, C],
            [{"op": "add", "path": "/0", "value": D}, {"op": "remove", "path": "/2"}],
            id="put before and taken out",
        ),
        pytest.param(
            ["x", "y"], ["x", "z"], [{"op": "replace", "path": "/1", "value": "z"}], id="members without a name"
        ),
        pytest.param([A, B, C, D], [B], [{"op": "replace", "path": "", "value": [B]}], id="most of a list"),
        pytest.param([A, B], [A, B], [], id="another list of the same members"),
        pytest.param(
            [A, B, C, D, A],
            [E, B, C, A],
            [{"op": "replace", "path": "/0", "value": E}, {"op": "remove", "path": "/3"}],
            id="changed around what stays",
        ),
        pytest.param([A, B], [], [{"op": "replace", "path": "", "value": []}], id="all of a list"),
    ],
)
def test_a_patch_holds_only_what_changes(original: Any, draft: Any, operations: list[dict[str, Any]]) -> None:
    assert diff(original, draft) == operations
    assert patched(original, operations) == draft


def test_members_in_another_order_are_put_right() -> None:
    assert patched([A, B, C], diff([A, B, C], [C, A, B])) == [C, A, B]


def test_equal_documents_that_share_nothing_need_no_patch() -> None:
    original = {"spec": {"containers": [A, {"env": [B, C], "on": True}]}, "n": 1.5}
    assert diff(original, copy.deepcopy(original)) == []


def test_what_both_documents_share_is_not_looked_into() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert diff({"deep": deep, "a": 1}, {"deep": deep, "a": 2}) == [{"op": "replace", "path": "/a", "value": 2}]
