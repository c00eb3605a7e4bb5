"""Builds the driver for ResourceClaims: what prepares them, what kubelet calls, and what publishes the cards.

    recover claims of an earlier process -> serve kubelet -> publish

Cards are published only after the node's classic registration is gone, and a card that a pod of the classic path still
holds is tainted: no card is offered to both worlds at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from tessera.kube.client import KubeClient
from tessera.node.dra.plugin import DraPlugin
from tessera.node.dra.prepared_claims import PreparedClaims
from tessera.node.dra.preparer import ClaimPreparer
from tessera.node.dra.publisher import SlicePublisher
from tessera.node.fleet import Fleet
from tessera.node.live_claims import ClaimSource
from tessera.node.modes.base import SharingMode
from tessera.node.modes.mig.records import boot_id
from tessera.node.registration.pair_scores import AskLinks
from tessera.node.settings import AgentSettings
from tessera.node.watched_value import WatchedValue
from tessera.wire.mig import split_legacy_uuid


class Driver:
    """Lives as long as the settings that it was built from."""

    def __init__(
        self,
        settings: AgentSettings,
        client: KubeClient,
        fleet: WatchedValue[Fleet],
        *,
        mode: SharingMode,
        prepared: PreparedClaims,
        pods: ClaimSource,
        links: AskLinks,
    ) -> None:
        """`pods` are those of the classic path that are still on the node."""
        self._pods = pods
        self.preparer = ClaimPreparer(client, settings, fleet, mode=mode, prepared=prepared, boot=boot_id())
        self.plugin = DraPlugin(settings, self.preparer)
        self.publisher = SlicePublisher(
            client, fleet, settings, links=links, held=self._held, held_version=pods.version
        )

    async def run(self, *, unregistered: asyncio.Event) -> None:
        """Runs until cancelled, after the preparer has recovered. `unregistered`: the node's registration is gone."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.plugin.run())
                await unregistered.wait()
                group.create_task(self.publisher.run())
        finally:
            await self.preparer.stop()

    def _held(self) -> Collection[str] | None:
        claims = self._pods.live_claims()
        if claims is None:
            return None
        return {split_legacy_uuid(each.uuid)[0] for claim in claims for each in claim.slices}
