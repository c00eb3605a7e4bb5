"""What kubectl reads first: groups, resources, the version, and as much OpenAPI as `apply` needs.

The OpenAPI documents only say that PATCH exists and which parameters it takes. They have no schemas, so
`kubectl explain` shows nothing and fields are not validated.
"""

from __future__ import annotations

from tessera_lab.sandbox.api.errors import no_such_path
from tessera_lab.sandbox.api.kinds import (
    BINDING,
    EVICTION,
    KINDS,
    LOG,
    REVIEWS,
    SCALE,
    STATUS,
    Json,
    ResourceKind,
    ReviewKind,
)

GIT_VERSION = "v1.36.0-tessera"
VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")

_SUBRESOURCES: dict[str, tuple[Json, tuple[str, ...]]] = {
    BINDING: ({"kind": "Binding"}, ("create",)),
    EVICTION: ({"group": "policy", "version": "v1", "kind": "Eviction"}, ("create",)),
    LOG: ({"kind": "Pod"}, ("get",)),
    SCALE: ({"group": "autoscaling", "version": "v1", "kind": "Scale"}, ("get", "patch", "update")),
}


def document(path: str) -> Json:
    """The discovery document at `path`. Raises if there is none."""
    found = _documents().get(path.rstrip("/"))
    if found is None:
        raise no_such_path()
    return found


def _documents() -> dict[str, Json]:
    documents = {"/api": _versions(), "/apis": _group_list(), "/version": _version(), "/openapi/v3": _openapi_index()}
    for group in _groups():
        if group:
            documents[f"/apis/{group}"] = {"kind": "APIGroup", "apiVersion": "v1"} | _group(group)
        documents[_base(group)] = _resources(group)
        documents[f"/openapi/v3{_base(group)}"] = _openapi(group)
    documents[""] = {"paths": sorted([*documents, "/healthz", "/livez", "/readyz"])}
    return documents


def _groups() -> list[str]:
    return sorted({each.group for each in KINDS} | {each.group for each in REVIEWS})


def _base(group: str) -> str:
    return f"/apis/{group}/v1" if group else "/api/v1"


def _versions() -> Json:
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def _version() -> Json:
    return {
        "major": "1",
        "minor": "36",
        "gitVersion": GIT_VERSION,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "none",
        "platform": "linux/amd64",
    }


def _group(group: str) -> Json:
    version = {"groupVersion": f"{group}/v1", "version": "v1"}
    return {"name": group, "versions": [version], "preferredVersion": version}


def _group_list() -> Json:
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(group) for group in _groups() if group]}


def _resources(group: str) -> Json:
    resources: list[Json] = []
    for kind in (each for each in KINDS if each.group == group):
        resources.append(_resource(kind))
        resources += [_subresource(kind, name) for name in kind.subresources]
    resources += [_review(each) for each in REVIEWS if each.group == group]
    version = f"{group}/v1" if group else "v1"
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}


def _resource(kind: ResourceKind) -> Json:
    resource: Json = {"name": kind.plural, "singularName": kind.kind.lower(), "namespaced": kind.namespaced}
    resource |= {"kind": kind.kind, "verbs": list(VERBS)}
    if kind.short_names:
        resource["shortNames"] = list(kind.short_names)
    if kind.categories:
        resource["categories"] = list(kind.categories)
    return resource


def _subresource(kind: ResourceKind, name: str) -> Json:
    what, verbs = _SUBRESOURCES.get(name, ({"kind": kind.kind}, ("get", "patch", "update")))
    base: Json = {"name": f"{kind.plural}/{name}", "singularName": "", "namespaced": kind.namespaced}
    return base | what | {"verbs": list(verbs)}


def _review(review: ReviewKind) -> Json:
    return {
        "name": review.plural,
        "singularName": review.kind.lower(),
        "namespaced": False,
        "kind": review.kind,
        "verbs": ["create"],
    }


def _openapi_index() -> Json:
    places = (_base(group).removeprefix("/") for group in _groups())
    return {"paths": {place: {"serverRelativeURL": f"/openapi/v3/{place}?hash=1"} for place in places}}


def _openapi(group: str) -> Json:
    paths: Json = {}
    for kind in (each for each in KINDS if each.group == group):
        space = "/namespaces/{namespace}" if kind.namespaced else ""
        path = f"{_base(group)}{space}/{kind.plural}/{{name}}"
        paths[path] = _operations(kind)
        if STATUS in kind.subresources:
            paths[f"{path}/status"] = _operations(kind)
    return {"openapi": "3.0.0", "info": {"title": "Tessera", "version": GIT_VERSION}, "paths": paths, "components": {}}


def _operations(kind: ResourceKind) -> Json:
    names = ("dryRun", "fieldManager", "fieldValidation", "force")
    parameters = [{"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}} for name in names]
    meant = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    answer = {"200": {"description": "OK"}}
    patch = {"parameters": parameters, "responses": answer, "x-kubernetes-group-version-kind": meant}
    return {"patch": patch | {"x-kubernetes-action": "patch"}}
