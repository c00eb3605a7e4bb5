"""The driver for ResourceClaims: what prepares them, what kubelet calls, and what publishes the cards.

    recover claims of an earlier process -> serve kubelet -> publish

Cards are published only after the node's classic registration is gone, and a card that a pod of the classic path still
holds is tainted: no card is offered to both worlds at once.
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

    async def run(self, *, unregistered: asyncio.Event) -> None:
        """Runs until cancelled, after the preparer has recovered. `unregistered`: the node's registration is gone."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.plugin.run())
                await unregistered.wait()
                group.create_task(self.publisher.run())
        finally:
            await self.preparer.stop()
