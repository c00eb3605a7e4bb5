"""Keeps the node's registration annotations up to date.

    every register_every_s, and at once when the fleet changes:  GET node -> compare -> one patch if it differs
    on failure:  again, after a pause that grows up to a bound

The live object is compared, so a deleted annotation comes back and a failed patch is repeated. While nothing is known
about the cards, the node keeps its annotations. Nothing is written after `run` ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import structlog

from tessera.core.model.devices import Device
from tessera.kube.backoff import Backoff, retry_on_error
from tessera.kube.client import KubeClient
from tessera.kube.errors import KubeError
from tessera.kube.event_broadcaster import EventBroadcaster, ObjectRef
from tessera.kube.resources import NODES
from tessera.node.fleet import Fleet
from tessera.node.registration.devices import AskLinks, PairScoreCache, registrable, registration_text
from tessera.node.settings import AgentSettings
from tessera.node.watched_value import WatchedValue
from tessera.vendors.nvidia import Nvidia
from tessera.vendors.nvidia.backend import PAIR_SCORES
from tessera.wire.keys import AGENT
from tessera.wire.objects import Node
from tessera.wire.registration import encode_pair_scores, encode_reported

log = structlog.get_logger(__name__)

PAUSES = Backoff(initial=1.0, cap=15.0, floor=0.5)
ASYMMETRIC_LINK = "AsymmetricGPUP2PLink"
"""reason of the event about two cards that report different links to each other"""
BY_DOWNWARD_API, BY_ALLOCATE = "env", "answer"
"""how slices reach containers, in the annotation AGENT"""


class NodeRegistrar:
    """Lives as long as the settings that it was built from."""

    def __init__(
        self,
        client: KubeClient,
        fleet: WatchedValue[Fleet],
        settings: AgentSettings,
        *,
        links: AskLinks,
        events: EventBroadcaster,
        now: Callable[[], datetime] = lambda: datetime.now().astimezone(),
    ) -> None:
        """`now` has the zone of this machine, because handshakes are in local time."""
        self._client = client
        self._fleet = fleet
        self._settings = settings
        self._pair_scores = PairScoreCache(links)
        self._events = events
        self._now = now
        self._path = NODES.path(name=settings.node_name)
        self._left_out: Mapping[str, str] = {}
        self._reported: frozenset[tuple[str, str]] = frozenset()
        self._problem = ""
        self._written = fleet.value
        """the fleet of the last try"""
        self.failures = 0
        """in a row"""
        self.done = asyncio.Event()
        """set when the node was up to date for the first time"""

    async def run(self) -> None:
        """Runs until cancelled. The annotations stay, because containers run on without the agent."""
        while True:
            await retry_on_error(self._register, backoff=PAUSES, is_retriable=self._report, pause=self._pause)
            if self._problem:
                log.info("registration works again", node=self._settings.node_name, failures=self.failures)
            self.failures, self._problem = 0, ""
            self.done.set()
            await self._pause(self._settings.register_every_s)

    async def _register(self) -> None:
        """Updates the node once. Raises KubeError."""
        self._written = self._fleet.value
        node = await self._client.get(self._path, Node)
        wanted = await self._wanted(node, self._written)
        different = {key: text for key, text in wanted.items() if node.annotations.get(key) != text}
        if different:
            await self._client.patch(self._path, {"metadata": {"annotations": different}})

    async def _pause(self, seconds: float) -> None:
        """Until the fleet is another than the one that was written last, at most so long."""
        await self._fleet.other_than(self._written, within=seconds)

    def _report(self, error: KubeError, failures: int) -> bool:
        self.failures, problem = failures, str(error)
        if problem != self._problem:
            log.warning("registration failed, will try again", node=self._settings.node_name, problem=problem)
        self._problem = problem
        return True

    async def _wanted(self, node: Node, fleet: Fleet) -> dict[str, str | None]:
        """Returns the wanted annotations; None for one that must not exist."""
        settings = self._settings
        if not settings.serves_pods:
            # The cards are published for ResourceClaims instead, and pods without claims must not get them.
            return dict.fromkeys((AGENT, Nvidia.keys.register, Nvidia.keys.handshake, PAIR_SCORES))
        way = BY_DOWNWARD_API if settings.uses_downward_api else BY_ALLOCATE
        wanted: dict[str, str | None] = {AGENT: ",".join((way, *sorted(settings.node.modes)))}
        if fleet.problem and not fleet.cards:
            return wanted
        answer = registrable(fleet, settings)
        self._log_left_out(answer.left_out)
        devices = answer.devices
        # No scheduler can read an empty text, and all take a missing registration for no cards.
        wanted[Nvidia.keys.register] = registration_text(devices, settings) if devices else None
        if settings.topology_scores:
            wanted |= await self._scores(devices, node)
        if settings.text_registration and devices:
            now = self._now()
            wanted[Nvidia.keys.handshake] = encode_reported(now, zone=now.tzinfo or UTC)
        return wanted

    async def _scores(self, devices: tuple[Device, ...], node: Node) -> dict[str, str | None]:
        if not devices:
            return {PAIR_SCORES: None}
        found = await self._pair_scores.scores(devices)
        if found is None:
            return {}
        ref = ObjectRef("Node", "", node.name, node.metadata.uid)
        for one, other in found.asymmetric:
            if (one, other) not in self._reported:
                text = f"{one} and {other} report different links to each other; their pair score is 0"
                self._events.record(ref, "Warning", ASYMMETRIC_LINK, text)
        self._reported = frozenset(found.asymmetric)
        return {PAIR_SCORES: encode_pair_scores(found.scores)}

    def _log_left_out(self, left_out: Mapping[str, str]) -> None:
        for uuid, reason in left_out.items():
            if self._left_out.get(uuid) != reason:
                log.warning("card is not registered", card=uuid, reason=reason)
        self._left_out = left_out
