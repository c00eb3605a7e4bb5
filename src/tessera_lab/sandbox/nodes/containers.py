"""What a simulated container gets and writes: its environment, its claims and its log.

The environment is computed as kubelet and runtimes do: the pod's own variables override those from Allocate, downward
API fields come from the pod, and `$(NAME)` from the entries before. Secrets, config maps, `envFrom` and services are
not resolved. A ResourceClaim is prepared for the first pod that uses it and unprepared after the last one; a pod starts
only if its claims are allocated and reserved for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tessera.kube.client import KubeClient
from tessera.kube.resources import RESOURCE_CLAIMS
from tessera.wire.resource_api import ResourceClaim
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.api.subresources import LogLine
from tessera_lab.sandbox.nodes.allocation import AllocateError
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


_DEVICES = re.compile(r"[A-Z]+_VISIBLE_DEVICES")
"""NVIDIA's, Ascend's and other makers' variables"""
_NO_DEVICES = ("", "void", "none")
_MEMORY = re.compile(r"CUDA_DEVICE_MEMORY_LIMIT_[0-9]+")
_MPS_MEMORY, _MPS_CORES = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_CORES, _NO_LIMIT = "CUDA_DEVICE_SM_LIMIT", "0"


def container_log(pod: Json, container: str, env: Mapping[str, str]) -> list[LogLine] | None:
    """The lines so far; None if the container has not started."""
    state = _state(pod, container)
    ended: Json = state.get("terminated", {})
    running: Json = state.get("running", ended)
    started_at = running.get("startedAt", "")
    if not started_at:
        return None
    lines = [LogLine(started_at, f"simulated container {container}: {describe_limits(env)}")]
    if ended:
        lines.append(LogLine(ended["finishedAt"], f"simulated container {container}: exit code {ended['exitCode']}"))
    return lines


def describe_limits(env: Mapping[str, str]) -> str:
    """Devices, memory limit and core limit, as far as the environment has them."""
    named = sorted(env.items())
    devices = [text for name, text in named if _DEVICES.fullmatch(name) and text not in _NO_DEVICES]
    if not devices:
        return "no devices"
    memory = [_in_mib(text) for name, text in named if _MEMORY.fullmatch(name)]
    parts = [f"devices {','.join(devices)}"]
    if memory or _MPS_MEMORY in env:
        parts.append(f"memory limit {', '.join(memory) or env[_MPS_MEMORY]}")
    cores = env.get(_CORES) or env.get(_MPS_CORES)
    if cores is not None:
        parts.append(f"core limit {f'{cores} %' if cores != _NO_LIMIT else 'none'}")
    return "; ".join(parts)


def _in_mib(text: str) -> str:
    """HAMi writes MiB as a number and `m`."""
    return f"{text[:-1]} MiB" if text.endswith("m") else text


def _state(pod: Json, container: str) -> Json:
    status = pod.get("status", {})
    for each in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        if each["name"] == container:
            state: Json = each.get("state", {})
            return state
    return {}


Environments = Mapping[str, Mapping[str, str]]
"""variables by request"""


class ClaimKey(NamedTuple):
    namespace: str
    name: str
    uid: str


class ClaimDriver(Protocol):
    """What kubelet calls for ResourceClaims. Both calls may be repeated, and raise AllocateError."""

    async def prepare(self, claim: ClaimKey) -> Environments: ...

    async def unprepare(self, claim: ClaimKey) -> None: ...


@dataclass(frozen=True, slots=True)
class PreparedPodClaims:
    """What was prepared for a pod, by its own names of its claims."""

    claims: Mapping[str, Environments] = field(default_factory=dict)

    def environment(self, container: Json) -> dict[str, str]:
        """What the claims of a container add to it."""
        found: dict[str, str] = {}
        for each in (container.get("resources") or {}).get("claims") or ():
            requests = self.claims.get(each["name"], {})
            for name, variables in requests.items():
                if each.get("request") in (None, "", name):
                    found |= variables
        return found


class NodeClaims:
    """The claims of the pods on one node."""

    def __init__(self, client: KubeClient, driver: ClaimDriver | None) -> None:
        self._client = client
        self._driver = driver
        self._used: dict[str, list[ClaimKey]] = {}
        """by pod"""

    async def prepare(self, pod: Json) -> PreparedPodClaims:
        """Raises AllocateError or KubeError; then the call is to be repeated."""
        found: dict[str, Environments] = {}
        for own, name in _claims_of(pod).items():
            if self._driver is None:
                raise AllocateError("no driver for ResourceClaims is registered on the node")
            claim = await self._client.get(RESOURCE_CLAIMS.path(namespace_of(pod), name), ResourceClaim)
            if uid_of(pod) not in {each.uid for each in claim.status.reserved_for or ()}:
                raise AllocateError(f"ResourceClaim {name} is not reserved for the pod")
            key = ClaimKey(claim.metadata.namespace, name, claim.metadata.uid)
            used = self._used.setdefault(uid_of(pod), [])
            if key not in used:
                used.append(key)
            found[own] = await self._driver.prepare(key)
        return PreparedPodClaims(found)

    async def unprepare(self, uid: str) -> None:
        """The pod has ended. Claims that other pods of the node use stay prepared. Raises AllocateError; then the call
        is to be repeated."""
        for key in self._used.get(uid, ()):
            users = [user for user, claims in self._used.items() if key in claims]
            if self._driver is not None and users == [uid]:
                await self._driver.unprepare(key)
        self._used.pop(uid, None)


def _claims_of(pod: Json) -> dict[str, str]:
    """The names of its ResourceClaims, by its own names for them."""
    every = [*(pod["spec"].get("resourceClaims") or ()), *(pod.get("status", {}).get("resourceClaimStatuses") or ())]
    return {each["name"]: each["resourceClaimName"] for each in every if each.get("resourceClaimName")}
