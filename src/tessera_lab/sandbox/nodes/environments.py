"""The environment that a container would see, computed as kubelet and runtimes do.

The pod's own variables override those from Allocate. Downward API fields come from the pod, and `$(NAME)` from the
pod's own entries before. Secrets, config maps, `envFrom` and services are not resolved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.objects import annotations_of, name_of, namespace_of, node_of, uid_of

_REFERENCE = re.compile(r"\$(\$|\(([^()]*)\))")
_SUBSCRIPT = re.compile(r"metadata\.(annotations|labels)\['([^']*)'\]")


def container_environment(pod: Json, container: Json, allocated: Mapping[str, str]) -> dict[str, str]:
    """The variables of one container; `allocated` is what Allocate answered."""
    own: dict[str, str] = {}
    for entry in container.get("env") or ():
        value = _value(pod, entry, own)
        if value is not None:
            own[entry["name"]] = value
    return {**allocated, **own}


def _value(pod: Json, entry: Json, before: Mapping[str, str]) -> str | None:
    """None if the sandbox cannot resolve the entry."""
    source = entry.get("valueFrom")
    if not source:
        return expand_references(entry.get("value") or "", before)
    if "fieldRef" not in source:
        return None
    return downward_api_field(pod, source["fieldRef"].get("fieldPath", ""))


def expand_references(text: str, variables: Mapping[str, str]) -> str:
    """Replaces `$(NAME)` if NAME is known; `$$` becomes one dollar."""

    def replaced(found: re.Match[str]) -> str:
        if found[1] == "$":
            return "$"
        return variables.get(found[2], found[0])

    return _REFERENCE.sub(replaced, text)


def downward_api_field(pod: Json, path: str) -> str | None:
    """A downward API field; a missing annotation or label is empty."""
    subscript = _SUBSCRIPT.fullmatch(path)
    if subscript is not None:
        kept = annotations_of(pod) if subscript[1] == "annotations" else pod["metadata"].get("labels") or {}
        return kept.get(subscript[2], "")
    match path:
        case "metadata.name":
            return name_of(pod)
        case "metadata.namespace":
            return namespace_of(pod)
        case "metadata.uid":
            return uid_of(pod)
        case "spec.nodeName":
            return node_of(pod)
        case "spec.serviceAccountName":
            return str(pod["spec"].get("serviceAccountName", ""))
    return None
