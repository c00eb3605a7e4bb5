"""The status of a gang: which members exist, which are bound, and whether the rest fits together now.

The page of a scheduler says what that has decided. Elsewhere the scheduler's own planner answers, on the cluster as it
is: what a running scheduler holds for gangs is in its memory alone, and counts as free.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from tessera.core.model.requests import PodRequest
from tessera.core.search import finish
from tessera.core.search.gang_trial import GangMember
from tessera.core.search.gangs import GangMisfit, GangPlanning, describe_members
from tessera.core.search.preemption import Demand
from tessera.core.search.selection import Candidates, Unfinished
from tessera.inspect.offline_cluster import InspectedCluster, OfflineCluster
from tessera.inspect.preemption import PreemptionOutlook, foresee_gang
from tessera.inspect.state import Json
from tessera.scheduler.engine_view import GangView
from tessera.scheduler.node_filters import pod_constraints

TOO_MUCH_WORK = "finding a place for one member takes longer than is allowed here: use `tessera simulate pod`"


@dataclass(frozen=True, slots=True)
class GangStatus:
    """A gang, for people."""

    namespace: str
    name: str
    size: int
    minimum: int
    bound: int
    pending: int
    gated: int
    """held back by schedulingGates: not counted before the gates are gone"""
    text: str
    fits: bool
    """all that must be placed together is bound, or fits now"""
    fitting: int | None = None
    """members that fit now; None if that is not known"""
    preemption: PreemptionOutlook | None = None
    """if that was asked for, and all members exist and do not fit"""


class _Verdict(NamedTuple):
    """Whether members fit together."""

    text: str
    fits: bool
    fitting: int
    preemption: PreemptionOutlook | None = None


def gang_status(cluster: InspectedCluster, gang: GangView, *, preempt: bool = False) -> GangStatus:
    """A gang of the cluster. `preempt`: with the pods that would be evicted for it."""
    if isinstance(cluster, OfflineCluster):
        return _planned_status(cluster, gang, preempt=preempt)
    return _status(gang, gang.why, gang.is_placed, gang.fitting)


def plan_members(
    cluster: OfflineCluster,
    namespace: str,
    name: str,
    members: Sequence[tuple[PodRequest, Json]],
    *,
    topology: str,
    preempt: bool = False,
    work: float = math.inf,
) -> Generator[None, None, GangStatus]:
    """A gang that does not exist yet, with all its members as request and document. One step per member, for which the
    plain rule does so much `work` at most."""
    count = len(members)
    found = yield from _judge(cluster, members, required=count, topology=topology, preempt=preempt, work=work)
    return GangStatus(namespace, name, count, count, bound=0, pending=count, gated=0, **found._asdict())


def _planned_status(cluster: OfflineCluster, gang: GangView, *, preempt: bool) -> GangStatus:
    bound, gated, required = gang.bound, gang.gated, gang.required
    missing = required - gang.present
    documents = {pod.metadata.uid: cluster.documents[key] for key, pod in cluster.pods.items()}
    waiting = [(request, documents[request.uid]) for request in gang.pending]
    fits, fitting, preemption = True, None, None
    if not gang.group.is_sized:
        text, fits = "its size is not known here: it is in a PodGroup object", False
    elif bound >= required:
        text = f"{bound} of {required} members are bound"
    elif missing > 0 and not bound:
        text, fits = f"{gang.present} of {required} members exist", False
        if gated:
            text += f", {gated} more wait for their schedulingGates"
    else:
        # The rest of a gang that is bound in part, or a gang with gated members, does not preempt as a whole.
        preempt = preempt and not bound and not gated
        required_now = min(required - bound, len(waiting))
        text, fits, fitting, preemption = finish(
            _judge(cluster, waiting, required=required_now, topology=gang.group.topology, preempt=preempt)
        )
        if bound:
            text = f"{bound} of {required} members are bound; the rest: {text}"
    return _status(gang, text, fits, fitting, preemption)


def _status(
    gang: GangView, text: str, fits: bool, fitting: int | None, preemption: PreemptionOutlook | None = None
) -> GangStatus:
    group = gang.group
    counts = gang.bound, len(gang.pending), gang.gated
    return GangStatus(gang.namespace, group.name, group.size, group.minimum, *counts, text, fits, fitting, preemption)


def _judge(
    cluster: OfflineCluster,
    members: Sequence[tuple[PodRequest, Json]],
    *,
    required: int,
    topology: str,
    preempt: bool,
    work: float = math.inf,
) -> Generator[None, None, _Verdict]:
    selector = cluster.view.selector
    known: dict[bytes, Candidates] = {}
    planned = []
    for request, document in members:
        # Most members may use the same nodes, and looking at all of them takes longer than placing one.
        constraints = msgspec.json.encode(pod_constraints(document))
        if constraints not in known:
            names, _ = yield from cluster.candidates_in_steps(document)
            known[constraints] = selector.candidates(names)
        planned.append(GangMember(request, known[constraints]))
        yield
    domains = cluster.domains(topology)
    planning = GangPlanning(selector, planned, required=required, domains=domains, work=work)
    answer = yield from planning.steps()
    planning.take_back()
    if isinstance(answer, Unfinished):
        return _Verdict(TOO_MUCH_WORK, False, 0)
    if isinstance(answer, GangMisfit):
        priorities = [request.preempts_below for request, _ in members]
        outlook = None
        if preempt:
            priority = min((each for each in priorities if each is not None), default=0)
            demand = Demand(planned, required, priority=priority, fitting=answer.places, domains=domains)
            outlook = foresee_gang(cluster, demand, is_patient=None in priorities)
        return _Verdict(answer.text, False, len(answer.places), outlook)
    what = describe_members([request for request, _ in members])
    close = ""
    if domains is not None:
        values = {domains.by_node.get(place.placement.node, "none") for place in answer.places}
        close = f", in {len(values)} of {topology}: {', '.join(sorted(values))}"
    return _Verdict(f"{what}: all {len(answer.places)} members fit together{close}", True, len(answer.places))
