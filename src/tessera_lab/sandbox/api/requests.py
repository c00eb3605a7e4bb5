"""Reads a request: its path, the parameters and selectors of its query, and its body.

Unknown fields, malformed texts and bodies with fields of the wrong type are refused as by kube-apiserver. Null counts
as absent, as in Go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from tessera.wire.config_file import ConfigFile
from tessera.wire.errors import WireError
from tessera.wire.objects import LabelRequirement
from tessera_lab.sandbox.api.errors import StatusError, bad_request, no_such_path
from tessera_lab.sandbox.api.kinds import BY_PATH, NAMESPACES, REVIEW_BY_PATH, Json, ResourceKind, ReviewKind
from tessera_lab.sandbox.api.shapes import SHAPES, Thing
from tessera_lab.sandbox.api.store import DECODE

_TERM = re.compile(
    r"\s*(?:(?P<absent>!\s*[^\s!=<>(),]+)"
    r"|(?P<key>[^\s!=<>(),]+)\s*"
    r"(?:(?P<op>==|=|!=|<|>)\s*(?P<value>[^\s,()=!<>]*)|(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?)\s*(?:,|\Z)"
)
_FIELD_PART = re.compile(r"(?:[^,\\]|\\.)+")
_FIELD_TERM = re.compile(r"(?P<field>[^=!]+)(?P<op>==|=|!=)(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FieldRequirement:
    """One requirement on one field; a missing field counts as empty."""

    field: str
    equal: bool
    value: str

    def matches(self, content: Json) -> bool:
        return (field_text(content, self.field) == self.value) is self.equal


@dataclass(frozen=True, slots=True)
class ObjectSelector:
    """What a list or a watch requires of an object."""

    labels: tuple[LabelRequirement, ...] = ()
    fields: tuple[FieldRequirement, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.labels or self.fields)

    def matches(self, content: Json) -> bool:
        if self.labels:
            labels = content["metadata"].get("labels") or {}
            if not all(term.matches(labels) for term in self.labels):
                return False
        return all(term.matches(content) for term in self.fields)

    def required_value(self, field: str) -> str | None:
        """The value that `field` must have, if the selector names one."""
        return next((term.value for term in self.fields if term.field == field and term.equal), None)


EVERYTHING = ObjectSelector()


def parse_labels(text: str) -> tuple[LabelRequirement, ...]:
    terms = []
    position = 0
    while position < len(text):
        found = _TERM.match(text, position)
        if found is None or found.end() == position:
            raise bad_request(f"unable to parse requirement: {text!r}")
        terms.append(_label_term(found))
        position = found.end()
    return tuple(terms)


def parse_fields(kind: ResourceKind, text: str) -> tuple[FieldRequirement, ...]:
    terms = []
    for part in _FIELD_PART.findall(text):
        found = _FIELD_TERM.fullmatch(part)
        if found is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        field = found["field"].strip()
        if field not in kind.fields and field not in ("metadata.name", "metadata.namespace"):
            raise bad_request(f"field label not supported: {field}")
        terms.append(FieldRequirement(field, found["op"] != "!=", re.sub(r"\\(.)", r"\1", found["value"])))
    return tuple(terms)


def field_text(content: Json, path: str) -> str:
    """The field as selectors compare it."""
    found: Any = content
    for step in path.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    if path == "source":
        found = (found or {}).get("component") or content.get("reportingComponent")
    if isinstance(found, bool):
        return "true" if found else "false"
    if found is None:
        return "false" if path in ("spec.unschedulable", "spec.hostNetwork") else ""
    return str(found)


def _label_term(found: re.Match[str]) -> LabelRequirement:
    if found["absent"]:
        return LabelRequirement(found["absent"][1:].strip(), "DoesNotExist")
    key = found["key"]
    if found["set"]:
        values = frozenset(value.strip() for value in found["values"].split(","))
        return LabelRequirement(key, "In" if found["set"] == "in" else "NotIn", values)
    if not found["op"]:
        return LabelRequirement(key, "Exists")
    operator = {"=": "In", "==": "In", "!=": "NotIn", ">": "Gt", "<": "Lt"}[found["op"]]
    return LabelRequirement(key, operator, frozenset((found["value"],)))


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """The resource that a request is about; without a name, the collection."""

    kind: ResourceKind
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def resolve_path(path: str) -> RequestTarget | ReviewKind | None:
    """The target of a path below /api or /apis; None for discovery. Raises if nothing is served there."""
    head, *steps = path.strip("/").split("/")
    if head == "api" and len(steps) > 1:
        return _resource("", steps[0], steps[1:])
    if head == "apis" and len(steps) > 2:
        return _resource(steps[0], steps[1], steps[2:])
    return None


def _resource(group: str, version: str, steps: list[str]) -> RequestTarget | ReviewKind:
    review = REVIEW_BY_PATH.get((group, version, steps[0]))
    if review is not None and len(steps) == 1:
        return review
    namespace = ""
    if steps[0] == "namespaces" and len(steps) > 2 and steps[2] not in NAMESPACES.subresources:
        namespace, steps = steps[1], steps[2:]
    kind = BY_PATH.get((group, version, steps[0]))
    if kind is None or len(steps) > 3 or (namespace and not kind.namespaced):
        raise no_such_path()
    name, subresource = [*steps[1:], "", ""][:2]
    if name and kind.namespaced and not namespace:
        raise no_such_path()
    if subresource and subresource not in kind.subresources:
        raise no_such_path()
    return RequestTarget(kind, namespace, name, subresource)


Query = Mapping[str, str]
MAX_NUMBER = 2**63 - 1


def parse_selector(kind: ResourceKind, query: Query) -> ObjectSelector:
    return ObjectSelector(
        parse_labels(query.get("labelSelector", "")), parse_fields(kind, query.get("fieldSelector", ""))
    )


def parse_whole_number(query: Query, name: str) -> int | None:
    """A non-negative number, or None if it is absent."""
    text = query.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 19 or int(text) > MAX_NUMBER:
        raise bad_request(f"invalid {name}: {text[:40]!r}")
    return int(text)


def parse_limit(query: Query) -> int:
    """Items per page; 0 or less means all."""
    text = query.get("limit", "")
    return 0 if text.startswith("-") and text[1:].isdecimal() else parse_whole_number(query, "limit") or 0


def parse_flag(query: Query, name: str) -> bool:
    return query.get(name, "").lower() in ("1", "t", "true")


def parse_dry_run(query: Query) -> bool:
    text = query.get("dryRun", "")
    if text not in ("", "All"):
        why = f'dryRun: Unsupported value: "{text[:40]}": supported values: "All"'
        raise StatusError(422, "Invalid", f'options.meta.k8s.io "" is invalid: {why}')
    return bool(text)


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
    convert(found, SHAPES.get(kind.kind, Thing))
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
