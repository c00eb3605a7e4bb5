"""The webhook as tests ask it, and its JSON patches applied by a library."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from tessera.core.fit.quota import QuotaFacts
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.devices import NodeFacts
from tessera.scheduler.admission.claim_owners import NO_CLAIMS, ClaimOwner
from tessera.scheduler.admission.pod_admission import admit
from tessera.scheduler.settings import Settings
from tessera.vendors.base import Switches, Vendor
from tessera.vendors.nvidia.backend import CHART
from tessera.vendors.registry import build_vendors
from tessera.wire.admission import Verdict


def patched(document: Any, operations: Iterable[Mapping[str, Any]]) -> Any:
    """A patched copy. Fails, as an apiserver does, if an operation does not fit the document."""
    # Through text, so that no two places share an object as places of a document in a test may.
    root = {"": json.loads(json.dumps(document))}
    for operation in operations:
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")]
        target: Any = root
        for part in parents:
            target = target[int(part)] if isinstance(target, list) else target[part]
        if isinstance(target, list):
            _edit_list(target, int(last), operation)
        else:
            _edit_object(target, last, operation)
    return root[""]


def _edit_list(target: list[Any], index: int, operation: Mapping[str, Any]) -> None:
    assert 0 <= index < len(target) + (operation["op"] == "add"), operation
    match operation["op"]:
        case "add":
            target.insert(index, copy.deepcopy(operation["value"]))
        case "replace":
            target[index] = copy.deepcopy(operation["value"])
        case "remove":
            del target[index]


def _edit_object(target: dict[str, Any], key: str, operation: Mapping[str, Any]) -> None:
    assert operation["op"] == "add" or key in target, operation
    if operation["op"] == "remove":
        del target[key]
    else:
        target[key] = copy.deepcopy(operation["value"])


SAMPLES = Path(__file__).parents[1] / "samples" / "admission"

Document = dict[str, Any]


@cache
def vendors(**nvidia: Any) -> Mapping[str, Vendor]:
    """All vendors, with the chart's values except for these of NVIDIA."""
    built = build_vendors(None, Switches(ascend=True, iluvatar=True))
    if not nvidia:
        return built
    changed = build_vendors({"nvidia": msgspec.structs.replace(CHART, **nvidia)}, Switches())
    return {**built, "NVIDIA": changed["NVIDIA"]}


def sample(name: str) -> Document:
    """The pod of a recorded request."""
    found: Document = json.loads((SAMPLES / f"{name}.request.json").read_text())["request"]["object"]
    return found


def container(
    name: str = "main",
    *,
    env: list[Document] | None = None,
    privileged: bool | None = None,
    limits: Mapping[str, Any] | None = None,
    **short: Any,
) -> Document:
    """Limits by their full names, or NVIDIA's by short ones; the apiserver has copied them into the requests."""
    amounts = {**(limits or {}), **{_NAMES[word]: value for word, value in short.items()}}
    made: Document = {"name": name, "image": "busybox", "resources": {}}
    if amounts:
        made["resources"] = {"limits": amounts, "requests": dict(amounts)}
    if env is not None:
        made["env"] = env
    if privileged is not None:
        made["securityContext"] = {"privileged": privileged}
    return made


_NAMES = {
    "gpu": "nvidia.com/gpu",
    "mem": "nvidia.com/gpumem",
    "percent": "nvidia.com/gpumem-percentage",
    "cores": "nvidia.com/gpucores",
    "priority": "nvidia.com/priority",
    "dcu": "hygon.com/dcunum",
}


GPU = container(gpu="1", mem="3k", cores="30")
PLAIN = container("plain")
VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def pod(
    *containers: Document,
    init: tuple[Document, ...] = (),
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> Document:
    metadata: Document = {"name": "p", "namespace": "team-a"}
    if annotations is not None:
        metadata["annotations"] = dict(annotations)
    if labels is not None:
        metadata["labels"] = dict(labels)
    made: Document = {"containers": list(containers), "schedulerName": "default-scheduler", **spec}
    if init:
        made["initContainers"] = list(init)
    return {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": made, "status": {}}


def verdict(
    document: Any,
    *,
    user: str = "",
    quota: Mapping[str, int] | None = None,
    used: Any = None,
    nodes: Sequence[NodeFacts] = (),
    claims: ClaimOwner = NO_CLAIMS,
    **how: Any,
) -> Verdict:
    """The webhook's verdict. `how`: `nvidia` has values of NVIDIA's section, everything else goes into the settings."""
    makers = vendors(**how.pop("nvidia", {}))
    ledger = Ledger(makers)
    if quota is not None:
        ledger.quotas.set_quota(QuotaFacts("team-a", "devices", quota))
    if used is not None:
        ledger.quotas.charge("team-a", "NVIDIA", used)
    for facts in nodes:
        ledger.observe_node(facts)
    before = copy.deepcopy(document)
    answer = admit(
        document,
        namespace="team-a",
        vendors=makers,
        settings=Settings(**how),
        ledger=ledger,
        user=user,
        claims=claims,
    )
    assert document == before, "the document itself must stay as it was"
    return answer


def surprises(document: Any, **how: Any) -> tuple[str, ...]:
    """The warnings, without the one that every share of cores gets."""
    return tuple(each for each in verdict(document, **how).warnings if "best effort" not in each)


def admitted(document: Document, **how: Any) -> Document:
    """The pod as it is stored. It must be allowed, and admitting it again must change nothing."""
    answer = verdict(document, **how)
    assert answer.allowed, answer.message
    stored: Document = patched(document, answer.patch)
    assert verdict(stored, **how).patch == ()
    return stored


def refusal(document: Document, **how: Any) -> str:
    answer = verdict(document, **how)
    assert not answer.allowed
    assert (answer.code, answer.reason, answer.patch) == (403, "Forbidden", ())
    return answer.message


def variables(made: Document) -> dict[str, Any]:
    """A container's variables: literal values, or the path of the field that a value is taken from."""
    return {
        entry["name"]: entry["valueFrom"]["fieldRef"]["fieldPath"] if "valueFrom" in entry else entry.get("value", "")
        for entry in made.get("env", [])
    }
