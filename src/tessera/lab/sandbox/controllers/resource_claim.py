"""The ResourceClaim controller: makes claims for pods that name templates, and releases those of pods that ended.

pod names a template                  --> a claim that the pod owns, and its name in the pod's status
claim reserved for a pod that is over --> no longer reserved for it
reserved for none any more            --> no longer allocated, and no longer protected
pod ended                             --> the claims that were made for it are deleted; so they are when it is gone
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tessera.lab.sandbox.api import errors, writes
from tessera.lab.sandbox.api.api_state import RequestContext
from tessera.lab.sandbox.api.kinds import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, STATUS, Json
from tessera.lab.sandbox.api.request_url import RequestTarget
from tessera.lab.sandbox.api.store import StoreChange, Stored
from tessera.lab.sandbox.api.verbs import Verbs
from tessera.lab.sandbox.controllers.garbage_collector import GarbageCollector, ObjectKey, key_of, owner_references
from tessera.lab.sandbox.controllers.plan import copied, owner_reference
from tessera.lab.sandbox.objects import has_ended, is_being_deleted, uid_of

PROTECTION = "resource.kubernetes.io/delete-protection"
"""finalizer of claims that are allocated"""
POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
"""annotation: the pod's own name for a claim that was made for it"""


class ResourceClaimController:
    """Called by the loop of all controllers, one object at a time."""

    def __init__(self, verbs: Verbs, collector: GarbageCollector, *, call: RequestContext) -> None:
        self._verbs = verbs
        self._store = verbs.cluster.store
        self._collector = collector
        self._call = call

    def affected(self, change: StoreChange) -> Iterator[ObjectKey]:
        """What has to be looked at because of a change."""
        kind, content = change.new.kind, change.new.object
        if kind is RESOURCE_CLAIMS and not change.removed:
            yield key_of(change.new)
        if kind is not PODS or not content["spec"].get("resourceClaims"):
            return
        if change.removed or has_ended(content):
            for name in _claim_names(content):
                yield RESOURCE_CLAIMS, change.new.namespace, name
        else:
            yield key_of(change.new)

    async def sync(self, stored: Stored) -> None:
        """Raises StatusError if a write fails, or a template is missing."""
        if stored.kind is PODS:
            await self._make_claims(stored)
        elif stored.kind is RESOURCE_CLAIMS:
            await self._release(stored)

    # -- pods

    async def _make_claims(self, stored: Stored) -> None:
        pod = stored.object
        if is_being_deleted(pod) or has_ended(pod):
            return
        named: list[Json] = list(pod.get("status", {}).get("resourceClaimStatuses") or ())
        known = {each["name"] for each in named}
        for own in pod["spec"].get("resourceClaims") or ():
            if own["name"] not in known and own.get("resourceClaimTemplateName"):
                claim = self._made_before(stored, own["name"]) or await self._make(stored, own)
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
        template = self._store.get(RESOURCE_CLAIM_TEMPLATES, pod.namespace, own["resourceClaimTemplateName"])
        if template is None:
            raise errors.not_found(RESOURCE_CLAIM_TEMPLATES, own["resourceClaimTemplateName"])
        spec = copied(template.object["spec"])
        metadata: dict[str, Any] = spec.get("metadata") or {}
        content = {
            "apiVersion": RESOURCE_CLAIMS.api_version,
            "kind": RESOURCE_CLAIMS.kind,
            "metadata": {
                "generateName": f"{pod.name}-{own['name']}-",
                "namespace": pod.namespace,
                "labels": metadata.get("labels", {}),
                "annotations": {**metadata.get("annotations", {}), POD_CLAIM: own["name"]},
                "ownerReferences": [owner_reference(pod.object)],
            },
            "spec": spec["spec"],
        }
        made = await self._verbs.create(RequestTarget(RESOURCE_CLAIMS, pod.namespace), content, self._call)
        assert isinstance(made, Stored)
        return made

    # -- claims

    async def _release(self, stored: Stored) -> None:
        claim = stored.object
        status: Json = claim.get("status", {})
        reserved = status.get("reservedFor") or []
        kept = [each for each in reserved if self._is_live(stored.namespace, each)]
        # A scheduler protects a claim before it allocates it, so one that never was reserved is left alone.
        is_free = not kept and (bool(reserved) or is_being_deleted(claim))
        if len(kept) < len(reserved) or (is_free and status.get("allocation")):
            changed = {key: value for key, value in status.items() if key != "reservedFor"}
            if kept:
                changed["reservedFor"] = kept
            else:
                changed.pop("allocation", None)
            await writes.update(
                self._verbs.cluster,
                *key_of(stored),
                change=lambda content: content | {"status": changed},
                subresource=STATUS,
                call=self._call,
            )
        if is_free:
            await self._unprotect(stored)
        for reference in owner_references(claim):
            owner = self._store.get(PODS, stored.namespace, reference.get("name", ""))
            if owner is not None and owner.uid == reference.get("uid") and has_ended(owner.object):
                held = self._store.get(*key_of(stored))
                if held is not None and not is_being_deleted(held.object):
                    await self._collector.delete(held)

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

    def _is_live(self, namespace: str, consumer: Json) -> bool:
        pod = self._store.get(PODS, namespace, consumer.get("name", ""))
        return pod is not None and uid_of(pod.object) == consumer.get("uid") and not has_ended(pod.object)


def _claim_names(pod: Json) -> set[str]:
    """The claims that a pod uses."""
    every = [*(pod["spec"].get("resourceClaims") or ()), *(pod.get("status", {}).get("resourceClaimStatuses") or ())]
    return {each["resourceClaimName"] for each in every if each.get("resourceClaimName")}
