"""What must hold for every binding that is written, by the truth alone: the API objects, counted independently.

A pod gets exactly what it asked for, once; no card and no quota is overdrawn; no two pods that a node could mix up are
handed over at once; a foreign plugin's lock is held. A card or a namespace has an excuse while people, not the
scheduler, made it too full: its registration or quota shrank, or another scheduler bound a pod there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from tessera.scheduler.queue.allocation_queue import DOWNWARD_API_WAIT_S
from tessera.wire.keys import AGENT, ASSIGNED_NODE, BIND_PHASE, NODE_LOCK, PHASE_ALLOCATING, visible_devices
from tessera.wire.objects import Pod
from tessera.wire.resource_api import DRIVER, ResourceClaim
from tests.model import claims, device_usage
from tests.model.apiserver import SimulatedApiserver
from tests.model.shapes import CORES, MEMORY, MIB_PER_MLU_UNIT, MLU_CORES, MLU_MEMORY, NEVER_WHOLE, XPU_MEMORY

SETTLED_S = 150.0
"""a handover older than this may have been forgotten: its turn began before its binding was written"""
MLU_SETTLED_S = 60.0
"""the same for a pod with Cambricon's lock alone, which expires after 120 s instead of 300 s"""
MLU_LOCK = "cambricon.com/dsmlu.lock"

LIMITS = {
    "NVIDIA": ((MEMORY, 1), (CORES, 1)),
    "MLU": ((MLU_MEMORY, MIB_PER_MLU_UNIT), (MLU_CORES, 1)),
    "XPU": ((XPU_MEMORY, 1), ("", 1)),
}
"""vendor: the resources whose quotas limit memory and cores, and MiB a unit"""


@dataclass
class Handing:
    """A pod between its binding and the end of its handover, in the truth."""

    pod: Pod
    since: float
    depends_on_allocate: bool
    counts: frozenset[int]
    """devices of its containers"""

    def may_be_taken_for(self, earlier: Handing) -> bool:
        """Whether an Allocate call could be meant for either, and the later pod should have waited."""
        if not self.depends_on_allocate:
            return False  # It passes a dependent pod that is stuck.
        return earlier.depends_on_allocate or not self.counts.isdisjoint(earlier.counts)


class Bindings:
    """Sees every binding at the moment it takes effect."""

    def __init__(self, api: SimulatedApiserver, time: Callable[[], float]) -> None:
        self._api = api
        self._time = time
        self.excused: dict[tuple[str, str], str] = {}
        """(node, card): why"""
        self.excused_quotas: dict[str, str] = {}
        """namespace: why"""
        self.handing: dict[str, Handing] = {}
        """by uid"""
        self.unsettled: dict[str, float] = {}
        """nodes that came back or whose plugin was replaced, and when: turns and locks of before mean nothing there"""
        self.agents: dict[str, tuple[str | None, bool]] = {}
        """as last shown to the scheduler: its word, and whether the node is gone"""
        self.count = 0
        self.claims = 0
        """allocated so far"""
        self.given: defaultdict[str, list[list[claims.Part]]] = defaultdict(list)
        """all that each claim was ever given, by uid"""
        self.edited: set[str] = set()
        """claims that a person has changed, and pods that have one: what they show proves nothing any more"""

    def shown_agent(self, node: str, agent: str | None, *, gone: bool) -> None:
        if self.agents.get(node) != (agent, gone):
            self.agents[node] = (agent, gone)
            self.unsettled[node] = self._time()

    def succeeded(self, pod: Pod, node: str) -> None:
        """The answer of a bind."""
        live = self._api.pods.objects.get(f"{pod.metadata.namespace}/{pod.metadata.name}")
        if live is not None and live.metadata.uid == pod.metadata.uid:
            assert live.spec.node_name == node, f"bind said yes, but the pod is on {live.spec.node_name or 'no node'}"

    def wrote(self, pod: Pod) -> None:
        """A binding took effect, whatever has become of the process that sent it."""
        self.count += 1
        self._check_claims(pod)
        if not device_usage.wants_devices(pod):
            assert not device_usage.allocation(pod)
            return
        assert NEVER_WHOLE not in (pod.metadata.labels or {}), "a member of a gang that never came together is bound"
        self._check_allocation(pod)
        self._check_cards(pod)
        self._check_quota(pod)
        self._check_handover(pod)

    def _check_allocation(self, pod: Pod) -> None:
        """Exactly what was asked, once, on one node."""
        node = pod.spec.node_name
        containers = device_usage.containers(pod)
        asked = [device_usage.asked(container) for container in containers]
        granted = device_usage.allocation(pod)
        assert set(granted) == {vendor for ask in asked for vendor in ask}
        reserved = device_usage.places(pod)
        mig = set()
        for vendor, entries in granted.items():
            assert len(entries) == len(containers)
            for position, cards in enumerate(entries):
                ask = asked[position].get(vendor)
                assert len(cards) == (ask.count if ask else 0)
                for device, (uuid, memory, _) in enumerate(cards):
                    assert uuid.startswith(f"{node}-"), f"card {uuid} is not on {node}"
                    if vendor == "NVIDIA" and (position, device) in reserved:
                        assert reserved[position, device][0] == uuid
                        mig.add((position, device))
                    elif ask is not None and ask.memory is not None:
                        assert memory == ask.memory
                whole = [uuid for device, (uuid, *_) in enumerate(cards) if (position, device) not in mig]
                assert len(set(whole)) == len(whole)
        assert mig == set(reserved)
        assert pod.annotations[ASSIGNED_NODE] == (pod.metadata.labels or {})[ASSIGNED_NODE] == node
        assert pod.annotations[BIND_PHASE] == PHASE_ALLOCATING
        for position, cards in enumerate(granted.get("NVIDIA", ())):
            if cards and not any((position, device) in mig for device in range(len(cards))):
                seen = pod.annotations[visible_devices(position)].split(",")
                assert sorted(seen) == sorted(uuid for uuid, *_ in cards)

    def _check_claims(self, pod: Pod) -> None:
        """All its claims are allocated on its node, and reserved for it; it records what they were given."""
        for uid, parts in claims.recorded(pod).items():
            known = uid in self.edited or sorted(parts) in self.given[uid]
            assert known, f"{pod.metadata.uid} records {parts} of {uid}, which was given {self.given[uid]}"
        for claim in claims.claims_of(self._api, pod):
            if claim.metadata.uid in self.edited:
                continue
            assert claim.metadata.uid in claims.recorded(pod), (
                f"{pod.metadata.uid} does not record {claim.metadata.uid}"
            )
            where = {node for node, *_ in claims.used_by(claim)}
            assert where == {pod.spec.node_name}, f"{pod.metadata.uid} is bound, {claim.metadata.name} is on {where}"
            assert pod.metadata.uid in {each.uid for each in claim.status.reserved_for or ()}, claim.metadata.name

    def allocated(self, claim: ResourceClaim) -> None:
        """A claim got devices from either scheduler."""
        self.claims += 1
        used = list(claims.used_by(claim))
        self.given[claim.metadata.uid].append(sorted(used))
        for name in {node for node, *_ in used}:
            self._check_node(name)
        by_stock = any((each.share_id or "").endswith("-stock") for each in claim.devices_of(DRIVER))
        for name, card, *_ in used:
            found = self._api.slices.objects.get(name)
            devices = {} if found is None else {each.name: each for each in found.spec.devices or ()}
            if card in devices:
                assert bool(devices[card].taints) is not by_stock, f"{card} was allocated by the wrong scheduler"
        if by_stock:
            self.excused_quotas[claim.metadata.namespace] = "another scheduler knows nothing of it"
        else:
            over = self._quota_excess(claim.metadata.namespace)
            assert not over or claim.metadata.namespace in self.excused_quotas, over

    def _check_cards(self, pod: Pod) -> None:
        self._check_node(pod.spec.node_name)

    def _check_node(self, name: str) -> None:
        for uuid, excess in self.excesses(name).items():
            assert (name, uuid) in self.excused, f"card {uuid} of {name} is over-committed: {excess}"

    def excesses(self, name: str) -> dict[str, str]:
        node = self._api.nodes.objects.get(name)
        if node is None:
            return {}
        cards = device_usage.capacities(node)
        here = [p for p in self._api.pods.objects.values() if p.spec.node_name == name and device_usage.is_live(p)]
        readable = [p for p in here if not device_usage.is_unreadable(p)]
        found = device_usage.loads(readable, cards)
        claims.add_loads(self._api, name, cards, found)
        return {uuid: excess for uuid, load in found.items() if (excess := load.excess(cards[uuid]))}

    def _check_quota(self, pod: Pod) -> None:
        namespace = pod.metadata.namespace
        over = self._quota_excess(namespace)
        assert not over or namespace in self.excused_quotas, f"namespace {namespace} is beyond its quota: {over}"

    def _quota_excess(self, namespace: str) -> str:
        used: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        for pod in self._api.pods.objects.values():
            if (
                pod.metadata.namespace == namespace
                and device_usage.is_live(pod)
                and not device_usage.is_unreadable(pod)
            ):
                for vendor, (memory, cores) in device_usage.demands(pod).items():
                    used[vendor][0] += memory
                    used[vendor][1] += cores
        for parts in claims.in_use(self._api, namespace).values():
            for _, _, memory, cores in parts:
                used["NVIDIA"][0] += memory
                used["NVIDIA"][1] += min(cores, device_usage.WHOLE)
        for vendor, amounts in used.items():
            for (resource, factor), amount in zip(LIMITS[vendor], amounts, strict=True):
                for quota in self._api.quotas.objects.values():
                    hard = quota.spec.hard or {}
                    if quota.metadata.namespace == namespace and f"limits.{resource}" in hard:
                        limit = int(hard[f"limits.{resource}"]) * factor
                        if amount > limit:
                            return f"{amount} of {limit} {resource}"
        return ""

    def _check_handover(self, pod: Pod) -> None:
        """No two pods that the node could mix up are handed over at once, and a foreign plugin's lock is held."""
        name = pod.spec.node_name
        node = self._api.nodes.objects.get(name)
        if node is None:
            return
        agent = node.annotations.get(AGENT)
        downward_api = any(
            env.name == "NVIDIA_VISIBLE_DEVICES" for c in device_usage.containers(pod) for env in c.env or ()
        )
        downward_api = downward_api and set(device_usage.allocation(pod)) == {"NVIDIA"}
        counts = {len(cards) for entries in device_usage.allocation(pod).values() for cards in entries if cards}
        mine = Handing(pod, self._time(), not (agent == "env" and downward_api), frozenset(counts))
        calm = self._time() - self.unsettled.get(name, -1e9) > SETTLED_S and self.agents.get(name) == (
            agent,
            False,
        )
        began = self._api.first_sent[pod.metadata.uid]
        for other in list(self.handing.values()):
            if other.pod.spec.node_name == name and calm:
                only_mlu = set(device_usage.allocation(other.pod)) == {"MLU"}
                fresh = self._time() - other.since < (MLU_SETTLED_S if only_mlu else SETTLED_S)
                # A pod that needs no turn waits for so long, and no longer, for one whose turn it is.
                passed = not other.depends_on_allocate and other.since >= began + DOWNWARD_API_WAIT_S
                mixed = mine.may_be_taken_for(other) and fresh and not passed
                assert not mixed, f"{name} can mix up {other.pod.metadata.uid} and {pod.metadata.uid}: {counts}"
        self.handing[pod.metadata.uid] = mine
        if agent is None and calm:
            for key in {MLU_LOCK if vendor == "MLU" else NODE_LOCK for vendor in device_usage.allocation(pod)}:
                held = node.annotations.get(key, "")
                owner = "" if key == MLU_LOCK else f",{pod.metadata.namespace},{pod.metadata.name}"
                owned = bool(held) and held.endswith(owner)
                assert owned, f"lock {key} of {name} is {held or 'free'}, not {pod.metadata.name}'s"

    # -- excuses

    def excuse(self, node: str, uuid: str, why: str) -> None:
        self.excused[node, uuid] = why

    def excuse_pod(self, pod: Pod, why: str) -> None:
        self.excused_quotas[pod.metadata.namespace] = why
        for entries in device_usage.allocation(pod).values():
            for cards in entries:
                for uuid, *_ in cards:
                    self.excuse(pod.spec.node_name, uuid, why)
