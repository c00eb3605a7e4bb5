"""Creates and changes objects, with optimistic concurrency.

Invariant: nothing is awaited between the last read of the stored object and the write. If the object changed while
admission was awaited, the change is applied again to the new state, or refused as a conflict.
"""

from __future__ import annotations

from collections.abc import Callable

from tessera_lab.sandbox.api import creation, validation
from tessera_lab.sandbox.api.admission import Attributes
from tessera_lab.sandbox.api.api_state import ApiState, RequestContext
from tessera_lab.sandbox.api.defaults import set_defaults
from tessera_lab.sandbox.api.errors import (
    FieldProblem,
    already_exists,
    bad_request,
    conflict,
    failed_precondition,
    invalid,
    not_found,
    unknown_error,
)
from tessera_lab.sandbox.api.kinds import JOBS, NAMESPACES, PODS, STATUS, Json, ResourceKind
from tessera_lab.sandbox.api.store import Stored, make_stored

MAX_ATTEMPTS = 8
"""tries of a change that keeps conflicting, and of a generated name that keeps existing already"""

_FIXED = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
"""metadata that no update changes"""

_NOT_SPEC = ("kind", "apiVersion", "metadata", "status")


async def create(
    cluster: ApiState, kind: ResourceKind, namespace: str, content: Json, *, call: RequestContext
) -> Stored:
    """Stores a new object."""
    metadata = content["metadata"]
    _place(kind, metadata, namespace)
    name = metadata.get("name", "")
    if metadata.pop("resourceVersion", None):
        raise unknown_error("resourceVersion should not be set on objects to be created")
    if not name and not metadata.get("generateName"):
        text = "Required value: name or generateName is required"
        raise invalid(kind, "", [FieldProblem("metadata.name", text, "FieldValueRequired")])
    cluster.check_namespace(kind, namespace, name)
    for key in ("uid", "creationTimestamp"):
        metadata.pop(key, None)
    set_defaults(kind, content)
    creation.run_builtin_admission(kind, content, store=cluster.store, identities=cluster.identities)
    attributes = Attributes(
        "CREATE", kind, namespace, name, content, dry_run=call.dry_run, user=call.user, options=call.options
    )
    admitted = await cluster.admit(attributes, call)
    assert admitted is not None
    return _store_new(cluster, kind, namespace, admitted, call)


def _store_new(cluster: ApiState, kind: ResourceKind, namespace: str, content: Json, call: RequestContext) -> Stored:
    set_defaults(kind, content)
    metadata = content["metadata"]
    _place(kind, metadata, namespace)
    creation.assign_identity(kind, content, identities=cluster.identities)
    generated = not metadata.get("name")
    for _ in range(MAX_ATTEMPTS if generated else 1):
        if generated:
            metadata["name"] = creation.generate_name(metadata["generateName"], cluster.identities)
            set_defaults(kind, content)
        if cluster.store.get(kind, namespace, metadata["name"]) is None:
            break
    else:
        raise already_exists(kind, metadata["name"])
    if kind is JOBS:
        creation.generate_job_selector(content)
    problems = validation.find_problems(kind, content)
    if problems:
        raise invalid(kind, metadata["name"], problems)
    cluster.check_namespace(kind, namespace, metadata["name"])
    if call.dry_run:
        return make_stored(kind, content, cluster.store.version)
    return cluster.store.put(kind, content)


async def update(
    cluster: ApiState,
    kind: ResourceKind,
    namespace: str,
    name: str,
    *,
    change: Callable[[Json], Json],
    subresource: str = "",
    call: RequestContext,
) -> Stored:
    """Stores the result of `change` on a fresh copy of the object."""
    for _ in range(MAX_ATTEMPTS):
        current = cluster.store.get(kind, namespace, name)
        if current is None:
            raise not_found(kind, name)
        content = change(current.copy())
        _check_versions(current, content)
        restore_fixed_fields(current, content, subresource)
        admitted = await cluster.admit(_attributes(current, content, subresource, call), call)
        assert admitted is not None
        restore_fixed_fields(current, admitted, subresource)
        if cluster.store.get(kind, namespace, name) is current:
            return _store_changed(cluster, current, admitted, subresource, call)
    raise conflict(kind, name)


def restore_fixed_fields(current: Stored, content: Json, subresource: str) -> None:
    """Restores what this request may not change, and sets defaults."""
    kind, old = current.kind, current.object
    metadata = content.setdefault("metadata", {})
    for key in _FIXED:
        metadata.pop(key, None)
        if key in old["metadata"]:
            metadata[key] = old["metadata"][key]
    if subresource == STATUS:
        for key in set(content) | set(old):
            if key not in _NOT_SPEC:
                content.pop(key, None)
                if key in old:
                    content[key] = old[key]
    elif kind.has_status:
        content.pop("status", None)
        if "status" in old:
            content["status"] = old["status"]
    if kind is NAMESPACES:
        content["spec"] = old["spec"]
    set_defaults(kind, content)
    if kind is PODS and subresource != STATUS:
        creation.add_default_tolerations(content["spec"])


def check_precondition(current: Stored, *, uid: str | None, version: str | None) -> None:
    if uid is not None and uid != current.uid:
        raise failed_precondition(current.kind, current.name, what="UID", wanted=uid, found=current.uid)
    if version is not None and version != str(current.version):
        what = "ResourceVersion"
        raise failed_precondition(current.kind, current.name, what=what, wanted=version, found=str(current.version))


def _store_changed(cluster: ApiState, current: Stored, content: Json, subresource: str, call: RequestContext) -> Stored:
    kind, old = current.kind, current.object
    problems = validation.find_problems(kind, content)
    problems += validation.find_change_problems(kind, old, content, subresource=subresource)
    if problems:
        raise invalid(kind, current.name, problems)
    metadata = content["metadata"]
    metadata["resourceVersion"] = old["metadata"]["resourceVersion"]
    if "generation" in old["metadata"]:
        metadata["generation"] = old["metadata"]["generation"] + _spec_differs(old, content)
    proposed = make_stored(kind, content, current.version)
    if proposed.object == old:
        return current
    if call.dry_run:
        return proposed
    stored = cluster.store.put(kind, content)
    finished = "deletionTimestamp" in metadata and not metadata.get("finalizers")
    if finished and not metadata.get("deletionGracePeriodSeconds") and kind is not NAMESPACES:
        return cluster.store.remove(stored)
    return stored


def _spec_differs(old: Json, new: Json) -> bool:
    return any(old.get(key) != new.get(key) for key in set(old) | set(new) if key not in _NOT_SPEC)


def _check_versions(current: Stored, content: Json) -> None:
    metadata = content.get("metadata") or {}
    for key, text in (("name", current.name), ("namespace", current.namespace)):
        found = metadata.get(key) or text
        if found != text:
            raise bad_request(f"the {key} of the object ({found}) does not match the {key} on the URL ({text})")
    uid = metadata.get("uid")
    if uid and uid != current.uid:
        raise failed_precondition(current.kind, current.name, what="UID", wanted=uid, found=current.uid)
    version = metadata.get("resourceVersion")
    if version and version != str(current.version):
        raise conflict(current.kind, current.name)
    if not version and not current.kind.unconditional_update:
        text = "Invalid value: 0: must be specified for an update"
        raise invalid(current.kind, current.name, [FieldProblem("metadata.resourceVersion", text)])


def _place(kind: ResourceKind, metadata: Json, namespace: str) -> None:
    found = metadata.pop("namespace", "")
    if not kind.namespaced:
        return
    if found not in ("", namespace):
        text = f"the namespace of the provided object does not match the namespace sent on the request ({found})"
        raise bad_request(text)
    metadata["namespace"] = namespace


def _attributes(current: Stored, content: Json, subresource: str, call: RequestContext) -> Attributes:
    return Attributes(
        "UPDATE",
        current.kind,
        current.namespace,
        current.name,
        content,
        old=current.object,
        subresource=subresource,
        dry_run=call.dry_run,
        user=call.user,
        options=call.options,
    )
