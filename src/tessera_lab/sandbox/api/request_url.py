"""Reads the URL of a request: the path names a kind, namespace, object and subresource; the query has parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tessera_lab.sandbox.api.errors import StatusError, bad_request, no_such_path
from tessera_lab.sandbox.api.kinds import BY_PATH, NAMESPACES, REVIEW_BY_PATH, ResourceKind, ReviewKind
from tessera_lab.sandbox.api.selectors import ObjectSelector, parse_fields, parse_labels


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
