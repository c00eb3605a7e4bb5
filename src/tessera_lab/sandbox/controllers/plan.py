"""What a controller wants: the status of its object, and the changes that bring the cluster closer to its spec.

Plans are made from the latest state and are idempotent: the loop makes a new one after every change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from tessera_lab.sandbox.api.creation import SUFFIX_LETTERS
from tessera_lab.sandbox.api.kinds import PODS, Json
from tessera_lab.sandbox.api.store import DECODE
from tessera_lab.sandbox.objects import condition_of, has_ended, is_being_deleted, name_of, namespace_of, uid_of

HASH_LETTERS = 10

_SORTED = msgspec.json.Encoder(order="sorted").encode


@dataclass(frozen=True, slots=True)
class PlannedEvent:
    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """A merge patch for an object, and the event that tells about it."""

    target: Json
    patch: Json
    event: PlannedEvent | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Deletions and changes come before creations."""

    status: Json
    delete: tuple[Json, ...] = ()
    change: tuple[Change, ...] = ()
    create: tuple[Json, ...] = ()
    events: tuple[PlannedEvent, ...] = ()
    """recorded if the status changes"""


Planner = Callable[[Json, Sequence[Json], str], Plan]
"""from an object, what it owns, and the time as the API writes it"""


def owner_reference(owner: Json) -> Json:
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": name_of(owner),
        "uid": uid_of(owner),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def controlled(owner: Json, kind: str, content: Json, **metadata: object) -> Json:
    """A new object that `owner` controls."""
    reference = owner_reference(owner)
    fixed = {"namespace": namespace_of(owner), "ownerReferences": [reference], **metadata}
    return {"apiVersion": "v1", "kind": kind, **content, "metadata": fixed}


def new_pod(owner: Json, *, name: str = "", labels: Json | None = None, annotations: Json | None = None) -> Json:
    """A pod of the owner's template; without a name, the apiserver makes one."""
    template = copied(owner["spec"]["template"])
    metadata = template["metadata"]
    naming = {"name": name} if name else {"generateName": f"{name_of(owner)}-"}
    return controlled(
        owner,
        PODS.kind,
        {"spec": template["spec"]},
        labels=metadata.get("labels", {}) | (labels or {}),
        annotations=(annotations or {}) | metadata.get("annotations", {}),
        **naming,
    )


def copied(part: Json) -> Json:
    found: Json = DECODE(_SORTED(part))
    return found


def template_hash(owner: Json) -> str:
    """A name for the owner's template: equal templates have equal names."""
    digest = hashlib.sha256(_SORTED(owner["spec"]["template"])).digest()
    return "".join(SUFFIX_LETTERS[byte % len(SUFFIX_LETTERS)] for byte in digest[:HASH_LETTERS])


def is_ready(pod: Json) -> bool:
    return (condition_of(pod, "Ready") or {}).get("status") == "True"


def active_pods(pods: Iterable[Json]) -> list[Json]:
    """Pods that count as replicas: neither ended nor being deleted."""
    return [pod for pod in pods if not has_ended(pod) and not is_being_deleted(pod)]


def make_condition(owner: Json, kind: str, status: bool, *, reason: str, message: str, at: str) -> Json:
    """The condition; its times change only if it does."""
    said = {"type": kind, "status": str(status), "reason": reason, "message": message}
    old = condition_of(owner, kind) or {}
    if all(old.get(key) == value for key, value in said.items()):
        return old
    since = old.get("lastTransitionTime", at) if old.get("status") == said["status"] else at
    return said | {"lastUpdateTime": at, "lastTransitionTime": since}


def counts(**numbers: int) -> Json:
    """Numbers of a status; zeros are left out, as Go does."""
    return {key: number for key, number in numbers.items() if number}
