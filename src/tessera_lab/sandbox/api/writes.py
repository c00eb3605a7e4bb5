"""Creates, changes, binds and deletes objects, with optimistic concurrency.

Invariant: nothing is awaited between the last read of the stored object and the write. If the object changed while
admission was awaited, the change is applied again to the new state, or refused as a conflict.

    delete a bound pod, grace > 0      -> deletionTimestamp is set; the node deletes again with grace 0
    delete an object with finalizers   -> deletionTimestamp is set; the update that removes the last one removes it
    delete anything else               -> removed; a namespace after its content

Dependents are left to the garbage collector (`controllers`): a request that says what happens to them
(`propagationPolicy`) adds the finalizer that the collector acts on. A binding is one write that sets the pod's node and
adds annotations and labels; its uid is a precondition, and whether the node exists is not checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from tessera_lab.sandbox.api import defaults, validation
from tessera_lab.sandbox.api.admission import Attributes
from tessera_lab.sandbox.api.api_state import ApiState, RequestContext
from tessera_lab.sandbox.api.defaults import set_defaults
from tessera_lab.sandbox.api.errors import (
    FieldProblem,
    StatusError,
    already_exists,
    bad_request,
    conflict,
    failed_precondition,
    forbidden,
    invalid,
    not_found,
    unknown_error,
)
from tessera_lab.sandbox.api.kinds import BINDING, JOBS, KINDS, NAMESPACES, PODS, STATUS, Json, ResourceKind
from tessera_lab.sandbox.api.requests import convert, without_nulls
from tessera_lab.sandbox.api.shapes import Binding, DeleteOptions
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
    defaults.run_builtin_admission(kind, content, store=cluster.store)
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
    defaults.assign_identity(kind, content, identities=cluster.identities)
    generated = not metadata.get("name")
    for _ in range(MAX_ATTEMPTS if generated else 1):
        if generated:
            metadata["name"] = defaults.generate_name(metadata["generateName"], cluster.identities)
            set_defaults(kind, content)
        if cluster.store.get(kind, namespace, metadata["name"]) is None:
            break
    else:
        raise already_exists(kind, metadata["name"])
    if kind is JOBS:
        defaults.generate_job_selector(content)
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
        defaults.add_default_tolerations(content["spec"])


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


KEPT_NAMESPACES = ("default", "kube-system", "kube-public")
ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"
"""finalizers that keep an object until its dependents are freed of it, or are gone"""


@dataclass(frozen=True, slots=True)
class Deletion:
    """The object after the request: `gone`, or still being deleted."""

    stored: Stored
    gone: bool


async def delete(
    cluster: ApiState, kind: ResourceKind, namespace: str, name: str, *, options: DeleteOptions, call: RequestContext
) -> Deletion:
    """Deletes one object."""
    current = cluster.store.get(kind, namespace, name)
    if current is None:
        raise not_found(kind, name)
    if kind is NAMESPACES and name in KEPT_NAMESPACES:
        raise forbidden(kind, name, "this namespace may not be deleted")
    check_precondition(current, uid=options.preconditions.uid, version=options.preconditions.resource_version)
    attributes = Attributes(
        "DELETE", kind, namespace, name, None, old=current.object, dry_run=call.dry_run, user=call.user
    )
    await cluster.admit(attributes, call)
    current = cluster.store.get(kind, namespace, name)
    if current is None:
        raise not_found(kind, name)
    check_precondition(current, uid=options.preconditions.uid, version=options.preconditions.resource_version)
    return remove(cluster, current, options, dry_run=call.dry_run)


def remove(cluster: ApiState, current: Stored, options: DeleteOptions, *, dry_run: bool = False) -> Deletion:
    """Removes the object, or marks it if that has to wait."""
    if current.kind is NAMESPACES:
        return _remove_namespace(cluster, current, dry_run=dry_run)
    grace = _grace_s(current, options)
    finalizers = _finalizers(current, options)
    marked = _marked(cluster, current, grace, finalizers)
    if grace == 0 and not finalizers:
        if dry_run:
            return Deletion(current, gone=True)
        if current.kind is PODS and marked is not None:
            # kube-apiserver marks a pod before it removes it: watchers see both writes.
            current = cluster.store.put(PODS, marked)
        return Deletion(cluster.store.remove(current), gone=True)
    if marked is None:
        return Deletion(current, gone=False)
    if dry_run:
        return Deletion(make_stored(current.kind, marked, current.version), gone=False)
    return Deletion(cluster.store.put(current.kind, marked), gone=False)


def _grace_s(current: Stored, options: DeleteOptions) -> int:
    """Seconds that the pod may still run; what no kubelet runs is removed at once."""
    spec, status = current.object.get("spec", {}), current.object.get("status", {})
    if current.kind is not PODS or not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return 0
    asked = options.grace_period_seconds
    if asked is None:
        pending: int | None = current.object["metadata"].get("deletionGracePeriodSeconds")
        asked = pending if pending is not None else spec.get("terminationGracePeriodSeconds", 30)
    return asked if asked >= 0 else 1


def _finalizers(current: Stored, options: DeleteOptions) -> list[str]:
    """The finalizers for this deletion: what it says about dependents replaces what was said before."""
    held: list[str] = current.object["metadata"].get("finalizers", [])
    policy = options.propagation_policy
    if policy is None:
        orphans = current.kind.orphans_by_default and "deletionTimestamp" not in current.object["metadata"]
        return [*held, ORPHAN] if orphans and not {ORPHAN, FOREGROUND} & set(held) else held
    added = {"Orphan": [ORPHAN], "Foreground": [FOREGROUND]}.get(policy, [])
    return [each for each in held if each not in (ORPHAN, FOREGROUND)] + added


def _marked(cluster: ApiState, current: Stored, grace: int, finalizers: list[str]) -> Json | None:
    """The object with a deletion timestamp; None if that changes nothing."""
    pending = current.object["metadata"].get("deletionGracePeriodSeconds")
    if pending is not None and pending <= grace and finalizers == current.object["metadata"].get("finalizers", []):
        return None
    marked = current.copy()
    metadata = marked["metadata"]
    if finalizers:
        metadata["finalizers"] = finalizers
    else:
        metadata.pop("finalizers", None)
    if pending is not None and pending <= grace:
        return marked
    if pending is None:
        metadata["deletionTimestamp"] = cluster.identities.timestamp(after_s=grace)
    else:
        asked = datetime.fromisoformat(metadata["deletionTimestamp"]).timestamp() - pending
        metadata["deletionTimestamp"] = datetime.fromtimestamp(asked + grace, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    metadata["deletionGracePeriodSeconds"] = grace
    if "generation" in metadata:
        metadata["generation"] += 1
    return marked


def _remove_namespace(cluster: ApiState, current: Stored, *, dry_run: bool) -> Deletion:
    marked = current.copy()
    if "deletionTimestamp" not in marked["metadata"]:
        marked["metadata"]["deletionTimestamp"] = cluster.identities.timestamp()
        marked["status"] = {"phase": "Terminating"}
    if dry_run:
        return Deletion(make_stored(NAMESPACES, marked, current.version), gone=False)
    stored = cluster.store.put(NAMESPACES, marked)
    for kind in KINDS:
        if kind.namespaced:
            for held in cluster.store.list(kind, current.name):
                remove(cluster, held, DeleteOptions(propagation_policy="Background"))
    return Deletion(stored, gone=cluster.store.get(NAMESPACES, "", current.name) is None)


async def bind(cluster: ApiState, namespace: str, name: str, body: object, *, call: RequestContext) -> Stored:
    """Assigns the pod to the binding's target."""
    content = without_nulls(body)
    binding = _checked(content, namespace, name)
    attributes = Attributes(
        "CREATE",
        PODS,
        namespace,
        name,
        content,
        subresource=BINDING,
        dry_run=call.dry_run,
        user=call.user,
        options=call.options,
        subresource_kind=("v1", "Binding"),
    )
    admitted = await cluster.admit(attributes, call)
    binding = _checked(admitted, namespace, name)
    return _assign(cluster, namespace, name, binding, dry_run=call.dry_run)


def _checked(content: object, namespace: str, name: str) -> Binding:
    binding = convert(content, Binding)
    metadata, target = binding.metadata, binding.target
    if metadata.name != name or metadata.namespace not in ("", namespace):
        raise bad_request("name in URL does not match name in Binding object")
    if target.kind not in ("", "Node"):
        raise unknown_error(f'target.kind: Unsupported value: "{target.kind}": supported values: "Node", "<empty>"')
    if not target.name:
        raise unknown_error("target.name: Required value")
    return binding


def _assign(cluster: ApiState, namespace: str, name: str, binding: Binding, *, dry_run: bool) -> Stored:
    current = cluster.store.get(PODS, namespace, name)
    if current is None:
        raise not_found(PODS, name)
    try:
        check_precondition(current, uid=binding.metadata.uid or None, version=binding.metadata.resource_version or None)
    except StatusError as error:
        why = error.message.partition(": ")[2]
        place = f"Key: /registry/pods/{namespace}/{name}, ResourceVersion: 0"
        text = f"StorageError: invalid object, Code: 4, {place}, AdditionalErrorMsg: {why}"
        raise conflict(PODS, name, text) from error
    refusal = _refusal(current)
    if refusal is not None:
        raise refusal
    if dry_run:
        return current
    pod = current.copy()
    metadata: Json = pod["metadata"]
    for key, added in (("annotations", binding.metadata.annotations), ("labels", binding.metadata.labels)):
        if added:
            metadata[key] = metadata.get(key, {}) | added
    pod["spec"]["nodeName"] = binding.target.name
    _mark_scheduled(pod["status"], cluster.identities.timestamp())
    return cluster.store.put(PODS, pod)


def _refusal(current: Stored) -> StatusError | None:
    spec, metadata, why = current.object["spec"], current.object["metadata"], ""
    if "deletionTimestamp" in metadata:
        why = f"pod {current.name} is being deleted, cannot be assigned to a host"
    elif spec.get("nodeName"):
        why = f'pod {current.name} is already assigned to node "{spec["nodeName"]}"'
    elif spec.get("schedulingGates"):
        why = f"pod {current.name} has non-empty .spec.schedulingGates"
    return conflict(PODS, current.name, why, subresource=BINDING) if why else None


def _mark_scheduled(status: Json, timestamp: str) -> None:
    others = [each for each in status.get("conditions", ()) if each.get("type") != "PodScheduled"]
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamp}
    status["conditions"] = [*others, scheduled]
