"""Applies JSON patches (RFC 6902), as an apiserver applies what a mutating webhook answers.

A patch either applies completely or raises. Writing patches is the webhook's business.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tessera.wire.errors import WireError

_MISSING: Any = object()
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)


class JsonPatchError(WireError):
    """The patch does not apply to this document."""


def apply_json_patch(target: Any, operations: Sequence[Any]) -> Any:
    """Returns the patched document. `target` is changed in place, even if a later operation fails."""
    for operation in operations:
        if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
            raise JsonPatchError("every operation of a JSON patch needs a path")
        target = _apply(target, operation)
    return target


def _apply(target: Any, operation: dict[str, Any]) -> Any:
    path = _steps(operation["path"])
    match operation.get("op"):
        case "add" | "replace" | "test" as op if "value" in operation:
            value = operation["value"]
            if op == "test":
                if _find(target, path) != value:
                    raise JsonPatchError(f"testing value {operation['path']} failed")
                return target
            if op == "replace":
                _find(target, path)
            return _put(target, path, value, insert=op == "add")
        case "remove":
            return _take(target, path)[0]
        case "move" | "copy" as op if isinstance(operation.get("from"), str):
            source = _steps(operation["from"])
            if op == "copy":
                return _put(target, path, _copy(_find(target, source)), insert=True)
            if path[: len(source)] == source and len(path) > len(source):
                raise JsonPatchError("cannot move a value into itself")
            rest, value = _take(target, source)
            return _put(rest, path, value, insert=True)
    raise JsonPatchError(f"not an operation of a JSON patch: {operation.get('op')!r} on {operation['path']!r}")


def _steps(pointer: str) -> list[str]:
    if pointer and not pointer.startswith("/"):
        raise JsonPatchError(f"not a JSON pointer: {pointer!r}")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _find(target: Any, path: list[str]) -> Any:
    for step in path:
        target = _child(target, step)
        if target is _MISSING:
            raise JsonPatchError(f"missing value at /{'/'.join(path)}")
    return target


def _child(parent: Any, step: str) -> Any:
    if isinstance(parent, dict):
        return parent.get(step, _MISSING)
    if isinstance(parent, list) and _INDEX.fullmatch(step) and int(step) < len(parent):
        return parent[int(step)]
    return _MISSING


def _put(target: Any, path: list[str], value: Any, *, insert: bool) -> Any:
    if not path:
        return value
    parent, last = _find(target, path[:-1]), path[-1]
    if isinstance(parent, dict):
        parent[last] = value
    elif isinstance(parent, list):
        _put_in_list(parent, last, value, insert=insert)
    else:
        raise JsonPatchError(f"nothing can be put at /{'/'.join(path)}")
    return target


def _put_in_list(parent: list[Any], step: str, value: Any, *, insert: bool) -> None:
    if insert and step == "-":
        parent.append(value)
    elif _INDEX.fullmatch(step) and int(step) < len(parent) + insert:
        parent[int(step) : int(step) + (not insert)] = [value]
    else:
        raise JsonPatchError(f"index {step} is outside of the list")


def _take(target: Any, path: list[str]) -> tuple[Any, Any]:
    if not path:
        raise JsonPatchError("the whole object cannot be removed")
    value = _find(target, path)
    parent = _find(target, path[:-1])
    if isinstance(parent, dict):
        del parent[path[-1]]
    else:
        del parent[int(path[-1])]
    return target, value


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(each) for key, each in value.items()}
    return [_copy(each) for each in value] if isinstance(value, list) else value
