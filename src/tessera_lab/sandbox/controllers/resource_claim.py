"""The ResourceClaim controller: makes claims for pods that name templates, and releases those of pods that are over.

pod names a template                        --> a claim that the pod owns, and its name in the pod's status
pod bound, its claim allocated for others   --> reserved for the pod as well
claim reserved for a pod that is over       --> no longer reserved for it
reserved for none any more, and protected   --> no longer allocated, and no longer protected
pod is over                                 --> the claims that were made for it are deleted, as when it is gone

A pod is over when it has ended, or was deleted before it was bound. Other consumers than pods are left alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from tessera_lab.sandbox.api import writes
from tessera_lab.sandbox.api.api_state import RequestContext
from tessera_lab.sandbox.api.errors import StatusError
from tessera_lab.sandbox.api.kinds import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, STATUS, Json
from tessera_lab.sandbox.api.requests import RequestTarget
from tessera_lab.sandbox.api.store import StoreChange, Stored
from tessera_lab.sandbox.api.verbs import Verbs
from tessera_lab.sandbox.controllers.garbage_collector import GarbageCollector, ObjectKey, key_of, owner_references
from tessera_lab.sandbox.controllers.workloads import PlannedEvent, copied
from tessera_lab.sandbox.objects import has_ended, is_being_deleted, node_of, uid_of

PROTECTION = "resource.kubernetes.io/delete-protection"
"""finalizer of claims that are allocated"""
POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
"""annotation: the pod's own name for a claim that was made for it"""
MAX_CONSUMERS = 256
"""entries of `reservedFor`; the API accepts no more"""
MAX_GENERATE_NAME = 57
"""characters of pod and claim in a generated name, hyphens included"""

Record = Callable[[Stored, PlannedEvent], Awaitable[None]]
"""writes an event about an object"""


class ResourceClaimController:
    """Called by the loop of all controllers, one object at a time."""

    def __init__(self, verbs: Verbs, collector: GarbageCollector, *, call: RequestContext, record: Record) -> None:
        self._verbs = verbs
        self._store = verbs.cluster.store
        self._collector = collector
        self._call = call
        self._record = record
        self._users: dict[ObjectKey, dict[ObjectKey, None]] = {}
        """claim or template -> pods that name it"""

    def affected(self, change: StoreChange) -> Iterator[ObjectKey]:
        """What has to be looked at because of a change."""
        kind, key, content = change.new.kind, key_of(change.new), change.new.object
        if kind in (RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES) and not change.removed:
            yield key
            yield from self._users.get(key, ())
        if kind is not PODS or not content["spec"].get("resourceClaims"):
            return
        for used in _used_by(change.new):
            users = self._users.setdefault(used, {})
            users[key] = None
            if change.removed:
                del users[key]
            if not users:
                del self._users[used]
            if used[0] is RESOURCE_CLAIMS and (change.removed or _is_over(content)):
                yield used
        if not change.removed:
            yield key

    async def sync(self, stored: Stored) -> None:
        """Raises StatusError if a write fails, or a template is missing."""
        if stored.kind is PODS and not is_being_deleted(stored.object) and not has_ended(stored.object):
            await self._make_claims(stored)
            if node_of(stored.object):
                await self._reserve(stored)
        elif stored.kind is RESOURCE_CLAIMS:
            await self._release(stored)

    # -- pods

    async def _make_claims(self, stored: Stored) -> None:
        pod = stored.object
        named: list[Json] = list(pod.get("status", {}).get("resourceClaimStatuses") or ())
        known = {each["name"] for each in named}
        for own in pod["spec"].get("resourceClaims") or ():
            if own["name"] not in known and own.get("resourceClaimTemplateName"):
                try:
                    claim = self._made_before(stored, own["name"]) or await self._make(stored, own)
                except StatusError as error:
                    text = f"PodResourceClaim {own['name']}: {error.message}"
                    await self._record(stored, PlannedEvent("FailedResourceClaimCreation", text, warning=True))
                    raise
                named.append({"name": own["name"], "resourceClaimName": claim.name})
        if len(named) == len(known):
            return

        def change(content: Json) -> Json:
            return {**content, "status": {**content.get("status", {}), "resourceClaimStatuses": named}}

        await writes.update(self._verbs.cluster, *key_of(stored), change=change, subresource=STATUS, call=self._call)

    def _made_before(self, pod: Stored, name: str) -> Stored | None:
        """A claim that was made for the pod, and whose name could not be written."""
        for each in self._store.list(RESOURCE_CLAIMS, pod.namespace):
            owners = {reference.get("uid") for reference in owner_references(each.object)}
            if pod.uid in owners and each.object["metadata"].get("annotations", {}).get(POD_CLAIM) == name:
                return each
        return None

    async def _make(self, pod: Stored, own: Json) -> Stored:
        name = own["resourceClaimTemplateName"]
        template = self._store.get(RESOURCE_CLAIM_TEMPLATES, pod.namespace, name)
        if template is None:
            raise StatusError(404, "NotFound", f'resource claim template "{name}": not found')
        spec = copied(template.object["spec"])
        metadata: dict[str, Any] = spec.get("metadata") or {}
        content = {
            "apiVersion": RESOURCE_CLAIMS.api_version,
            "kind": RESOURCE_CLAIMS.kind,
            "metadata": {
                "generateName": _generate_name(pod.name, own["name"]),
                "namespace": pod.namespace,
                "labels": metadata.get("labels", {}),
                "annotations": {**metadata.get("annotations", {}), POD_CLAIM: own["name"]},
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid, "controller": True}
                ],
            },
            "spec": spec["spec"],
        }
        made = await self._verbs.create(RequestTarget(RESOURCE_CLAIMS, pod.namespace), content, self._call)
        assert isinstance(made, Stored)
        return made

    # -- claims

    async def _reserve(self, pod: Stored) -> None:
        """For a pod that was bound by another than a scheduler."""
        for key in _used_by(pod):
            claim = self._store.get(*key) if key[0] is RESOURCE_CLAIMS else None
            status: Json = claim.object.get("status", {}) if claim is not None else {}
            consumers = status.get("reservedFor") or []
            is_reserved = any(each.get("uid") == pod.uid for each in consumers)
            if claim is not None and status.get("allocation") and not is_reserved and len(consumers) < MAX_CONSUMERS:
                consumer = {"resource": "pods", "name": pod.name, "uid": pod.uid}
                await self._write_status(claim, status | {"reservedFor": [*consumers, consumer]})

    async def _release(self, stored: Stored) -> None:
        claim = stored.object
        status: Json = claim.get("status", {})
        reserved = status.get("reservedFor") or []
        kept = [each for each in reserved if self._needs(stored.namespace, each)]
        is_released = len(kept) < len(reserved)
        # A scheduler protects a claim before it allocates it, so one that never was reserved is left alone.
        is_free = not kept and PROTECTION in claim["metadata"].get("finalizers", ())
        is_free = is_free and (is_released or is_being_deleted(claim))
        if is_released or (is_free and status.get("allocation")):
            changed = {key: value for key, value in status.items() if key != "reservedFor"}
            if kept:
                changed["reservedFor"] = kept
            if is_free:
                changed.pop("allocation", None)
            await self._write_status(stored, changed)
        if is_free:
            await self._unprotect(stored)
        if not kept:
            await self._delete_generated(stored)

    async def _delete_generated(self, stored: Stored) -> None:
        """If it was made for a pod that is over; the garbage collector knows pods that are gone."""
        for reference in owner_references(stored.object):
            owner = self._store.get(PODS, stored.namespace, reference.get("name", ""))
            if owner is not None and (owner.uid != reference.get("uid") or _is_over(owner.object)):
                held = self._store.get(*key_of(stored))
                if held is not None and not is_being_deleted(held.object):
                    await self._collector.delete(held)

    async def _write_status(self, claim: Stored, status: Json) -> None:
        await writes.update(
            self._verbs.cluster,
            *key_of(claim),
            change=lambda content: content | {"status": status},
            subresource=STATUS,
            call=self._call,
        )

    async def _unprotect(self, stored: Stored) -> None:
        if PROTECTION not in stored.object["metadata"].get("finalizers", ()):
            return

        def change(content: Json) -> Json:
            kept = [each for each in content["metadata"].get("finalizers", ()) if each != PROTECTION]
            content["metadata"]["finalizers"] = kept
            if not kept:
                del content["metadata"]["finalizers"]
            return content

        await writes.update(self._verbs.cluster, *key_of(stored), change=change, call=self._call)

    def _needs(self, namespace: str, consumer: Json) -> bool:
        """Whether a consumer of a claim may still use it."""
        if consumer.get("apiGroup") or consumer.get("resource") != "pods":
            return True
        pod = self._store.get(PODS, namespace, consumer.get("name", ""))
        return pod is not None and uid_of(pod.object) == consumer.get("uid") and not _is_over(pod.object)


def _is_over(pod: Json) -> bool:
    return has_ended(pod) or (is_being_deleted(pod) and not node_of(pod))


def _used_by(pod: Stored) -> list[ObjectKey]:
    """The claims and templates that a pod names."""
    status = pod.object.get("status", {}).get("resourceClaimStatuses") or ()
    found: dict[ObjectKey, None] = {}
    for each in (*(pod.object["spec"].get("resourceClaims") or ()), *status):
        if each.get("resourceClaimName"):
            found[RESOURCE_CLAIMS, pod.namespace, each["resourceClaimName"]] = None
        if each.get("resourceClaimTemplateName"):
            found[RESOURCE_CLAIM_TEMPLATES, pod.namespace, each["resourceClaimTemplateName"]] = None
    return list(found)


def _generate_name(pod: str, claim: str) -> str:
    """If too long, both names are cut in proportion to their lengths."""
    full = f"{pod}-{claim}-"
    if len(full) <= MAX_GENERATE_NAME:
        return full
    cut = f"{pod[: len(pod) * MAX_GENERATE_NAME // len(full)]}-"
    return cut + claim[: len(claim) * MAX_GENERATE_NAME // len(full)]
