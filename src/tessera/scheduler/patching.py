"""The smallest JSON patch (RFC 6902) that turns one document into another.

Applied to the original it gives the draft, and it names nothing that did not change. Parts that both documents share (the
same object in memory) are not looked into, so the cost is that of the changes. It neither applies nor encodes patches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Operation = dict[str, Any]


def diff(original: Any, draft: Any, path: str = "") -> list[Operation]:
    """Operations in the order in which they must be applied; none where the two are the same."""
    if original is draft:
        return []
    if isinstance(original, dict) and isinstance(draft, dict):
        return _diff_objects(original, draft, path)
    if isinstance(original, list) and isinstance(draft, list):
        return _diff_lists(original, draft, path)
    return [] if _same(original, draft) else [{"op": "replace", "path": path, "value": draft}]


def _diff_objects(original: dict[str, Any], draft: dict[str, Any], path: str) -> list[Operation]:
    operations: list[Operation] = [
        {"op": "remove", "path": _below(path, key)} for key in sorted(original) if key not in draft
    ]
    for key in sorted(draft):
        below = _below(path, key)
        if key in original:
            operations += diff(original[key], draft[key], below)
        else:
            operations.append({"op": "add", "path": below, "value": draft[key]})
    return operations


def _diff_lists(original: list[Any], draft: list[Any], path: str) -> list[Operation]:
    """Edits by index. Where they would be more than the members of the draft, the list as a whole."""
    operations: list[Operation] = []
    moved = at = 0
    for gone, come in _gaps(original, draft):
        paired = min(len(gone), len(come))
        for old, new in zip(gone, come, strict=False):
            operations += _diff_members(old, new, f"{path}/{at}")
            at += 1
        operations += [{"op": "remove", "path": f"{path}/{at}"}] * (len(gone) - paired)
        for new in come[paired:]:
            operations.append({"op": "add", "path": f"{path}/{at}", "value": new})
            at += 1
        moved += abs(len(gone) - len(come))
        at += 1  # the member after the gap, which both lists have
    return [{"op": "replace", "path": path, "value": draft}] if moved > len(draft) else operations


def _diff_members(old: Any, new: Any, path: str) -> list[Operation]:
    """Members of lists are known by their name: one with another name is another member, not a changed one."""
    named = isinstance(old, dict) and isinstance(new, dict)
    if named and old.get("name") != new.get("name"):
        return [{"op": "replace", "path": path, "value": new}]
    return diff(old, new, path)


def _gaps(original: list[Any], draft: list[Any]) -> Iterator[tuple[list[Any], list[Any]]]:
    """What stands between the members that both lists share, in order; the last gap is the one at the end."""
    places: dict[int, int] = {}
    for index, member in enumerate(original):
        if isinstance(member, (dict, list)):
            places.setdefault(id(member), index)
    start = begin = 0
    for index, member in enumerate(draft):
        place = places.get(id(member), -1)
        if place >= start:
            yield original[start:place], draft[begin:index]
            start, begin = place + 1, index + 1
    yield original[start:], draft[begin:]


def _same(one: Any, other: Any) -> bool:
    """Equality of JSON scalars, where `true` is not 1; objects and lists of different kinds are never the same."""
    return type(one) is type(other) and bool(one == other)


def _below(path: str, key: str) -> str:
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
