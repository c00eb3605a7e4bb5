"""Writes why pods have no node, as the condition PodScheduled=False, without holding up the scheduling loop.

Only the latest condition of a pod is written, and only if it changed. None is written to a pod that is being bound:
binding waits in `settled`. A failed write is dropped; the next refusal writes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tessera.kube.client import STRATEGIC_PATCH, KubeClient
from tessera.kube.errors import KubeError
from tessera.kube.resources import PODS
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.objects import condition_of, format_timestamp, name_of, namespace_of, uid_of

SCHEDULED = "PodScheduled"


@dataclass(frozen=True, slots=True)
class UnscheduledReason:
    """Why a pod has no node."""

    reason: str
    """Unschedulable or SchedulerError"""
    message: str


class ConditionWriter:
    """Queues and writes conditions."""

    def __init__(self, client: KubeClient, *, now: Callable[[], float]) -> None:
        self._client = client
        self._now = now
        self._waiting: dict[str, tuple[Json, UnscheduledReason]] = {}
        self._some = asyncio.Event()
        self._writing: tuple[str, asyncio.Event] | None = None

    def note(self, pod: Json, why: UnscheduledReason) -> None:
        """Queues the condition; never blocks."""
        said = condition_of(pod, SCHEDULED) or {}
        uid = uid_of(pod)
        if (said.get("status"), said.get("reason"), said.get("message")) == ("False", why.reason, why.message):
            self._waiting.pop(uid, None)
        else:
            self._waiting[uid] = (pod, why)
            self._some.set()

    async def settled(self, uid: str) -> None:
        """Drops the pod's queued condition, and waits for one that is being written."""
        self._waiting.pop(uid, None)
        if self._writing is not None and self._writing[0] == uid:
            await self._writing[1].wait()

    async def run(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            while self._waiting:
                uid = next(iter(self._waiting))
                pod, why = self._waiting.pop(uid)
                done = asyncio.Event()
                self._writing = (uid, done)
                try:
                    await self._write(pod, why)
                except KubeError:
                    # The pod may be gone; if not, it will be refused and written again.
                    pass
                finally:
                    self._writing = None
                    done.set()

    async def _write(self, pod: Json, why: UnscheduledReason) -> None:
        said = condition_of(pod, SCHEDULED) or {}
        since = said.get("lastTransitionTime") if said.get("status") == "False" else None
        condition = {
            "type": SCHEDULED,
            "status": "False",
            "reason": why.reason,
            "message": why.message,
            "lastProbeTime": None,
            "lastTransitionTime": since or format_timestamp(self._now()),
        }
        body = {"metadata": {"uid": uid_of(pod)}, "status": {"conditions": [condition]}}
        await self._client.patch(
            PODS.path(namespace_of(pod), name_of(pod), "status"), body, content_type=STRATEGIC_PATCH
        )
