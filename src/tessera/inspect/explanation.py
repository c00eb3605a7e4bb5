"""Why a pod waits, or why it is where it is.

The engine judges a waiting pod as filter would judge it now. A placed pod is explained by what the same engine would
choose today if the pod were not there; other pods may have come and gone since it was placed, and the answer says so.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from tessera.core.ledger.holders import GrantState, Holder
from tessera.core.model.misfits import Reason
from tessera.core.search import finish
from tessera.inspect.defragmentation import DefragmentationReport, plan_for_waiting
from tessera.inspect.demand import ExpectedDemand, last_refusal
from tessera.inspect.gang_status import GangStatus, gang_status
from tessera.inspect.offline_cluster import InspectedCluster, OfflineCluster
from tessera.inspect.preemption import PreemptionOutlook, foresee
from tessera.inspect.request import ClaimSummary, RequestSummary, summarize_claims, summarize_request
from tessera.inspect.slices import GrantedSlice, holder_slices
from tessera.inspect.state import InspectionError, Json
from tessera.inspect.verdicts import Fits, FitsNowhere, NodeGroup, judge
from tessera.scheduler.engine_view import awaits_claim
from tessera.scheduler.requests.reader import PreparedRequest
from tessera.vendors.drafts import BadPod
from tessera.vendors.mistakes import find_mistakes
from tessera.vendors.pod_reader import ENDED
from tessera.wire.config_file import nearest
from tessera.wire.objects import Pod

NAMED = 6
"""cordoned cards that a note lists"""


class PodVerdict(Enum):
    """The answer in one word."""

    PLACED = "Placed"
    FITS = "Fits"
    """it waits, but it fits somewhere"""
    REFUSED = "Refused"
    INVALID = "Invalid"
    NO_DEVICES = "NoDevices"
    ENDED = "Ended"
    UNACCOUNTED = "Unaccounted"
    GANG_WAITING = "GangWaiting"
    """it fits, but its gang does not"""
    CLAIM_WAITING = "ClaimWaiting"
    """it waits for one of its ResourceClaims, or its claims are where it cannot run"""
    UNJUDGED = "Unjudged"
    """it waits, and nodes could not be listed"""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything known about one pod."""

    namespace: str
    name: str
    status: PodVerdict
    scheduler: str
    phase: str
    node: str = ""
    request: RequestSummary | None = None
    problem: str = ""
    """why the request is invalid, or why the allocation cannot be read"""
    notes: tuple[str, ...] = ()
    slices: tuple[GrantedSlice, ...] = ()
    """what a placed pod holds"""
    verdict: Fits | FitsNowhere | None = None
    kept_off: tuple[NodeGroup, ...] = ()
    """nodes that kube-scheduler's own filters exclude before Tessera is asked"""
    expected: ExpectedDemand | None = None
    """expected demand; None if the policies do not look ahead"""
    preemption: PreemptionOutlook | None = None
    """for a pod that fits on no node"""
    moves: DefragmentationReport | None = None
    """of other pods, after which it fits; None if none help"""
    gang: GangStatus | None = None
    claims: tuple[ClaimSummary, ...] = ()
    said: str = ""
    """kube-scheduler's last message about the pod"""

    @property
    def is_good(self) -> bool:
        """Whether devices do not keep the pod from running."""
        return self.status not in (
            PodVerdict.REFUSED, PodVerdict.INVALID, PodVerdict.UNACCOUNTED, PodVerdict.UNJUDGED,
            PodVerdict.GANG_WAITING, PodVerdict.CLAIM_WAITING,
        )  # fmt: skip


def find_pod(cluster: OfflineCluster, name: str, namespace: str) -> str:
    """The key of a pod named NAME or NAMESPACE/NAME, or of a waiting member of the gang of that name.

    Raises InspectionError if there is neither.
    """
    key = name if "/" in name else f"{namespace}/{name}"
    if key in cluster.pods:
        return key
    home, _, alone = key.partition("/")
    gang = cluster.view.gang(home, alone)
    if gang is not None:
        members = gang.pending or [member.request for member in gang.members]
        return min(f"{request.namespace}/{request.name}" for request in members)
    elsewhere = sorted(other for other in cluster.pods if other.endswith(f"/{name}"))
    if elsewhere and "/" not in name:
        raise InspectionError(f"no pod {key}; did you mean {' or '.join(elsewhere[:3])}?")
    raise InspectionError(f"no pod {key} that asks for devices{nearest(key, list(cluster.pods), what='pods')}")


def explain(cluster: InspectedCluster, key: str, *, cards: bool = False) -> Explanation:
    """All steps of `explain_in_steps`."""
    return finish(explain_in_steps(cluster, key, cards=cards))


def explain_in_steps(
    cluster: InspectedCluster, key: str, *, cards: bool = False, work: float = math.inf
) -> Generator[None, None, Explanation]:
    """A step is about as much as `Selector.select_within` does with so much work. On the engine of a scheduler nothing
    is tried: the answer says nothing of evictions and moves, nor what a placed pod would get today."""
    pod, document = cluster.pods[key], cluster.documents[key]
    prepared = cluster.prepare(pod)
    base = _base(cluster, pod, document, prepared)
    if pod.status.phase in ENDED:
        return replace(base, status=PodVerdict.ENDED)
    entry = cluster.ledger.pod(pod.metadata.uid)
    if entry is not None or (pod.spec.node_name and any(claim.slices for claim in base.claims)):
        return (yield from _placed(cluster, key, prepared, entry, base))
    if awaits_claim(prepared):
        return replace(base, status=PodVerdict.CLAIM_WAITING)
    if isinstance(prepared, BadPod):
        # A pod that runs has been placed by another scheduler, which serves what Tessera does not.
        return replace(base, status=PodVerdict.NO_DEVICES if pod.spec.node_name else PodVerdict.INVALID)
    if not prepared.needs_placement:
        return base
    if pod.spec.node_name:
        text = (
            f"it is on {pod.spec.node_name}, but no annotation says which cards it holds: another scheduler placed it"
        )
        return replace(base, status=PodVerdict.UNACCOUNTED, problem=text)
    if not cluster.state.nodes_seen:
        return replace(base, status=PodVerdict.UNJUDGED)
    names, kept_off = yield from cluster.candidates_in_steps(document)
    elsewhere: NodeGroup | None = None
    if prepared.claims is not None and prepared.claims.node:
        pinned, text = prepared.claims.node, prepared.claims.elsewhere.text
        if pinned not in names:
            why = kept_off.get(pinned, "the cluster has no such node")
            problem = f"{text}, which kube-scheduler excludes: {why}"
            return replace(base, status=PodVerdict.CLAIM_WAITING, problem=problem, kept_off=group_by_reason(kept_off))
        if not prepared.request.asks_for_devices:
            return replace(base, status=PodVerdict.FITS, node=pinned, kept_off=group_by_reason(kept_off))
        others = tuple(name for name in names if name != pinned)
        elsewhere = NodeGroup(Reason.CLAIM_ELSEWHERE, others, text) if others else None
        names = [pinned]
    verdict = yield from judge(cluster.view, prepared, names, cards=cards, work=work)
    if elsewhere is not None and isinstance(verdict, FitsNowhere):
        verdict = replace(verdict, groups=(*verdict.groups, elsewhere))
    status = PodVerdict.FITS if isinstance(verdict, Fits) else PodVerdict.REFUSED
    if status is PodVerdict.FITS and base.gang is not None and not base.gang.fits:
        status = PodVerdict.GANG_WAITING
    notes = base.notes
    if isinstance(verdict, FitsNowhere) and any(Reason.CARD_CORDONED.value in group.reason for group in verdict.groups):
        notes += ((yield from _closed_note(cluster, names)),)
    outlook = moves = None
    if isinstance(verdict, FitsNowhere) and isinstance(cluster, OfflineCluster):
        # A gang preempts as a whole; its status says for which pods.
        is_alone = base.gang is None or base.gang.fits or bool(base.gang.bound)
        outlook = foresee(cluster, prepared.request, names) if is_alone else None
        moves = plan_for_waiting(cluster, key, names) if base.gang is None else None
    return replace(
        base,
        status=status,
        verdict=verdict,
        kept_off=group_by_reason(kept_off),
        notes=notes,
        preemption=outlook,
        moves=moves,
    )


def expected_demand(cluster: InspectedCluster, prepared: PreparedRequest | BadPod) -> ExpectedDemand | None:
    """The demand that the pod's policies expect, as far as it is known."""
    ahead = isinstance(prepared, PreparedRequest) and prepared.request.forecast is not None
    return cluster.demand.expected if ahead and isinstance(cluster, OfflineCluster) else None


def group_by_reason(kept_off: Mapping[str, str]) -> tuple[NodeGroup, ...]:
    """Nodes by the reason for which kube-scheduler excludes them."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in kept_off.items():
        by_reason.setdefault(reason, []).append(name)
    return tuple(NodeGroup(reason, tuple(sorted(names))) for reason, names in sorted(by_reason.items()))


def bad_pod_text(bad: BadPod) -> str:
    return f"container {bad.container}: {bad.text}" if bad.container else bad.text


def _base(cluster: InspectedCluster, pod: Pod, document: Json, prepared: PreparedRequest | BadPod) -> Explanation:
    """The part that every answer has."""
    asks = isinstance(prepared, PreparedRequest) and prepared.needs_placement
    gang = cluster.view.gang_of(pod.metadata.uid) if cluster.state.nodes_seen else None
    return Explanation(
        pod.metadata.namespace,
        pod.metadata.name,
        PodVerdict.NO_DEVICES,
        pod.spec.scheduler_name,
        pod.status.phase,
        node=pod.spec.node_name,
        request=summarize_request(prepared.request, pod.annotations, cluster.vendors)
        if isinstance(prepared, PreparedRequest) and asks
        else None,
        problem=bad_pod_text(prepared) if isinstance(prepared, BadPod) else "",
        notes=(*_notes(cluster, pod, asks=asks or isinstance(prepared, BadPod)), *_mistakes(cluster, pod, prepared)),
        expected=expected_demand(cluster, prepared),
        gang=gang_status(cluster, gang, preempt=True) if gang is not None else None,
        claims=summarize_claims(cluster, pod),
        said=last_refusal(document) or "",
    )


def _placed(
    cluster: InspectedCluster, key: str, prepared: PreparedRequest | BadPod, entry: Holder | None, base: Explanation
) -> Generator[None, None, Explanation]:
    """`entry`: what the pod holds itself; None if all that it has is of its claims."""
    pod, facts = cluster.pods[key], entry.facts if entry is not None else None
    node = facts.node if facts is not None else pod.spec.node_name
    containers = [container.name for container in (*pod.init_containers, *pod.app_containers)]
    own = holder_slices(cluster.ledger, facts, containers) if facts is not None else ()
    slices = (*own, *(one for claim in base.claims for one in claim.slices))
    names, kept_off = yield from cluster.candidates_in_steps(cluster.documents[key])
    is_known = isinstance(prepared, PreparedRequest) and prepared.needs_placement and cluster.state.nodes_seen
    verdict = None
    if is_known and isinstance(cluster, OfflineCluster):
        with cluster.without_pod(key):
            # Read again: what the pod uses itself is not scarce for it.
            asked = cluster.prepare(pod)
            # A claim that other pods use stays where it is, so that there is no choice.
            has_choice = isinstance(asked, PreparedRequest) and (asked.claims is None or not asked.claims.node)
            if isinstance(asked, PreparedRequest) and has_choice:
                verdict = yield from judge(cluster.view, asked, names, advice=False, cards_of=node)
    is_reserved = entry is not None and entry.state is GrantState.RESERVED
    reserved = ("its devices are reserved; the Binding is not written yet",) if is_reserved else ()
    return replace(
        base,
        status=PodVerdict.PLACED,
        slices=slices,
        notes=(*base.notes, *reserved, *_held_notes(cluster, node, slices)),
        verdict=verdict,
        kept_off=group_by_reason(kept_off),
        node=node,
        problem=(facts.problem if facts is not None else "") or base.problem,
    )


def _cordoned(cluster: InspectedCluster, node: str) -> list[tuple[str, str]]:
    """The node's cards that are closed to new pods, as NODE/INDEX and uuid."""
    view = cluster.ledger.node(node)
    cards = view.cards if view is not None else ()
    return [
        (f"{node}/{card.device.index}", card.device.uuid)
        for card in cards
        if card.cordoned and cluster.vendors[card.device.vendor].honours_cordon
    ]


def _closed_note(cluster: InspectedCluster, nodes: Iterable[str]) -> Generator[None, None, str]:
    """For a pod that cordoned cards refuse."""
    found: list[str] = []
    for node in nodes:
        found += [text for text, _ in _cordoned(cluster, node)]
        yield
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return f"cordoned cards: {', '.join(found[:NAMED])}{more}; tessera uncordon NODE/CARD opens them"


def _held_notes(cluster: InspectedCluster, node: str, slices: Iterable[GrantedSlice]) -> list[str]:
    """For a pod that holds cordoned cards."""
    held = {one.card for one in slices}
    return [
        f"card {text} is cordoned: it takes no new pods, and this one keeps its slice until it ends or is evicted"
        for text, uuid in _cordoned(cluster, node)
        if uuid in held
    ]


def _mistakes(cluster: InspectedCluster, pod: Pod, prepared: PreparedRequest | BadPod) -> list[str]:
    """What the webhook warns about, also of pods that did not pass it."""
    if pod.status.phase in ENDED:
        return []
    said = bad_pod_text(prepared) if isinstance(prepared, BadPod) else ""
    return [mistake.text for mistake in find_mistakes(pod, cluster.vendors) if mistake.text != said]


def _notes(cluster: InspectedCluster, pod: Pod, *, asks: bool) -> list[str]:
    """`asks`: it asks for devices, or its request cannot be read."""
    notes = []
    ours, scheduler = cluster.settings.scheduler_name, pod.spec.scheduler_name
    if asks and not pod.spec.node_name and scheduler and scheduler != ours:
        notes.append(
            f"its schedulerName is {scheduler}, not {ours}, so Tessera is never asked about it."
            " Did it pass the webhook? Run tessera doctor"
        )
    if cluster.state.nodes_seen and not cluster.state.all_pods_seen:
        notes.append(
            "you may not list the pods of other namespaces: the cards that they hold look free, so the pod may fit on"
            " fewer nodes than it seems"
        )
    if pod.metadata.deletion_timestamp:
        notes.append("it is being deleted; its slices stay allocated until it is gone")
    return notes
