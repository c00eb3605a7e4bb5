from __future__ import annotations

from typing import Any

import pytest

from tessera_lab.sandbox.api.json_patch import JsonPatchError, apply_json_patch


@pytest.mark.parametrize(
    ("target", "operation", "result"),
    [
        ({"a": 1}, {"op": "add", "path": "/b", "value": 2}, {"a": 1, "b": 2}),
        ({"a": [1, 3]}, {"op": "add", "path": "/a/1", "value": 2}, {"a": [1, 2, 3]}),
        ({"a": [1]}, {"op": "add", "path": "/a/-", "value": 2}, {"a": [1, 2]}),
        ({"a": 1}, {"op": "add", "path": "", "value": {"b": 2}}, {"b": 2}),
        ({"a": [1, 2]}, {"op": "replace", "path": "/a/0", "value": 9}, {"a": [9, 2]}),
        ({"a": 1}, {"op": "replace", "path": "/a", "value": None}, {"a": None}),
        ({"a/b": {"~": 1}}, {"op": "remove", "path": "/a~1b/~0"}, {"a/b": {}}),
        ({"a": [1, 2]}, {"op": "remove", "path": "/a/0"}, {"a": [2]}),
        ({"a": 1}, {"op": "test", "path": "/a", "value": 1}, {"a": 1}),
        ({"a": {"b": 1}}, {"op": "copy", "from": "/a", "path": "/c"}, {"a": {"b": 1}, "c": {"b": 1}}),
        ({"a": [{"b": 1}]}, {"op": "copy", "from": "/a", "path": "/c"}, {"a": [{"b": 1}], "c": [{"b": 1}]}),
        ({"a": 1}, {"op": "move", "from": "/a", "path": "/b"}, {"b": 1}),
    ],
)
def test_a_json_patch_does_what_the_rfc_says(target: Any, operation: dict[str, Any], result: Any) -> None:
    assert apply_json_patch(target, [operation]) == result


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/a", "value": 2},
        {"op": "remove", "path": "/b"},
        {"op": "remove", "path": ""},
        {"op": "replace", "path": "/b", "value": 1},
        {"op": "add", "path": "/b/c", "value": 1},
        {"op": "add", "path": "/a/c", "value": 1},
        {"op": "add", "path": "/l/7", "value": 1},
        {"op": "add", "path": "/l/-1", "value": 1},
        {"op": "add", "path": "/l/01", "value": 1},
        {"op": "replace", "path": "/l/-", "value": 1},
        {"op": "add", "path": "b", "value": 1},
        {"op": "move", "from": "/m", "path": "/m/n"},
        {"op": "move", "path": "/m"},
        {"op": "add", "path": "/b"},
        {"op": "explode", "path": "/b"},
        {"op": "add", "path": 7, "value": 1},
        "add",
    ],
)
def test_an_operation_that_does_not_apply_is_refused(operation: Any) -> None:
    with pytest.raises(JsonPatchError):
        apply_json_patch({"a": 1, "l": [1], "m": {}}, [operation])
