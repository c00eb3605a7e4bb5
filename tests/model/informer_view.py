"""What the informers of one process have been shown, read as the ledger should have read it.

Whether a plugin is alive is decided here by a rule of its own, from the words of the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from tessera.core.fit.quota import QuotaFacts
from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger, replay
from tessera.core.model.devices import NodeFacts
from tessera.vendors.base import Vendor
from tessera.vendors.claims.allocations import claim_facts
from tessera.vendors.claims.pools import PoolDevices, pool_devices, with_published
from tessera.vendors.node_reader import node_facts, quota_facts
from tessera.vendors.pod_reader import PodReader, claim_parts
from tessera.wire.objects import Node, Pod, ResourceQuota
from tessera.wire.resource_api import ResourceClaim, ResourceSlice
from tests.model import virtual_time
from tests.model.machines import HANDSHAKE, XPU_HANDSHAKE, XPU_REGISTER
from tests.model.shapes import GPU, XPU
from tests.support.builders import REGISTER
from tests.support.claim_scheduler import holders

ANSWER_S = 60
"""in which a plugin answers a handshake, or is taken for dead"""
PLUGINS = {"NVIDIA": (REGISTER, HANDSHAKE, GPU), "XPU": (XPU_REGISTER, XPU_HANDSHAKE, XPU)}
"""vendor: registration, handshake, resource"""
ASKED = "Requesting_"


class InformerView:
    """Told about every object that reaches a sink, after the sink."""

    def __init__(self, vendors: Mapping[str, Vendor], now: Callable[[], float]) -> None:
        """`now` is the process's wall clock, which may be set."""
        self._vendors = vendors
        self._now = now
        self._asked: dict[tuple[str, str], tuple[str, float]] = {}
        """node and vendor: the handshake, and until when it may be answered, in the loop's time"""
        self.pods: dict[str, PodFacts] = {}
        self.raw_pods: dict[str, Pod] = {}
        """by uid, of pods that hold devices"""
        self.nodes: dict[str, NodeFacts] = {}
        self.raw_nodes: dict[str, Node] = {}
        self._registered: dict[str, NodeFacts] = {}
        """without what ResourceSlices say of them"""
        self.quotas: dict[str, QuotaFacts] = {}
        self.slices: dict[str, ResourceSlice] = {}
        self.raw_claims: dict[str, ResourceClaim] = {}
        """in the newest version that the process was shown, or told in an answer"""

    def pod(self, key: str, pod: Pod | None) -> None:
        old = self.pods.pop(key, None)
        if old is not None:
            del self.raw_pods[old.uid]
        facts = PodReader(self._vendors).facts(pod) if pod is not None else None
        if pod is not None and facts is not None:
            self.pods[key] = facts
            self.raw_pods[facts.uid] = pod

    def node(self, key: str, node: Node | None) -> None:
        if node is None:
            self.raw_nodes.pop(key, None)
            self.nodes.pop(key, None)
            self._registered.pop(key, None)
            self._asked = {asked: until for asked, until in self._asked.items() if asked[0] != key}
        else:
            self.raw_nodes[key] = node
            self._read(node)

    def quota(self, key: str, quota: ResourceQuota | None) -> None:
        self.quotas.pop(key, None)
        if quota is not None:
            self.quotas[key] = quota_facts(quota, self._vendors)

    def slice(self, key: str, found: ResourceSlice | None) -> None:
        self.slices.pop(key, None)
        if found is not None:
            self.slices[key] = found
        for name, facts in self._registered.items():
            self.nodes[name] = self._join(facts)

    def claim(self, key: str, claim: ResourceClaim | None) -> None:
        known = self.raw_claims.get(key)
        if claim is None:
            if known is not None:
                del self.raw_claims[key]
        elif known is None or known.metadata.uid != claim.metadata.uid or _version(claim) >= _version(known):
            self.raw_claims[key] = claim

    def answered(self, claim: ResourceClaim) -> None:
        """The process got the claim as the answer to a call. It may be gone since."""
        key = f"{claim.metadata.namespace}/{claim.metadata.name}"
        known = self.raw_claims.get(key)
        if known is not None and known.metadata.uid == claim.metadata.uid:
            self.claim(key, claim)

    @property
    def pools(self) -> dict[str, PoolDevices]:
        return {each.spec.pool.name: pool_devices([each]) for each in self.slices.values()}

    @property
    def holders(self) -> list[PodFacts]:
        """What pods and claims hold."""
        pools = self.pools if self.raw_claims else {}
        pods = ((facts, claim_parts(self.raw_pods[facts.uid])) for facts in self.pods.values())
        return holders(pods, [claim_facts(claim, pools) for claim in self.raw_claims.values()])

    def tick(self) -> None:
        """Time has passed, which matters only for handshakes."""
        for node in self.raw_nodes.values():
            if any(ASKED in node.annotations.get(key, "") for key in (HANDSHAKE, XPU_HANDSHAKE)):
                self._read(node)

    def ledger(self) -> Ledger:
        """A replay of everything that was delivered."""
        return replay(self._vendors, nodes=self.nodes.values(), pods=self.holders, quotas=self.quotas.values())

    def _read(self, node: Node) -> None:
        alive = {key: vendor for key, vendor in self._vendors.items() if self._is_alive(node, key)}
        facts = node_facts(node, alive)
        self._registered.pop(node.name, None)
        self.nodes.pop(node.name, None)
        if facts.devices or facts.problem:
            self._registered[node.name] = facts
            self.nodes[node.name] = self._join(facts)

    def _join(self, facts: NodeFacts) -> NodeFacts:
        found = [each for each in self.slices.values() if each.spec.pool.name == facts.name]
        return replace(facts, devices=with_published(facts.devices, pool_devices(found))) if found else facts

    def _is_alive(self, node: Node, vendor: str) -> bool:
        register, handshake, resource = PLUGINS.get(vendor, ("", "", ""))
        if register not in node.annotations:
            return True
        said = node.annotations.get(handshake)
        provided = node.allocatable.get(resource)
        if said is None:
            return provided is None or int(provided) != 0
        if not said.startswith(ASKED):
            return True
        time, key = virtual_time.now(), (node.name, vendor)
        if self._asked.get(key, ("", 0.0))[0] != said:
            age = self._now() - datetime.fromisoformat(said.removeprefix(ASKED)).replace(tzinfo=UTC).timestamp()
            self._asked[key] = said, time + ANSWER_S - max(age, 0.0)
        return time < self._asked[key][1] or int(provided or 0) > 0


def _version(claim: ResourceClaim) -> int:
    return int(claim.metadata.resource_version)
