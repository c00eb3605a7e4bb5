from __future__ import annotations

import pytest

from tessera.wire.objects import LabelRequirement


@pytest.mark.parametrize(
    ("operator", "values", "label", "matches"),
    [
        ("In", {"a", "b"}, "a", True),
        ("In", {"a"}, None, False),
        ("NotIn", {"a"}, "a", False),
        ("NotIn", {"a"}, None, True),
        ("Exists", set(), "", True),
        ("Exists", set(), None, False),
        ("DoesNotExist", set(), None, True),
        ("DoesNotExist", set(), "a", False),
        ("Gt", {"6"}, "7", True),
        ("Gt", {"7"}, "7", False),
        ("Lt", {"7"}, "6", True),
        ("Lt", {"7"}, "seven", False),
        ("Lt", {"seven"}, "7", False),
        ("Lt", set(), "7", False),
        ("Gt", {"6"}, None, False),
        ("Near", {"a"}, "a", False),
    ],
)
def test_a_label_matches(operator: str, values: set[str], label: str | None, matches: bool) -> None:
    labels = {} if label is None else {"key": label}
    assert LabelRequirement("key", operator, frozenset(values)).matches(labels) is matches
