"""Turns a pod's requests for NVIDIA cards into one ResourceClaim, made of a template by Kubernetes for each pod: pure.

The template's name is a hash of what it asks for. So pods that ask for the same share one, and pods of a ReplicaSet get
claims with names of their own. What a claim cannot say exactly stays as it is, with the reason. The pod's annotations
stay: policies and topology are the scheduler's.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from tessera.core.model.requests import Constraint, PodRequest, Request, Role
from tessera.scheduler.admission.pod_draft import Document, containers_of, with_containers
from tessera.vendors.drafts import BadPod
from tessera.vendors.nvidia import Nvidia
from tessera.vendors.nvidia.backend import MODES, narrow_modes
from tessera.vendors.parts.card_shares import WHOLE_MEMORY
from tessera.wire.resource_api import API_VERSION, CORES, DRIVER, MEMORY

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
