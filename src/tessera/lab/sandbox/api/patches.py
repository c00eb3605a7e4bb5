"""Applies what a PATCH carries: JSON merge patches (RFC 7386) and JSON patches (RFC 6902).

A patch that does not apply is refused whole. Strategic merge patches are in `strategic`.
"""

from __future__ import annotations

import re
from typing import Any

from tessera.lab.sandbox.api.errors import ApiError, bad_request
from tessera.lab.sandbox.api.kinds import Json

MAX_OPERATIONS = 10_000
"""of a JSON patch; kube-apiserver's own limit"""

MISSING: Any = object()

_INDEX = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386: maps are merged, null removes, everything else replaces. `target` may be changed."""
    if not isinstance(patch, dict):
        return patch
    merged: Json = target if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def apply_json_patch(target: Any, operations: Any) -> Any:
    """RFC 6902. `target` is changed, also where a later operation turns out not to apply."""
    if not isinstance(operations, list):
        raise bad_request("a JSON patch is a list of operations")
    if len(operations) > MAX_OPERATIONS:
        raise ApiError(413, "RequestEntityTooLarge", f"at most {MAX_OPERATIONS} operations in a JSON patch")
    for operation in operations:
        if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
            raise _unprocessable("every operation of a JSON patch needs a path")
        target = _apply(target, operation)
    return target


def _apply(target: Any, operation: Json) -> Any:
    path = _steps(operation["path"])
    match operation.get("op"):
        case "add" | "replace" | "test" as op if "value" in operation:
            value = operation["value"]
            if op == "test":
                if _find(target, path) != value:
                    raise _unprocessable(f"testing value {operation['path']} failed")
                return target
            if op == "replace":
                _find(target, path)
            return _put(target, path, value, insert=op == "add")
        case "remove":
            return _take(target, path)[0]
        case "move" | "copy" as op if isinstance(operation.get("from"), str):
            source = _steps(operation["from"])
            if op == "copy":
                return _put(target, path, _fresh(_find(target, source)), insert=True)
            if path[: len(source)] == source and len(path) > len(source):
                raise _unprocessable("cannot move a value into itself")
            rest, value = _take(target, source)
            return _put(rest, path, value, insert=True)
    raise _unprocessable(f"not an operation of a JSON patch: {operation.get('op')!r} on {operation['path']!r}")


def _steps(pointer: str) -> list[str]:
    if pointer and not pointer.startswith("/"):
        raise _unprocessable(f"not a JSON pointer: {pointer!r}")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _find(target: Any, path: list[str]) -> Any:
    for step in path:
        target = _child(target, step)
        if target is MISSING:
            raise _unprocessable(f"missing value at /{'/'.join(path)}")
    return target


def _child(parent: Any, step: str) -> Any:
    if isinstance(parent, dict):
        return parent.get(step, MISSING)
    if isinstance(parent, list) and _INDEX.fullmatch(step) and int(step) < len(parent):
        return parent[int(step)]
    return MISSING


def _put(target: Any, path: list[str], value: Any, *, insert: bool) -> Any:
    if not path:
        return value
    parent, last = _find(target, path[:-1]), path[-1]
    if isinstance(parent, dict):
        parent[last] = value
    elif isinstance(parent, list):
        _put_in_list(parent, last, value, insert=insert)
    else:
        raise _unprocessable(f"nothing can be put at /{'/'.join(path)}")
    return target


def _put_in_list(parent: list[Any], step: str, value: Any, *, insert: bool) -> None:
    if insert and step == "-":
        parent.append(value)
    elif _INDEX.fullmatch(step) and int(step) < len(parent) + insert:
        parent[int(step) : int(step) + (not insert)] = [value]
    else:
        raise _unprocessable(f"index {step} is outside of the list")


def _take(target: Any, path: list[str]) -> tuple[Any, Any]:
    if not path:
        raise _unprocessable("the whole object cannot be removed")
    value = _find(target, path)
    parent = _find(target, path[:-1])
    if isinstance(parent, dict):
        del parent[path[-1]]
    else:
        del parent[int(path[-1])]
    return target, value


def _fresh(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _fresh(each) for key, each in value.items()}
    return [_fresh(each) for each in value] if isinstance(value, list) else value


def _unprocessable(why: str) -> ApiError:
    message = f"the server rejected our request due to an error in our request: {why}"
    return ApiError(422, "Invalid", message)
