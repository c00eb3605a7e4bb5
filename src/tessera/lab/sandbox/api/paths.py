"""What a URL path names: a kind, maybe a namespace, maybe one object, maybe a part of it."""

from __future__ import annotations

from dataclasses import dataclass

from tessera.lab.sandbox.api.errors import no_such_path
from tessera.lab.sandbox.api.kinds import BY_PATH, NAMESPACES, REVIEW_BY_PATH, Kind, Review


@dataclass(frozen=True, slots=True)
class Target:
    """The resource that a request is about; no name means the collection."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def resolve(path: str) -> Target | Review | None:
    """The target of a path below /api or /apis; None for discovery documents; raises where nothing is served."""
    head, *steps = path.strip("/").split("/")
    if head == "api" and len(steps) > 1:
        return _resource("", steps[0], steps[1:])
    if head == "apis" and len(steps) > 2:
        return _resource(steps[0], steps[1], steps[2:])
    return None


def _resource(group: str, version: str, steps: list[str]) -> Target | Review:
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
    return Target(kind, namespace, name, subresource)
