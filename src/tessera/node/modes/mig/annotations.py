"""Completes the MIG reservations in a pod's annotation with the identity of the instances.

Only entries that belong to this claim and still reserve the same place are completed; everything else in the annotation
stays. After a conflict the annotation is read again: a conflict never fails a pod. Gives up after `TRIES`; the caller
sets the deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus

from tessera.kube.backoff import Backoff
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError, KubeError, Unreachable
from tessera.kube.resources import PODS
from tessera.node.handover.claims import PodKey
from tessera.wire.errors import WireError
from tessera.wire.keys import MIG_ALLOCATIONS
from tessera.wire.mig import MigAllocation, decode_mig_allocations, encode_mig_allocations
from tessera.wire.objects import Pod

TRIES = 10
PAUSES = Backoff(initial=0.1, cap=2.0)
LONGEST_PAUSE_S = 10.0
"""that a server may ask for: a container waits for this write to start"""
TRANSIENT = frozenset({HTTPStatus.CONFLICT, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})
"""status codes worth a retry, besides 500 and above"""

Write = Callable[[PodKey, Sequence[MigAllocation]], Awaitable[None]]
"""completes these reservations of a pod. Raises NotWritten"""


class NotWritten(Exception):
    """The reservations could not be completed; the text says why."""


class MigAnnotations:
    """Writes to one apiserver."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def write(self, pod: PodKey, completed: Sequence[MigAllocation]) -> None:
        failures = 0
        while True:
            try:
                return await self._try(pod, completed)
            except KubeError as error:
                # If the response was lost, the next read shows whether the write took effect.
                failures += 1
                if not _is_transient(error) or failures == TRIES:
                    raise NotWritten(f"pod {pod}: {error}") from error
                asked = error.retry_after if isinstance(error, ApiError) else None
                pause = max(min(asked or 0.0, LONGEST_PAUSE_S), PAUSES.delay(failures))
            await asyncio.sleep(pause)

    async def _try(self, pod: PodKey, completed: Sequence[MigAllocation]) -> None:
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


def _completed(pod: PodKey, text: str, completed: Sequence[MigAllocation]) -> str:
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


def _is_transient(error: KubeError) -> bool:
    if isinstance(error, ApiError):
        return error.status in TRANSIENT or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return isinstance(error, Unreachable)
