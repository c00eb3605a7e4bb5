"""Pods' requests for NVIDIA cards as ResourceClaims: the conversion, and the templates of which Kubernetes makes a
claim for each pod.

    convert --> created with the time of its use --> used: the time is renewed at most once an hour
                                                 --> not used for a day: deleted by the leader

A template of ours is named after a hash of what it asks for, so pods that ask for the same share one, every replica may
create it and none changes it. It is deleted only in the version that shows no use for a day: a replica that uses it
meanwhile has renewed its time, and the deletion fails. A wall clock that was set makes no template old: it must also
have been seen without another use for some hours. What a claim cannot say exactly stays as it is, with the reason. The
pod's annotations stay: policies and topology are the scheduler's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import structlog

from tessera.core.model.requests import Constraint, PodRequest, Request, Role
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError, KubeError, is_gone
from tessera.kube.resources import RESOURCE_CLAIM_TEMPLATES
from tessera.scheduler.admission.pod_draft import Document, containers_of, with_containers
from tessera.scheduler.informers.handler import InformerHandler
from tessera.vendors.drafts import BadPod
from tessera.vendors.nvidia import Nvidia
from tessera.vendors.nvidia.backend import MODES, narrow_modes
from tessera.vendors.parts.card_shares import WHOLE_MEMORY
from tessera.wire.golang import parse_integer
from tessera.wire.resource_api import API_VERSION, CORES, DRIVER, MEMORY, ClaimSpec, ResourceClaimTemplate

CLAIM = "tessera-gpu"
"""the pod's own name of its claim"""
PREFIX = "tessera-"
"""of the names of templates"""
HASH_DIGITS = 20
"""of a name: 80 bits, so that no two different requests of a namespace ever share one"""
LABEL = "tessera.io/converted"
"""label of templates that were made from requests"""


@dataclass(frozen=True, slots=True)
class Conversion:
    """A pod whose requests became a claim."""

    document: Document
    request: PodRequest
    """what the pod asks for beside the claim: nothing"""
    template: Document
    """the ResourceClaimTemplate that has to exist before the pod"""


@dataclass(frozen=True, slots=True)
class NotConverted:
    """Why a pod stays as it is."""

    text: str


def convert(
    document: Document, request: PodRequest, *, names: Collection[str], privileged: Collection[int] = ()
) -> Conversion | NotConverted:
    """The pod with a claim instead of its requests. `names` are NVIDIA's resources, `privileged` positions."""
    if request.vendors != (Nvidia.key,):
        return NotConverted("it asks for devices of other makers too")
    if any(each.get("name") == CLAIM for each in document["spec"].get("resourceClaims") or ()):
        return NotConverted(f"it has a claim named {CLAIM}")
    used = _requests_of_containers(request)
    if isinstance(used, NotConverted):
        return used
    containers = containers_of(document)
    for position in used:
        if position in privileged:
            return NotConverted(f"container {request.containers[position].name} is privileged")
        if (containers[position].get("resources") or {}).get("claims"):
            return NotConverted(f"container {request.containers[position].name} uses a claim of its own")
    constraint = narrow_modes(request, Nvidia.key)
    if isinstance(constraint, BadPod):
        return NotConverted(constraint.text)
    asked = {name: request.containers[place].requests[0] for place, name in used.items() if name == f"c{place}"}
    selectors = [{"cel": {"expression": each}} for each in _selectors(constraint)]
    template = _template(asked, selectors)
    changed = with_containers(
        document,
        [_claiming(each, used.get(position), names) for position, each in enumerate(containers)],
    )
    own = {"name": CLAIM, "resourceClaimTemplateName": template["metadata"]["name"]}
    spec = {**changed["spec"], "resourceClaims": [*(changed["spec"].get("resourceClaims") or ()), own]}
    bare = tuple(replace(each, requests=()) for each in request.containers)
    return Conversion({**changed, "spec": spec}, replace(request, containers=bare), template)


def _requests_of_containers(request: PodRequest) -> dict[int, str] | NotConverted:
    """The name of the claim's request that each container uses, by position.

    A claim is held as long as its pod, so an init container can only use what an app container needs anyway."""
    used: dict[int, str] = {}
    for position, container in enumerate(request.containers):
        for asked in container.requests:
            if asked.percent not in (0, WHOLE_MEMORY):
                return NotConverted(f"container {container.name}: a claim asks for memory in MiB, not in per cent")
            used[position] = f"c{position}"
    for position in [each for each in used if request.containers[each].role is Role.INIT]:
        container = request.containers[position]
        same = [
            name
            for place, name in used.items()
            if request.containers[place].role is Role.APP and request.containers[place].requests == container.requests
        ]
        if not same:
            return NotConverted(
                f"init container {container.name} asks for something that no app container asks for, and a claim would"
                " hold it until the pod ends"
            )
        used[position] = same[0]
    return used


def _claiming(container: Document, request: str | None, names: Collection[str]) -> Document:
    if request is None:
        return container
    resources = container.get("resources") or {}
    kept = {
        field: left
        for field, value in resources.items()
        if (left := _without(value, names) if field in ("limits", "requests") else value)
    }
    return {**container, "resources": {**kept, "claims": [{"name": CLAIM, "request": request}]}}


def _without(amounts: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in amounts.items() if name not in names}


def _template(asked: Mapping[str, Request], selectors: Sequence[Document]) -> Document:
    requests: list[Document] = []
    constraints: list[Document] = []
    for name, each in asked.items():
        exactly: Document = {"deviceClassName": DRIVER}
        if selectors:
            exactly["selectors"] = list(selectors)
        if each.count > 1:
            exactly["count"] = each.count
            # As many cards, not as many parts.
            constraints.append({"requests": [name], "distinctAttribute": f"{DRIVER}/uuid"})
        amounts = {MEMORY: f"{each.memory}Mi" if each.memory else "", CORES: str(each.cores) if each.cores else ""}
        if any(amounts.values()):
            exactly["capacity"] = {"requests": {name: text for name, text in amounts.items() if text}}
        requests.append({"name": name, "exactly": exactly})
    devices: Document = {"requests": requests}
    if constraints:
        devices["constraints"] = constraints
    spec = {"devices": devices}
    digits = sha256(json.dumps(spec, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:HASH_DIGITS]
    return {
        "apiVersion": API_VERSION,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": f"{PREFIX}{digits}", "labels": {LABEL: "true"}},
        "spec": {"spec": spec},
    }


def _selectors(constraint: Constraint) -> list[str]:
    """CEL for the pod's annotations about models, uuids and modes."""
    own = f"device.attributes['{DRIVER}']"
    found = []
    model = f"{own}.model.lowerAscii().contains"
    if constraint.use_models:
        found.append(" || ".join(f"{model}({_quoted(each)})" for each in constraint.use_models))
    found += [f"!{model}({_quoted(each)})" for each in constraint.avoid_models]
    if constraint.use_uuids:
        found.append(f"{own}.uuid in [{', '.join(map(_quoted, constraint.use_uuids))}]")
    if constraint.avoid_uuids:
        found.append(f"!({own}.uuid in [{', '.join(map(_quoted, constraint.avoid_uuids))}])")
    if constraint.mode is not None:
        modes = [each for each in MODES if constraint.names_mode(each)]
        found.append(f"{own}.mode in [{', '.join(map(_quoted, modes))}]")
    return found


def _quoted(text: str) -> str:
    """A CEL string; JSON's escapes are CEL's too."""
    return json.dumps(text, ensure_ascii=False)


log = structlog.get_logger(__name__)

USED = "tessera.io/used"
"""annotation: when a pod last named the template, in seconds since 1970"""
RENEW_S = 3600.0
KEEP_S = 24 * 3600.0
SEEN_S = 2 * RENEW_S
"""without another use, by a clock that is never set: one that is used is renewed within half of it"""
MAX_DELETED = 100
"""in one sweep, so that the webhook's other requests are not held up"""


class ClaimTemplates(InformerHandler[ResourceClaimTemplate]):
    """Handler of the informer."""

    def __init__(self, client: KubeClient, *, now: Callable[[], float], time: Callable[[], float]) -> None:
        """`now` is the wall clock in seconds since 1970, `time` measures."""
        super().__init__()
        self._client = client
        self._now = now
        self._time = time
        self._found: dict[str, ResourceClaimTemplate] = {}
        """by namespace/name"""
        self._used: dict[str, tuple[float, float]] = {}
        """the last use of each, and when it was first seen here"""

    # -- the informer

    def put(self, key: str, found: ResourceClaimTemplate) -> None:
        self._found[key], used = found, _last_use(found)
        if key not in self._used or self._used[key][0] != used:
            self._used[key] = used, self._time()

    def drop(self, key: str) -> None:
        self._found.pop(key, None)
        self._used.pop(key, None)

    def get(self, namespace: str, name: str) -> ClaimSpec | None:
        found = self._found.get(f"{namespace}/{name}")
        return None if found is None else found.spec.spec

    # -- those that are made of requests

    async def use(self, namespace: str, template: Mapping[str, Any]) -> None:
        """Creates a template, or records that it is used. Raises KubeError."""
        key = f"{namespace}/{template['metadata']['name']}"
        found = self._found.get(key)
        if found is not None and abs(self._now() - _last_use(found)) < RENEW_S:
            return
        try:
            self.put(key, await self._write(namespace, template, is_new=found is None))
        except ApiError as error:
            if not is_gone(error):
                raise
            # The watch is behind: another replica has created it, or deleted it.
            self.put(key, await self._write(namespace, template, is_new=found is not None))

    async def _write(self, namespace: str, template: Mapping[str, Any], *, is_new: bool) -> ResourceClaimTemplate:
        metadata, used = template["metadata"], {USED: str(int(self._now()))}
        if is_new:
            body = {**template, "metadata": {**metadata, "namespace": namespace, "annotations": used}}
            return await self._client.create(RESOURCE_CLAIM_TEMPLATES.path(namespace), body, ResourceClaimTemplate)
        path = RESOURCE_CLAIM_TEMPLATES.path(namespace, metadata["name"])
        return await self._client.patch(path, {"metadata": {"annotations": used}}, kind=ResourceClaimTemplate)

    async def sweep(self) -> int:
        """Deletes templates of ours without use for a day; returns how many."""
        limit, seen, deleted = self._now() - KEEP_S, self._time() - SEEN_S, 0
        used = self._used
        old = [
            each for key, each in self._found.items() if _is_ours(each) and used[key][0] < limit and used[key][1] < seen
        ]
        for each in old[:MAX_DELETED]:
            metadata = each.metadata
            path = RESOURCE_CLAIM_TEMPLATES.path(metadata.namespace, metadata.name)
            try:
                await self._client.delete(path, uid=metadata.uid, resource_version=metadata.resource_version)
            except KubeError as error:
                if not is_gone(error):
                    log.warning("an unused template is not deleted", template=metadata.name, error=str(error))
            else:
                deleted += 1
        return deleted


def _is_ours(template: ResourceClaimTemplate) -> bool:
    return (template.metadata.labels or {}).get(LABEL) == "true"


def _last_use(template: ResourceClaimTemplate) -> float:
    """When a pod last named it; never, if that cannot be read."""
    return parse_integer((template.metadata.annotations or {}).get(USED, "")) or 0
