"""Patches between any two documents."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tessera.scheduler.admission.json_patch import diff
from tests.support.admission import patched
from tests.support.strategies import examples

scalars = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(allow_nan=False), st.text(max_size=3))
keys = st.one_of(st.sampled_from(["name", "a", "b/c", "d~e", ""]), st.text(max_size=3))
documents = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=20,
)
members = st.lists(
    st.builds(lambda name, value: {"name": name, "value": value}, st.sampled_from("abc"), scalars), max_size=8
)


def exact(document: Any) -> Any:
    """A form in which `true` and 1, or 1 and 1.0, are not equal."""
    if isinstance(document, dict):
        return {key: exact(value) for key, value in document.items()}
    if isinstance(document, list):
        return [exact(value) for value in document]
    return type(document), document


@given(original=documents, draft=documents)
@examples(5)
def test_a_patched_original_is_the_draft(original: Any, draft: Any) -> None:
    before = copy.deepcopy((original, draft))
    operations = diff(original, draft)
    assert exact(patched(original, operations)) == exact(draft)
    assert (original, draft) == before
    assert (operations == []) is (exact(original) == exact(draft))


@given(document=documents)
def test_a_copy_needs_no_patch(document: Any) -> None:
    assert diff(document, copy.deepcopy(document)) == []


@given(original=members, added=members, data=st.data())
@examples(3)
def test_members_that_stay_are_not_touched(original: list[Any], added: list[Any], data: st.DataObject) -> None:
    stay = [member for member in original if data.draw(st.booleans())]
    draft = [*added, *stay]
    operations = diff({"env": original}, {"env": draft})
    assert patched({"env": original}, operations) == {"env": draft}
    whole = any(operation["path"] == "/env" for operation in operations)
    assert whole or len(operations) <= 2 * (len(added) + len(original) - len(stay))
