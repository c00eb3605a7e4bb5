"""Applies the body of a PATCH: JSON patches (RFC 6902), merge patches (RFC 7386) and strategic merge patches.

A patch that does not apply is refused as a whole. A strategic merge patch merges lists by their merge key, where
Kubernetes gives them one, and replaces all other lists. Of the directives it knows those that `kubectl apply` writes:
$retainKeys, $setElementOrder, and `$patch: delete` for an element of a list.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import jsonpatch
import jsonpointer

from tessera_lab.sandbox.api.errors import StatusError, bad_request, unknown_error
from tessera_lab.sandbox.api.kinds import WORKLOADS, Json, ResourceKind

MAX_OPERATIONS = 10_000
"""of a JSON patch; kube-apiserver's own limit"""


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386: maps are merged, null removes, everything else replaces. `target` may be changed."""
    if not isinstance(patch, dict):
        return patch
    merged: Json = target if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def apply_json_patch(target: Any, operations: Any) -> Any:
    """RFC 6902, with kube-apiserver's refusals. `target` is changed in place, even if a later operation fails."""
    if not isinstance(operations, list):
        raise bad_request("a JSON patch is a list of operations")
    if len(operations) > MAX_OPERATIONS:
        raise StatusError(413, "RequestEntityTooLarge", f"at most {MAX_OPERATIONS} operations in a JSON patch")
    try:
        return jsonpatch.apply_patch(target, operations, in_place=True)
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException) as error:
        message = f"the server rejected our request due to an error in our request: {error}"
        raise StatusError(422, "Invalid", message) from error


_ORDER = "$setElementOrder/"

_METADATA = {"metadata.ownerReferences": "uid"}
_CONTAINER = {"ports": "containerPort", "env": "name", "volumeMounts": "mountPath", "volumeDevices": "devicePath"}
_CONTAINERS = ("spec.containers", "spec.initContainers", "spec.ephemeralContainers")
_POD = {
    "spec.volumes": "name",
    "spec.imagePullSecrets": "name",
    "spec.hostAliases": "ip",
    "spec.topologySpreadConstraints": "topologyKey",
    "spec.resourceClaims": "name",
    "spec.schedulingGates": "name",
    "status.conditions": "type",
    "status.podIPs": "ip",
    "status.hostIPs": "ip",
    "status.resourceClaimStatuses": "name",
}
_POD |= dict.fromkeys(_CONTAINERS, "name")
_POD |= {f"{path}.{name}": key for path in _CONTAINERS for name, key in _CONTAINER.items()}
_WORKLOAD = {f"spec.template.{path}": key for path, key in (_METADATA | _POD).items() if not path.startswith("status.")}
_WORKLOAD |= {"status.conditions": "type"}

MERGE_KEYS: dict[str, dict[str, str]] = {
    "Pod": _POD,
    "Node": {"status.conditions": "type", "status.addresses": "type"},
    "Namespace": {"status.conditions": "type"},
    "ServiceAccount": {"secrets": "name", "imagePullSecrets": "name"},
    "MutatingWebhookConfiguration": {"webhooks": "name"},
    "ValidatingWebhookConfiguration": {"webhooks": "name"},
    **dict.fromkeys((kind.kind for kind in WORKLOADS), _WORKLOAD),
}
"""kind -> path of a list -> the member that identifies an element"""


def merge_strategic(kind: ResourceKind, target: Json, patch: Any) -> Json:
    """`target`, which may be changed, with `patch` applied."""
    if not isinstance(patch, dict):
        raise bad_request("a strategic merge patch is an object")
    merged: Json = _Merger(_METADATA | MERGE_KEYS.get(kind.kind, {})).maps(target, patch, "")
    return merged


class _Merger:
    def __init__(self, keys: dict[str, str]) -> None:
        self._keys = keys

    def maps(self, target: Any, patch: Json, path: str) -> Json:
        merged: Json = target if isinstance(target, dict) else {}
        retained = patch.get("$retainKeys")
        if isinstance(retained, list):
            merged = {key: value for key, value in merged.items() if key in retained}
        for key, value in patch.items():
            self._field(merged, key, value, f"{path}.{key}" if path else key)
        for key, order in patch.items():
            if key.startswith(_ORDER):
                name = key.removeprefix(_ORDER)
                self._order(merged, name, order, f"{path}.{name}" if path else name)
        return merged

    def _field(self, merged: Json, key: str, value: Any, path: str) -> None:
        if key.startswith("$"):
            return
        elif value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = self.maps(merged.get(key), value, path)
        elif isinstance(value, list) and path in self._keys:
            merged[key] = self._lists(merged.get(key), value, path)
        else:
            merged[key] = value

    def _lists(self, target: Any, patch: list[Any], path: str) -> list[Any]:
        current: list[Any] = list(target) if isinstance(target, list) else []
        key = self._keys[path]
        places = {each.get(key): place for place, each in enumerate(current) if isinstance(each, dict)}
        for each in patch:
            if not isinstance(each, dict) or not isinstance(each.get(key), str | int):
                raise unknown_error(f"map: {each!r} does not contain declared merge key: {key}")
            place = places.get(each[key])
            if each.get("$patch") == "delete":
                if place is not None:
                    current[place] = None
            elif place is None or current[place] is None:
                places[each[key]] = len(current)
                current.append(self.maps({}, each, path))
            else:
                current[place] = self.maps(current[place], each, path)
        return [each for each in current if each is not None]

    def _order(self, merged: Json, name: str, order: Any, path: str) -> None:
        """Sorts the list as the patch says; elements that only the server has keep their place among the others."""
        held = merged.get(name)
        if not isinstance(held, list) or not isinstance(order, list):
            return
        key = self._keys.get(path, "")
        wanted = {_identity(each, key): place for place, each in enumerate(order)}
        placed = [(place, each, wanted.get(_identity(each, key))) for place, each in enumerate(held)]
        named = sorted((each for each in placed if each[2] is not None), key=lambda each: each[2] or 0)
        others = deque(each for each in placed if each[2] is None)
        result: list[Any] = []
        for place, each, _ in named:
            while others and others[0][0] < place:
                result.append(others.popleft()[1])
            result.append(each)
        merged[name] = result + [each for _, each, _ in others]


def _identity(element: Any, key: str) -> Any:
    found = element.get(key) if key and isinstance(element, dict) else element
    return found if isinstance(found, str | int) else repr(found)
