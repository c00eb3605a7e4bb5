"""`status.nominatedNodeName` of pods for which others leave: kube-scheduler then keeps CPU and memory free for them.

Nothing here depends on it. A write that fails is not repeated: the pod is bound all the same, or the next decider
removes what is left (`takeover`).
"""

from __future__ import annotations

import asyncio

import structlog

from tessera.core.model.requests import PodRequest
from tessera.kube.errors import KubeError
from tessera.scheduler.kube_api import KubeApi

log = structlog.get_logger(__name__)

CONCURRENT = 8
"""writes under way at once: a gang has many members"""


class NominatedNodes:
    """What is to be written, one write per pod at a time. The last word on a pod counts."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._wanted: dict[str, tuple[PodRequest, str | None]] = {}
        """by uid"""
        self._left: list[tuple[PodRequest, str | None]] = []
        """what is being written"""
        self._changed = asyncio.Event()

    def set(self, request: PodRequest, node: str | None) -> None:
        """None removes it."""
        self._wanted[request.uid] = request, node
        self._changed.set()

    def forget(self) -> None:
        """This replica stops deciding: the next decider removes what is left."""
        self._wanted.clear()
        self._left.clear()

    async def run(self) -> None:
        """Writes every change until cancelled."""
        while True:
            await self._changed.wait()
            await self.write()

    async def write(self) -> None:
        """All that is wanted by now."""
        self._changed.clear()
        self._left, self._wanted = list(self._wanted.values()), {}
        await asyncio.gather(*(self._write_some() for _ in range(CONCURRENT)))

    async def _write_some(self) -> None:
        while self._left:
            request, node = self._left.pop()
            try:
                await self._api.set_nominated_node(request.namespace, request.name, uid=request.uid, node=node)
            except KubeError as error:
                log.warning("nominated node not written", pod=f"{request.namespace}/{request.name}", error=str(error))
