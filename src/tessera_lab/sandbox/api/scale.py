"""`scale`: the number of replicas of a workload as an object of its own, which `kubectl scale` reads and writes.

It is never stored: reading makes it from the workload, writing changes `spec.replicas` of the workload.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera_lab.sandbox.api.errors import FieldProblem, bad_request, invalid
from tessera_lab.sandbox.api.kinds import Json, ResourceKind
from tessera_lab.sandbox.api.request_bodies import convert, without_nulls
from tessera_lab.sandbox.api.shapes import Scale

HEADING = {"kind": "Scale", "apiVersion": "autoscaling/v1"}
_SHOWN = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def make_scale(workload: Json) -> Json:
    metadata, spec, status = workload["metadata"], workload["spec"], workload.get("status", {})
    counts = {"replicas": status.get("replicas", 0), "selector": _selector_text(spec["selector"])}
    return HEADING | {
        "metadata": {key: metadata[key] for key in _SHOWN},
        "spec": {"replicas": spec["replicas"]} if spec["replicas"] else {},
        "status": counts,
    }


def scaled(kind: ResourceKind, change: Callable[[Json], Any]) -> Callable[[Json], Json]:
    """The change of a workload that `change` of its scale means."""

    def apply(workload: Json) -> Json:
        content = without_nulls(change(make_scale(workload)))
        if not isinstance(content, dict) or any(content.get(key, text) != text for key, text in HEADING.items()):
            raise bad_request("the object provided is not a Scale of autoscaling/v1")
        scale, metadata = convert(content, Scale), workload["metadata"]
        replicas = scale.spec.replicas
        if replicas < 0:
            text = f"Invalid value: {replicas}: must be greater than or equal to 0"
            raise invalid(kind, metadata["name"], [FieldProblem("spec.replicas", text)])
        wanted = {"uid": scale.metadata.uid, "resourceVersion": scale.metadata.resource_version}
        workload["metadata"] = metadata | {key: text for key, text in wanted.items() if text}
        workload["spec"]["replicas"] = replicas
        return workload

    return apply


def _selector_text(selector: Json) -> str:
    plain = [f"{key}={value}" for key, value in sorted(selector.get("matchLabels", {}).items())]
    return ",".join([*plain, *(_requirement_text(each) for each in selector.get("matchExpressions", ()))])


def _requirement_text(requirement: Json) -> str:
    key, operator = requirement["key"], requirement["operator"]
    if operator in ("Exists", "DoesNotExist"):
        return f"{'!' if operator == 'DoesNotExist' else ''}{key}"
    return f"{key} {operator.lower()} ({','.join(sorted(requirement.get('values', ())))})"
