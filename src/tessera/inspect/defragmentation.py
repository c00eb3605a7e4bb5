"""Which pods would have to move so that others fit, with names for people.

The planner of the core works on the cluster's own ledger, which is as before afterwards. Disruption budgets that were
not read are taken for none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from tessera.core.ledger.holdings import Holding, PodFacts, holdings
from tessera.core.search import finish
from tessera.core.search.defragmentation import plan_room, plan_whole_cards
from tessera.core.search.move_planner import DefragmentationPlan, Goal
from tessera.core.search.relocation import Move
from tessera.core.search.selection import Candidates
from tessera.inspect.manifests import Manifest, admit_copy
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.preemption import victim_book
from tessera.inspect.state import InspectionError, Json
from tessera.scheduler.movable_pods import MovablePods
from tessera.scheduler.node_filters import pod_constraints
from tessera.scheduler.requests.host_resources import host_ask
from tessera.scheduler.requests.reader import PreparedRequest
from tessera.wire.moves import HeldCard, HeldInstance
from tessera.wire.objects import Pod

FEW_MOVES = 3
"""up to which `explain` says that moves would help"""


@dataclass(frozen=True, slots=True)
class PodPlace:
    """Cards of one node."""

    node: str
    indexes: tuple[int, ...]
    cards: tuple[str, ...]
    """uuids, in the same order"""
    held: tuple[HeldCard, ...] = ()
    """what is taken of them"""

    @property
    def text(self) -> str:
        return f"{self.node}/{','.join(map(str, self.indexes))}"


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """One pod: it is evicted, and its successor goes to the target."""

    step: int
    """moves of one step belong to a gang, and are made together"""
    namespace: str
    name: str
    uid: str
    controller: str
    """kind and name; empty for a bare pod"""
    priority: int
    memory_mib: int
    source: PodPlace
    target: PodPlace

    @property
    def text(self) -> str:
        return f"{self.name} to {self.target.node}"


@dataclass(frozen=True, slots=True)
class DefragmentationReport:
    """A plan for people and for `tessera defrag apply`."""

    goal: str
    wanted: int | None
    """copies; None: as many as possible"""
    fitting: int
    """copies, or whole cards, without any move"""
    gained: int
    moves: tuple[PlannedMove, ...]
    stays: tuple[str, ...]
    """why pods do not move, the most frequent reason first"""
    gained_on: tuple[str, ...] = ()
    """nodes of what is gained, one entry for each"""
    problem: str = ""
    gained_places: tuple[PodPlace, ...] = ()
    """the same nodes with their cards"""
    fitting_places: tuple[PodPlace, ...] = ()
    """of copies that fit without any move"""
    is_cut_short: bool = False
    """the cluster is too large to look at all ways: more may be possible"""

    @property
    def sentence(self) -> str:
        texts = [move.text for move in self.moves]
        return f"fits after moving {', '.join(texts[:-1])}{' and ' if texts[1:] else ''}{texts[-1]}"

    @property
    def is_reached(self) -> bool:
        return bool(self.moves) if self.wanted is None else self.fitting + self.gained >= self.wanted


def movable_pods(cluster: OfflineCluster, *, with_bare: bool) -> MovablePods:
    """All of a cluster."""
    found = MovablePods(cluster.ledger, cluster.vendors, cluster.prepare, with_bare=with_bare)
    allowed: dict[str, Candidates] = {}

    def candidates(document: Json) -> Candidates:
        filters = repr(pod_constraints(document))
        if filters not in allowed:
            allowed[filters] = cluster.view.selector.candidates(cluster.candidates(document)[0])
        return allowed[filters]

    for key, pod in cluster.pods.items():
        found.add(pod, partial(candidates, cluster.documents[key]))
    return found


def plan_cards(cluster: OfflineCluster, *, max_moves: float, with_bare: bool) -> DefragmentationReport:
    """As many whole cards as possible. Raises ListForbidden if nodes could not be listed."""
    cluster.state.require_nodes()
    found = movable_pods(cluster, with_bare=with_bare)
    plan = plan_whole_cards(cluster.ledger, victim_book(cluster), found.pods, max_moves=max_moves)
    return _report(cluster, plan, found.stays, goal="whole cards", wanted=None)


def plan_copies(
    cluster: OfflineCluster, manifest: Manifest, *, max_moves: float, with_bare: bool
) -> DefragmentationReport:
    """Room for the copies of a manifest. Raises InspectionError if they request no devices or are refused."""
    cluster.state.require_nodes()
    document, verdict = admit_copy(cluster, manifest, 1)
    if document is None:
        raise InspectionError(f"{manifest.namespace}/{manifest.name}: the webhook refuses it: {verdict.message}")
    pod = msgspec.convert(document, Pod)
    prepared = cluster.prepare(pod)
    if not isinstance(prepared, PreparedRequest) or not prepared.request.asks_for_devices:
        raise InspectionError(f"{manifest.namespace}/{manifest.name} requests no devices")
    names = cluster.candidates(document)[0]
    goal = Goal(prepared.request, manifest.count, cluster.view.selector.candidates(names), host_ask(pod))
    found = movable_pods(cluster, with_bare=with_bare)
    plan = finish(plan_room(cluster.ledger, victim_book(cluster), found.pods, goal, max_moves=max_moves))
    copies = f"{manifest.count} x {manifest.namespace}/{manifest.name}"
    return _report(cluster, plan, found.stays, goal=copies, wanted=manifest.count)


def plan_for_waiting(cluster: OfflineCluster, key: str, names: Sequence[str]) -> DefragmentationReport | None:
    """A few moves after which a waiting pod fits on the named nodes; None if none help."""
    prepared = cluster.prepare(cluster.pods[key])
    if not isinstance(prepared, PreparedRequest):
        return None
    goal = Goal(prepared.request, 1, cluster.view.selector.candidates(names), host_ask(cluster.pods[key]))
    found = movable_pods(cluster, with_bare=False)
    plan = finish(plan_room(cluster.ledger, victim_book(cluster), found.pods, goal, max_moves=FEW_MOVES))
    report = _report(cluster, plan, found.stays, goal=key, wanted=1)
    return report if plan.steps and report.is_reached else None


def _report(
    cluster: OfflineCluster, plan: DefragmentationPlan, stays: Mapping[str, int], *, goal: str, wanted: int | None
) -> DefragmentationReport:
    kept = sorted((*plan.kept, *stays.items()), key=lambda each: (-each[1], each[0]))
    return DefragmentationReport(
        goal,
        wanted,
        plan.fitting,
        len(plan.gained),
        tuple(_planned(cluster, number, move) for number, step in enumerate(plan.steps, 1) for move in step),
        tuple(f"{count} with {reason}" for reason, count in kept),
        tuple(facts.node for facts in plan.gained),
        plan.problem,
        tuple(_place(cluster, facts) for facts in plan.gained),
        tuple(_place(cluster, facts) for facts in plan.fitting_places),
        plan.is_cut_short,
    )


def _planned(cluster: OfflineCluster, step: int, move: Move) -> PlannedMove:
    source, traits = move.source, cluster.view.victims.traits(move.uid)
    pod, entry = cluster.pods[f"{source.namespace}/{source.name}"], cluster.ledger.pod(move.uid)
    workload = pod.workload
    return PlannedMove(
        step,
        source.namespace,
        source.name,
        move.uid,
        f"{workload.kind}/{workload.name}" if workload.kind else "",
        traits.priority if traits is not None else 0,
        sum(holding.use.memory for holding in entry.holdings.values()) if entry is not None else 0,
        _place(cluster, source),
        _place(cluster, move.target),
    )


def _place(cluster: OfflineCluster, facts: PodFacts) -> PodPlace:
    devices = cluster.ledger.devices(facts.node)
    grants = {grant.uuid: grant for per in facts.grants.values() for each in per for grant in each}
    cards = sorted((devices[uuid].index if uuid in devices else grants[uuid].index, uuid) for uuid in grants)
    parts = holdings(facts, devices, cluster.ledger.rules)
    held = tuple(_held(uuid, parts[uuid]) for _, uuid in cards if uuid in parts)
    return PodPlace(facts.node, tuple(index for index, _ in cards), tuple(uuid for _, uuid in cards), held)


def _held(uuid: str, part: Holding) -> HeldCard:
    instances = (HeldInstance(slot.profile, slot.placement.start, slot.placement.size) for slot in part.mig)
    return HeldCard(uuid, part.vendor, *part.use, tuple(instances))
