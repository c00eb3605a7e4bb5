"""The driver for ResourceClaims: what prepares them, what kubelet calls, and what publishes the cards.

    recover claims of an earlier process -> serve kubelet -> publish

Each card has one allocator. If that is kube-scheduler, cards are published only after the node's classic registration
is gone, and a card that a pod of the classic path still holds is tainted. If it is Tessera's scheduler, every device is
tainted for the others, and the node is registered only after that (`published`).
"""

from __future__ import annotations

import asyncio

from tessera.node.dra.plugin import DraPlugin
from tessera.node.dra.preparer import ClaimPreparer
from tessera.node.dra.publisher import SlicePublisher
from tessera.node.settings import AgentSettings


class Driver:
    """Lives as long as the settings that it was built from."""

    def __init__(self, settings: AgentSettings, preparer: ClaimPreparer, publisher: SlicePublisher) -> None:
        self.preparer = preparer
        self.publisher = publisher
        self.plugin = DraPlugin(settings, preparer)

    @property
    def problem(self) -> str:
        """Why claims cannot be served; empty if they can."""
        if self.plugin.problem:
            return f"kubelet cannot use the driver for ResourceClaims: {self.plugin.problem}"
        return self.publisher.problem

    async def run(self, *, after: asyncio.Event | None) -> None:
        """Runs until cancelled, after the preparer has recovered. Publishes `after` an event."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.plugin.run())
                if after is not None:
                    await after.wait()
                group.create_task(self.publisher.run())
        finally:
            await self.preparer.stop()
