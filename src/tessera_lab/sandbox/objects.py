"""Accessors for pods and nodes as plain API objects."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import cast

from tessera.kube.reflector import Accessor
from tessera_lab.sandbox.api.kinds import Json

ENDED = ("Succeeded", "Failed")


def key_of(thing: Json) -> str:
    """`namespace/name`; only the name for cluster-scoped objects."""
    metadata = thing["metadata"]
    namespace = metadata.get("namespace", "")
    return f"{namespace}/{metadata['name']}" if namespace else cast(str, metadata["name"])


def namespace_of(thing: Json) -> str:
    return cast(str, thing["metadata"].get("namespace", ""))


def name_of(thing: Json) -> str:
    return cast(str, thing["metadata"]["name"])


def uid_of(thing: Json) -> str:
    return cast(str, thing["metadata"]["uid"])


def version_of(thing: Json) -> str:
    return cast(str, thing["metadata"].get("resourceVersion", ""))


JSON_ACCESSOR: Accessor[Json] = Accessor(key_of, uid_of, version_of)
"""for reflectors of plain JSON"""


def annotations_of(thing: Json) -> dict[str, str]:
    return thing["metadata"].get("annotations") or {}


def is_being_deleted(thing: Json) -> bool:
    """Whether the object is being deleted."""
    return "deletionTimestamp" in thing["metadata"]


def node_of(pod: Json) -> str:
    """The node that the pod is bound to, or an empty text."""
    return cast(str, pod["spec"].get("nodeName", ""))


def phase_of(pod: Json) -> str:
    return cast(str, pod.get("status", {}).get("phase", ""))


def has_ended(pod: Json) -> bool:
    return phase_of(pod) in ENDED


def containers_of(pod: Json) -> list[Json]:
    """Init containers first: annotations count containers in this order."""
    spec = pod["spec"]
    return [*spec.get("initContainers", ()), *spec.get("containers", ())]


def is_sidecar(container: Json) -> bool:
    """Whether an init container keeps running beside the containers after it."""
    return container.get("restartPolicy") == "Always"


def condition_of(thing: Json, kind: str) -> Json | None:
    for condition in thing.get("status", {}).get("conditions", ()):
        if condition.get("type") == kind:
            return cast(Json, condition)
    return None


def format_timestamp(seconds: float) -> str:
    """Unix seconds as the API writes times: UTC, whole seconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
