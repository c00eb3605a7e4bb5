"""Completes the MIG reservations in a pod's annotation with the identity of the instances.

Only entries that belong to this assignment and still reserve the same place are completed; everything else in the
annotation stays. After a conflict the annotation is read again: a conflict never fails a pod. Gives up after `TRIES`;
the caller sets the deadline.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from tessera.kube.backoff import Backoff, retry_on_error
from tessera.kube.client import KubeClient
from tessera.kube.errors import KubeError, is_conflict
from tessera.kube.resources import PODS
from tessera.node.handover.assignments import ObjectKey
from tessera.wire.errors import WireError
from tessera.wire.keys import MIG_ALLOCATIONS
from tessera.wire.mig import MigAllocation, decode_mig_allocations, encode_mig_allocations
from tessera.wire.objects import Pod

TRIES = 10
PAUSES = Backoff(initial=0.1, cap=2.0)

Write = Callable[[ObjectKey, Sequence[MigAllocation]], Awaitable[None]]
"""completes these reservations of a pod. Raises NotWritten"""


class NotWritten(Exception):
    """The reservations could not be completed; the text says why."""


class MigAnnotations:
    """Writes to one apiserver."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def write(self, pod: ObjectKey, completed: Sequence[MigAllocation]) -> None:
        try:
            await retry_on_error(lambda: self._try(pod, completed), backoff=PAUSES, is_retriable=_is_retriable)
        except KubeError as error:
            raise NotWritten(f"pod {pod}: {error}") from error

    async def _try(self, pod: ObjectKey, completed: Sequence[MigAllocation]) -> None:
        path = PODS.path(pod.namespace, pod.name)
        live = await self._client.get(path, Pod)
        if live.metadata.uid != pod.uid:
            raise NotWritten(f"pod {pod} is gone; another has its name")
        before = live.annotations.get(MIG_ALLOCATIONS, "")
        after = _completed(pod, before, completed)
        if after != before:
            metadata = {
                "uid": pod.uid,
                "resourceVersion": live.metadata.resource_version,
                "annotations": {MIG_ALLOCATIONS: after},
            }
            await self._client.patch(path, {"metadata": metadata})


def _completed(pod: ObjectKey, text: str, completed: Sequence[MigAllocation]) -> str:
    """Returns the annotation with these entries completed; unchanged if they already are."""
    try:
        entries = {(each.container, each.device): each for each in decode_mig_allocations(text)}
        known = dict(entries)
        for each in completed:
            entry = known.get((each.container, each.device))
            if entry is None or (entry.uuid, entry.slot) != (each.uuid, each.slot):
                raise NotWritten(
                    f"pod {pod} no longer reserves this MIG instance (container {each.container}, device {each.device})"
                )
            known[each.container, each.device] = each
        return text if known == entries else encode_mig_allocations(known.values())
    except WireError as error:
        raise NotWritten(f"pod {pod}: {error}") from error


def _is_retriable(error: KubeError, failures: int) -> bool:
    return failures < TRIES and (error.is_transient or is_conflict(error))
