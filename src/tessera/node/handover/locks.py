"""Releases the node's lock, as the plugin that a pod was handed over by has to.

Idempotent, and only ever the lock of the pod that is meant, or one that names nobody: somebody else's stays where it
is, also if it was taken a moment ago. Taking locks is the scheduler's.
"""

from __future__ import annotations

import asyncio
import random

import structlog

from tessera.kube.backoff import Backoff
from tessera.kube.errors import KubeError
from tessera.node.handover.kube_api import Cluster
from tessera.node.handover.pods import Owner
from tessera.wire.keys import NODE_LOCK

log = structlog.get_logger(__name__)

TRIES = 5
PAUSES = Backoff(initial=0.1, cap=1.6, floor=0.05)


class NodeLockRelease:
    """The lock of one node."""

    def __init__(self, cluster: Cluster, node: str, *, rng: random.Random | None = None) -> None:
        self._cluster = cluster
        self._node = node
        self._rng = rng or random.Random()

    async def release(self, owner: Owner) -> bool:
        """Whether the lock is not this pod's any more. Never raises: what stays is the janitor's, or expires."""
        first: str | None = None
        for attempt in range(1, TRIES + 1):
            try:
                node = await self._cluster.get_node(self._node)
                text = node.annotations.get(NODE_LOCK)
                first = first or text
                if text is None or not _is_of(text, owner, first):
                    return True
                version = node.metadata.resource_version
                await self._cluster.annotate_node(self._node, {NODE_LOCK: None}, resource_version=version)
            except KubeError as error:
                problem = str(error)
            else:
                return True
            if attempt < TRIES:
                await asyncio.sleep(PAUSES.delay(attempt, self._rng))
        log.warning("node lock not released", node=self._node, pod="/".join(owner), error=problem)
        return False


def _is_of(text: str, owner: Owner, first: str | None) -> bool:
    """A lock without an owner is anybody's, as long as it is still the one that was there at first."""
    return text.endswith("," + ",".join(owner)) if "," in text else text == first
