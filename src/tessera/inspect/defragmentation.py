"""Which pods would have to move so that others fit, with names for people.

The planner of the core works on the cluster's own ledger, which is as before afterwards. Pods that a controller creates
again may move; bare pods only if that is asked, and pods of a DaemonSet never: their successors come back to the same
node. Disruption budgets that were not read are taken for none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import structs

from tessera.core.defragmentation import plan_room, plan_whole_cards
from tessera.core.holdings import Holding, PodFacts, holdings
from tessera.core.move_planner import DefragmentationPlan, Goal
from tessera.core.relocation import MovablePod, Move
from tessera.core.selection import Candidates
from tessera.inspect.admission import admit_copy
from tessera.inspect.manifests import Manifest
from tessera.inspect.node_filters import pod_constraints
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.preemption import victim_book
from tessera.inspect.state import InspectionError
from tessera.scheduler.host_resources import host_ask
from tessera.scheduler.pod_requests import PreparedRequest
from tessera.wire import keys
from tessera.wire.moves import HeldCard, HeldInstance
from tessera.wire.objects import Pod

DAEMON_SET = "DaemonSet"
BOUND = (
    keys.ASSIGNED_NODE, keys.ASSIGNED_TIME, keys.BIND_PHASE, keys.BIND_TIME, keys.MIG_ALLOCATIONS, keys.RETRY,
    keys.NOMINATED, keys.TURNOVER, keys.CLAIM_DEVICES,
)  # fmt: skip
"""annotations of a bound pod that are not of its template, beside those of vendors"""
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


MovablePods = tuple[dict[str, MovablePod], dict[str, int]]
"""what may move, by uid, and why the other pods that hold devices stay, with their number"""


def movable_pods(cluster: OfflineCluster, *, with_bare: bool) -> MovablePods:
    """All of a cluster. It reads every pod: one call serves many plans."""
    found: dict[str, MovablePod] = {}
    stays: dict[str, int] = {}
    allowed: dict[str, Candidates] = {}
    vendors = cluster.vendors.values()
    own = {*BOUND, *(each.keys.allocated for each in vendors), *(each.keys.to_allocate for each in vendors)}
    for key, pod in cluster.pods.items():
        if cluster.ledger.pod(pod.metadata.uid) is None:
            continue
        prepared = cluster.prepare(_template(pod, own))
        obstacle = _obstacle(pod, prepared, with_bare=with_bare)
        if obstacle or not isinstance(prepared, PreparedRequest):
            stays[obstacle] = stays.get(obstacle, 0) + 1
            continue
        document = cluster.documents[key]
        filters = repr(pod_constraints(document))
        if filters not in allowed:
            allowed[filters] = cluster.view.selector.candidates(cluster.candidates(document)[0])
        found[pod.metadata.uid] = MovablePod(
            prepared.request, allowed[filters], host_ask(pod), is_bare=not pod.workload.kind
        )
    return found, stays


def _template(pod: Pod, own: Collection[str]) -> Pod:
    """The pod as its successor is created, without what its binding wrote. So pods of one workload are read once."""
    kept = {key: text for key, text in pod.annotations.items() if key not in own and keys.SLICE_KEY.match(key) is None}
    return structs.replace(pod, metadata=structs.replace(pod.metadata, annotations=kept))


def _obstacle(pod: Pod, prepared: object, *, with_bare: bool) -> str:
    if not isinstance(prepared, PreparedRequest):
        return "an invalid request"
    kind = pod.workload.kind
    if kind == DAEMON_SET:
        return "a DaemonSet, which puts it back on its node"
    if not kind and not with_bare:
        return "no controller that would create it again (--bare-pods moves it)"
    return ""


def plan_cards(cluster: OfflineCluster, *, max_moves: float, with_bare: bool) -> DefragmentationReport:
    """As many whole cards as possible. Raises ListForbidden if nodes could not be listed."""
    cluster.state.require_nodes()
    pods, stays = movable_pods(cluster, with_bare=with_bare)
    plan = plan_whole_cards(cluster.ledger, victim_book(cluster), pods, max_moves=max_moves)
    return _report(cluster, plan, stays, goal="whole cards", wanted=None)


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
    pods, stays = movable_pods(cluster, with_bare=with_bare)
    plan = plan_room(cluster.ledger, victim_book(cluster), pods, goal, max_moves=max_moves)
    copies = f"{manifest.count} x {manifest.namespace}/{manifest.name}"
    return _report(cluster, plan, stays, goal=copies, wanted=manifest.count)


def plan_for_waiting(
    cluster: OfflineCluster,
    key: str,
    names: Sequence[str],
    *,
    count: int = 1,
    max_moves: float = FEW_MOVES,
    highest_priority: int | None = None,
    movable: MovablePods | None = None,
) -> DefragmentationReport | None:
    """A few moves after which a waiting pod, or so many like it, fits on the named nodes; None if none help.

    `highest_priority`: of pods that may move; None: any. `movable`: if that is known already.
    """
    prepared = cluster.prepare(cluster.pods[key])
    if not isinstance(prepared, PreparedRequest):
        return None
    candidates = cluster.view.selector.candidates(names)
    goal = Goal(prepared.request, count, candidates, host_ask(cluster.pods[key]))
    pods, stays = movable or movable_pods(cluster, with_bare=False)
    if highest_priority is not None:
        above = {pod.metadata.uid for pod in cluster.pods.values() if (pod.spec.priority or 0) > highest_priority}
        pods = {uid: pod for uid, pod in pods.items() if uid not in above}
    plan = plan_room(cluster.ledger, victim_book(cluster), pods, goal, max_moves=max_moves)
    report = _report(cluster, plan, stays, goal=key, wanted=count)
    return report if plan.steps and report.is_reached else None


def _report(
    cluster: OfflineCluster, plan: DefragmentationPlan, stays: dict[str, int], *, goal: str, wanted: int | None
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
