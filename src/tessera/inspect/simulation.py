"""What would happen to pods that do not exist yet: webhook, filter and reservation on a copy of the cluster.

Every copy takes the real path: admission completes or refuses it, filter reads its request, the selector chooses, the
ledger reserves. What kube-scheduler would exclude because of cpu, memory or volumes is not known here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from tessera.core.model.grants import Placement
from tessera.core.model.requests import PodRequest
from tessera.core.search import finish
from tessera.core.search.selection import Candidates, Refused, Selected
from tessera.inspect.demand import ExpectedDemand
from tessera.inspect.explanation import bad_pod_text, expected_demand, group_by_reason
from tessera.inspect.gang_status import GangStatus, plan_members
from tessera.inspect.manifests import Manifest, SimulatedClaims, admit_copy
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.preemption import PreemptionOutlook, foresee, with_priority
from tessera.inspect.request import RequestSummary, summarize_request
from tessera.inspect.slices import GrantedSlice, placement_slices
from tessera.inspect.state import Json
from tessera.inspect.verdicts import Fits, FitsNowhere, NodeGroup, explain_choice, judge_refusal
from tessera.scheduler.requests.host_resources import host_ask
from tessera.scheduler.requests.reader import PreparedRequest
from tessera.vendors.drafts import BadPod
from tessera.wire.objects import Pod
from tessera.wire.pod_groups import PodGroup, read_pod_group

MAX_COPIES = 10_000
"""how many copies are tried at most when counting how many fit"""

FILTER_STEP = 200
"""of the work of selectors between two pauses, as much as so many checks of a card: 3 ms"""


@dataclass(frozen=True, slots=True)
class SimulatedPlacement:
    """One copy, and where it would go."""

    name: str
    node: str
    slices: tuple[GrantedSlice, ...]


@dataclass(frozen=True, slots=True)
class StopReason:
    """Why the next copy does not fit."""

    text: str
    verdict: FitsNowhere | None = None
    kept_off: tuple[NodeGroup, ...] = ()
    preemption: PreemptionOutlook | None = None
    """which pods would be evicted for it; None if that was not asked"""


@dataclass(frozen=True, slots=True)
class Simulation:
    namespace: str
    name: str
    count: int
    """how many copies were requested"""
    request: RequestSummary | None = None
    """None if the pod requests no devices, or was refused before its request was read"""
    warnings: tuple[str, ...] = ()
    """the webhook's admission warnings"""
    placed: tuple[SimulatedPlacement, ...] = ()
    """the requested copies that fit"""
    why: Fits | None = None
    """why the first copy would go where it goes"""
    expected: ExpectedDemand | None = None
    """expected demand before the first copy; None if the policies do not look ahead"""
    fits_in_all: int = 0
    """how many copies fit one after another, including the requested ones"""
    stop: StopReason | None = None
    """what stops the next copy; None if counting reached its limit first"""

    @property
    def all_fit(self) -> bool:
        return self.fits_in_all >= self.count

    @property
    def by_node(self) -> dict[str, int]:
        return dict(sorted(Counter(one.node for one in self.placed).items()))


def simulate(
    cluster: OfflineCluster,
    manifest: Manifest,
    *,
    most: int = MAX_COPIES,
    cards: bool = False,
    preempt: bool = False,
) -> Simulation:
    """All steps of `simulate_in_steps`."""
    return finish(simulate_in_steps(cluster, manifest, most=most, cards=cards, preempt=preempt))


def simulate_in_steps(
    cluster: OfflineCluster,
    manifest: Manifest,
    *,
    most: int = MAX_COPIES,
    cards: bool = False,
    preempt: bool = False,
    explain: bool = True,
    work: float = math.inf,
) -> Generator[None, None, Simulation]:
    """Places the requested copies, then goes on counting until one does not fit or `most` have been placed. A step is
    one copy, or a part of it with so much `work` as `Selector.select_within` counts.

    Only the requested copies stay reserved and count as demand, so that the next manifest sees them and nothing else.
    `explain`: with why the first copy goes where it goes.
    Raises ListForbidden if nodes could not be listed.
    """
    cluster.state.require_nodes()
    result = Simulation(manifest.namespace, manifest.name, manifest.count)
    limit = max(manifest.count, most)
    placed: list[SimulatedPlacement] = []
    extra: list[str] = []
    claims = SimulatedClaims(cluster)
    requested = 0
    """changes of claims by the copies that stay"""
    # Looked up once: copies have equal candidates, and looking up a thousand nodes takes longer than placing a copy.
    names, filtered_out = yield from cluster.candidates_in_steps(manifest.pod)
    candidates = cluster.view.selector.candidates(names)
    while result.fits_in_all < limit:
        number = result.fits_in_all + 1
        document, verdict = admit_copy(cluster, manifest, number)
        result = replace(result, warnings=result.warnings or verdict.warnings)
        if document is None:
            result = replace(result, stop=StopReason(f"the webhook refuses it: {verdict.message}"))
            break
        document = with_priority(document, cluster.state.priority_classes)
        with_claims = claims.make(document)
        if isinstance(with_claims, str):
            result = replace(result, stop=StopReason(with_claims))
            break
        pod = msgspec.convert(with_claims, Pod)
        prepared = cluster.prepare(pod)
        if isinstance(prepared, BadPod):
            result = replace(result, stop=StopReason(bad_pod_text(prepared)))
            break
        if not prepared.needs_placement:
            result = replace(result, fits_in_all=manifest.count)
            break
        if result.request is None:
            annotations = document["metadata"].get("annotations") or {}
            summary = summarize_request(prepared.request, annotations, cluster.vendors)
            result = replace(result, request=summary, expected=expected_demand(cluster, prepared))
        within, names_within = candidates, names
        pinned = prepared.claims.node if prepared.claims is not None else ""
        if prepared.claims is not None and pinned:
            if pinned not in names:
                result = replace(result, stop=StopReason(prepared.claims.elsewhere.text))
                break
            names_within = [pinned]
            within = cluster.view.selector.candidates(names_within)
        for variant in prepared.variants:
            yield from _ask_filters(cluster, variant)
        request, answer = yield from _select(cluster, prepared, within, work)
        if number <= manifest.count:
            cluster.observe_request(request)
        if isinstance(answer, Refused):
            refusal = yield from judge_refusal(cluster.view, request, names_within, answer, cards=cards, work=work)
            stop = _stop_reason(refusal, filtered_out)
            if preempt and gang_key(manifest) is None:  # A gang preempts as a whole: see `simulate_gangs`.
                stop = replace(stop, preemption=foresee(cluster, request, names_within))
            result = replace(result, stop=stop)
            break
        if explain and number == 1 and isinstance(answer, Selected):
            result = replace(result, why=(yield from explain_choice(cluster.ledger, request, answer)))
        prepared = msgspec.structs.replace(prepared, request=request)
        placement = answer.placement if isinstance(answer, Selected) else answer
        one = _reserve(cluster, prepared, placement)
        claims.allocate(prepared, placement)
        cluster.add_host_load(_host_key(prepared.request.uid), one.node, host_ask(pod))
        if number <= manifest.count:
            placed.append(one)
            requested = claims.mark
        else:
            extra.append(prepared.request.uid)
        result = replace(result, fits_in_all=number)
        yield
    claims.undo(requested)
    for uid in extra:
        yield
        cluster.release(uid)
        cluster.remove_host_load(_host_key(uid))
    return replace(result, placed=tuple(placed))


def gang_key(manifest: Manifest) -> tuple[str, str] | None:
    """Namespace and name of the gang that the manifest's pods belong to; None if they belong to none."""
    group = read_pod_group(msgspec.convert(manifest.pod, Pod))
    return (manifest.namespace, group.name) if isinstance(group, PodGroup) else None


def simulate_gangs(
    cluster: OfflineCluster, manifests: Sequence[Manifest], *, preempt: bool = False
) -> list[GangStatus]:
    """All steps of `simulate_gangs_in_steps`."""
    return finish(simulate_gangs_in_steps(cluster, manifests, preempt=preempt))


def simulate_gangs_in_steps(
    cluster: OfflineCluster, manifests: Sequence[Manifest], *, preempt: bool = False, work: float = math.inf
) -> Generator[None, None, list[GangStatus]]:
    """Whether the gangs of these manifests fit as a whole, on the cluster as it is. Changes nothing in the end; between
    two steps nothing else may use the cluster. `preempt`: with the pods that would be evicted for one that does not."""
    cluster.state.require_nodes()
    claims = SimulatedClaims(cluster)
    gangs: dict[tuple[str, str], tuple[PodGroup, list[tuple[PodRequest, Json]]]] = {}
    for manifest in manifests:
        group = read_pod_group(msgspec.convert(manifest.pod, Pod))
        if not isinstance(group, PodGroup):
            continue
        _, members = gangs.setdefault((manifest.namespace, group.name), (group, []))
        for number in range(1, manifest.count + 1):
            document, _ = admit_copy(cluster, manifest, number)
            if document is None:
                continue
            document = with_priority(document, cluster.state.priority_classes)
            with_claims = claims.make(document)
            if isinstance(with_claims, str):
                continue  # `simulate` says so.
            prepared = cluster.prepare(msgspec.convert(with_claims, Pod))
            if isinstance(prepared, PreparedRequest) and prepared.request.asks_for_devices:
                yield from _ask_filters(cluster, prepared.request)
                members.append((prepared.request, document))
            yield
    found = []
    for (namespace, name), (group, members) in gangs.items():
        if members:
            steps = plan_members(cluster, namespace, name, members, topology=group.topology, preempt=preempt, work=work)
            found.append((yield from steps))
    claims.undo()
    return found


def _ask_filters(cluster: OfflineCluster, request: PodRequest) -> Generator[None, None, None]:
    """In steps of some milliseconds, before a decision that depends on the answers."""
    while not cluster.view.selector.ask_filters(request, FILTER_STEP):
        yield


def _select(
    cluster: OfflineCluster, prepared: PreparedRequest, candidates: Candidates, work: float
) -> Generator[None, None, tuple[PodRequest, Selected | Refused | Placement]]:
    """As filter decides: a pod whose claims are all allocated goes where they are."""
    if prepared.claims is not None and not prepared.request.asks_for_devices:
        return prepared.request, Placement(prepared.claims.node, {})
    return (yield from cluster.view.selector.select_in_steps(prepared.variants, candidates, work))


def _reserve(cluster: OfflineCluster, prepared: PreparedRequest, placement: Placement) -> SimulatedPlacement:
    request = prepared.request
    cluster.reserve(prepared, placement)
    containers = [container.name for container in request.containers]
    return SimulatedPlacement(request.name, placement.node, placement_slices(cluster.ledger, placement, containers))


def _host_key(uid: str) -> str:
    """The key of a copy's host load. The ledger already knows the reserved copy by its uid."""
    return f"host of {uid}"


def _stop_reason(verdict: FitsNowhere, filtered_out: Mapping[str, str]) -> StopReason:
    best = (
        verdict.mode
        or verdict.near_miss
        or (verdict.groups[0].reason if verdict.groups else "kube-scheduler excludes every node")
    )
    return StopReason(best, verdict, group_by_reason(filtered_out))
