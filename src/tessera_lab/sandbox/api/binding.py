"""`pods/binding`: one write that sets the pod's node and adds the binding's annotations and labels.

The uid in the binding is a precondition. Whether the node exists is not checked; kube-apiserver does not either.
"""

from __future__ import annotations

from tessera_lab.sandbox.api.admission import Attributes
from tessera_lab.sandbox.api.api_state import ApiState, RequestContext
from tessera_lab.sandbox.api.errors import StatusError, bad_request, conflict, not_found, unknown_error
from tessera_lab.sandbox.api.kinds import BINDING, PODS, Json
from tessera_lab.sandbox.api.request_bodies import convert, without_nulls
from tessera_lab.sandbox.api.shapes import Binding
from tessera_lab.sandbox.api.store import Stored
from tessera_lab.sandbox.api.writes import check_precondition


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
