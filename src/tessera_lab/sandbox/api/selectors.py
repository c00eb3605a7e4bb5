"""Label and field selectors, from the text of a query parameter.

Unknown fields and malformed texts are refused as by kube-apiserver.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tessera.wire.objects import LabelRequirement
from tessera_lab.sandbox.api.errors import bad_request
from tessera_lab.sandbox.api.kinds import Json, ResourceKind

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
