"""Applies JSON patches (RFC 6902) with the operations that Tessera uses."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from typing import Any


def patched(document: Any, operations: Iterable[Mapping[str, Any]]) -> Any:
    """A patched copy. Fails, as an apiserver does, if an operation does not fit the document."""
    # Through text, so that no two places share an object as places of a document in a test may.
    root = {"": json.loads(json.dumps(document))}
    for operation in operations:
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")]
        target: Any = root
        for part in parents:
            target = target[int(part)] if isinstance(target, list) else target[part]
        if isinstance(target, list):
            _edit_list(target, int(last), operation)
        else:
            _edit_object(target, last, operation)
    return root[""]


def _edit_list(target: list[Any], index: int, operation: Mapping[str, Any]) -> None:
    assert 0 <= index < len(target) + (operation["op"] == "add"), operation
    match operation["op"]:
        case "add":
            target.insert(index, copy.deepcopy(operation["value"]))
        case "replace":
            target[index] = copy.deepcopy(operation["value"])
        case "remove":
            del target[index]


def _edit_object(target: dict[str, Any], key: str, operation: Mapping[str, Any]) -> None:
    assert operation["op"] == "add" or key in target, operation
    if operation["op"] == "remove":
        del target[key]
    else:
        target[key] = copy.deepcopy(operation["value"])
