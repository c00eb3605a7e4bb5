"""ResourceClaimTemplates: what the informer shows of them, and those that the webhook makes of requests.

    convert --> created with the time of its use --> used: the time is renewed at most once an hour
                                                 --> not used for a day: deleted by the leader

A template of ours is named after its content, so every replica may create it and none changes it. It is deleted only in
the version that shows no use for a day: a replica that uses it meanwhile has renewed its time, and the deletion fails.
A wall clock that was set makes no template old: it must also have been seen without another use for some hours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError, KubeError, is_gone
from tessera.kube.resources import RESOURCE_CLAIM_TEMPLATES
from tessera.scheduler.admission.claim_conversion import LABEL
from tessera.scheduler.informers.handler import InformerHandler
from tessera.wire.golang import parse_integer
from tessera.wire.resource_api import ClaimSpec, ResourceClaimTemplate

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
