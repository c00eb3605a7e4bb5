"""The smallest JSON patch (RFC 6902) that turns one document into another.

The patch turns the original into the draft and touches nothing that is equal. Parts that both documents share (the same
object in memory) are skipped, so the cost follows the changes. This module does not apply patches.

The library jsonpatch compares by value, whatever is shared. In processor time that is about 35 times as much for
recorded pods (0.8 ms instead of 0.02 ms), and half a second of the event loop, instead of 4 ms, for one pod with 20,000
variables, which any tenant may create.
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
    """Edits by index, or the whole list if that is shorter."""
    operations: list[Operation] = []
    moved = 0
    for begin, gone, come in _gaps(original, draft):
        # Everything before the gap already equals the draft, so the draft's indexes apply.
        paired = min(len(gone), len(come))
        for at in range(paired):
            operations += _diff_members(gone[at], come[at], f"{path}/{begin + at}")
        operations += ({"op": "remove", "path": f"{path}/{begin + paired}"} for _ in gone[paired:])
        for at in range(paired, len(come)):
            operations.append({"op": "add", "path": f"{path}/{begin + at}", "value": come[at]})
        moved += abs(len(gone) - len(come))
    return [{"op": "replace", "path": path, "value": draft}] if moved > len(draft) else operations


def _diff_members(old: Any, new: Any, path: str) -> list[Operation]:
    """List members are identified by name: a member with another name is another member, not a changed one."""
    named = isinstance(old, dict) and isinstance(new, dict)
    if named and old.get("name") != new.get("name"):
        return [{"op": "replace", "path": path, "value": new}]
    return diff(old, new, path)


def _gaps(original: list[Any], draft: list[Any]) -> Iterator[tuple[int, list[Any], list[Any]]]:
    """Where the lists differ: index in the draft, and what stands there between members that both share, in order."""
    start, end, shift = _ends(original, draft)
    places: dict[int, int] = {}
    for index in range(start, end):
        places.setdefault(id(original[index]), index)
    begin = start
    for index in range(start, end + shift):
        place = places.get(id(draft[index]), -1)
        if place >= start:
            if place > start or index > begin:
                yield begin, original[start:place], draft[begin:index]
            start, begin = place + 1, index + 1
    if end > start or end + shift > begin:
        yield begin, original[start:end], draft[begin : end + shift]


def _ends(original: list[Any], draft: list[Any]) -> tuple[int, int, int]:
    """Where the first difference starts, where the last one ends in the original, and how much later in the draft."""
    least, shift = min(len(original), len(draft)), len(draft) - len(original)
    start, end = 0, len(original)
    while start < least and original[start] is draft[start]:
        start += 1
    while end > start and end + shift > start and original[end - 1] is draft[end + shift - 1]:
        end -= 1
    return start, end, shift


def _same(one: Any, other: Any) -> bool:
    """Equality of JSON scalars, where `true` is not 1; objects and lists of different kinds are never the same."""
    return type(one) is type(other) and bool(one == other)


def _below(path: str, key: str) -> str:
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
