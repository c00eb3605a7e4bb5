"""Decodes the body of a request into an object of the right kind with fields of the right types.

Null counts as absent, as in Go. A body that cannot be read is a 400 that says where the fault is.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from tessera.wire.config_file import ConfigFile
from tessera.wire.errors import WireError
from tessera_lab.sandbox.api.errors import bad_request
from tessera_lab.sandbox.api.kinds import Json, ResourceKind
from tessera_lab.sandbox.api.shapes import SHAPES
from tessera_lab.sandbox.api.store import DECODE

MAX_DEPTH = 200
"""levels of nesting; real objects have fewer than 20, and the rest of this server walks objects recursively"""

S = TypeVar("S")


def decode_json(body: bytes) -> Any:
    try:
        found = DECODE(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"the body is not valid JSON: {error}") from error
    _check_depth(found)
    return found


def decode_yaml(body: bytes) -> Any:
    try:
        found = ConfigFile(body.decode(), file="body")
        found.check()
        return found.value
    except (WireError, UnicodeDecodeError) as error:
        raise bad_request(f"the body is not valid YAML: {error}") from error


def read_object(kind: ResourceKind, body: Any) -> Json:
    """The body as an object of `kind`, without nulls and without fields that only the server sets."""
    if not isinstance(body, dict):
        raise bad_request(f"a {kind.kind} is a JSON object")
    for key, wanted in (("kind", kind.kind), ("apiVersion", kind.api_version)):
        if body.get(key, wanted) not in (wanted, ""):
            raise bad_request(f"{body.get(key)!r} in {key} does not match the expected {wanted!r}")
    found: Json = without_nulls(body) | {"kind": kind.kind, "apiVersion": kind.api_version}
    convert(found, SHAPES[kind.kind])
    metadata = found.setdefault("metadata", {})
    for key in ("labels", "annotations", "finalizers", "ownerReferences", "resourceVersion"):
        if not metadata.get(key, True):
            del metadata[key]
    for key in ("managedFields", "selfLink"):
        metadata.pop(key, None)
    return found


def convert(body: Any, shape: type[S]) -> S:
    """`body` as a value of type `shape`."""
    try:
        return msgspec.convert(body, shape)
    except msgspec.ValidationError as error:
        raise bad_request(f"the object provided cannot be read: {error}") from error


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for each in level
            if isinstance(each, dict | list)
            for child in (each.values() if isinstance(each, dict) else each)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise bad_request(f"the body is nested deeper than {MAX_DEPTH} levels")
