"""Asks kubelet which container holds which devices, through its PodResources API.

Never raises and never takes longer than its deadline: a kubelet without the API, or one that is busy, answers None,
which is logged when it begins and when it ends.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog

from tessera.node.handover.answers import Held

log = structlog.get_logger(__name__)

DEADLINE_S = 1.0
"""kubelet answers in milliseconds, and may be waiting for us meanwhile"""


class PodResources(Protocol):
    """kubelet's PodResources API, for the resource of this agent."""

    async def list(self) -> Held: ...


class Holdings:
    """What kubelet says; `resources` is None where it is not to be asked."""

    def __init__(self, resources: PodResources | None) -> None:
        self._resources = resources
        self._silent = False

    @property
    def speaks(self) -> bool:
        """Whether kubelet would say who holds what, as far as is known."""
        return self._resources is not None and not self._silent

    async def ask(self) -> Held | None:
        if self._resources is None:
            return None
        try:
            async with asyncio.timeout(DEADLINE_S):
                held = await self._resources.list()
        except Exception as error:
            # Whatever goes wrong there, pods are still handed over; their own status tells the rest.
            if not self._silent:
                log.warning("kubelet does not say who holds which devices", error=str(error) or type(error).__name__)
            self._silent = True
            return None
        if self._silent:
            log.info("kubelet says again who holds which devices")
        self._silent = False
        return held
