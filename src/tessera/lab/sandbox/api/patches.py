"""Applies what a PATCH carries: JSON merge patches (RFC 7386) and JSON patches (RFC 6902).

A patch that does not apply is refused whole. Strategic merge patches are in `strategic`.
"""

from __future__ import annotations

from typing import Any

from tessera.lab.sandbox.api.errors import ApiError, bad_request
from tessera.lab.sandbox.api.kinds import Json
from tessera.wire import json_patch

MAX_OPERATIONS = 10_000
"""of a JSON patch; kube-apiserver's own limit"""


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
    """RFC 6902, with kube-apiserver's refusals. `target` is changed in place, even if a later operation fails."""
    if not isinstance(operations, list):
        raise bad_request("a JSON patch is a list of operations")
    if len(operations) > MAX_OPERATIONS:
        raise ApiError(413, "RequestEntityTooLarge", f"at most {MAX_OPERATIONS} operations in a JSON patch")
    try:
        return json_patch.apply_json_patch(target, operations)
    except json_patch.JsonPatchError as error:
        message = f"the server rejected our request due to an error in our request: {error}"
        raise ApiError(422, "Invalid", message) from error
