"""The status of a gang: which members exist, which are bound, and whether the rest fits together now.

The scheduler's own planner answers, on the cluster as it is. What a running scheduler holds for gangs is in its memory
alone, and counts as free here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.core.gangs import GangMember, GangMisfit, describe_members, plan_gang
from tessera.core.requests import PodRequest
from tessera.core.selection import Unfinished
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.state import Json
from tessera.scheduler.gang import Gang, MemberState


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


def gang_of(cluster: OfflineCluster, uid: str) -> GangStatus | None:
    """The gang of a pod of the cluster; None if it belongs to none."""
    gang = cluster.engine.gangs.registry.of(uid)
    return None if gang is None else _status(cluster, gang)


def plan_members(
    cluster: OfflineCluster, namespace: str, name: str, members: Sequence[tuple[PodRequest, Json]], *, topology: str
) -> GangStatus:
    """A gang that does not exist yet, with all its members as request and document."""
    count = len(members)
    text, fits, fitting = _judge(cluster, members, required=count, topology=topology)
    return GangStatus(
        namespace, name, count, count, bound=0, pending=count, gated=0, text=text, fits=fits, fitting=fitting
    )


def _status(cluster: OfflineCluster, gang: Gang) -> GangStatus:
    bound, pending, gated = (gang.count(state) for state in (MemberState.BOUND, MemberState.PENDING, MemberState.GATED))
    required = gang.required
    missing = required - gang.present()
    documents = {pod.metadata.uid: cluster.documents[key] for key, pod in cluster.pods.items()}
    waiting = [(member.request, documents[member.request.uid]) for member in gang.pending()]
    fits, fitting = True, None
    if not gang.group.is_sized:
        text, fits = "its size is not known here: it is in a PodGroup object", False
    elif bound >= required:
        text = f"{bound} of {required} members are bound"
    elif missing > 0 and not bound:
        text, fits = f"{gang.present()} of {required} members exist", False
        if gated:
            text += f", {gated} more wait for their schedulingGates"
    else:
        text, fits, fitting = _judge(
            cluster, waiting, required=min(required - bound, len(waiting)), topology=gang.group.topology
        )
        if bound:
            text = f"{bound} of {required} members are bound; the rest: {text}"
    return GangStatus(
        gang.namespace, gang.group.name, gang.group.size, gang.group.minimum, bound, pending, gated, text, fits, fitting
    )


def _judge(
    cluster: OfflineCluster, members: Sequence[tuple[PodRequest, Json]], *, required: int, topology: str
) -> tuple[str, bool, int]:
    """In a sentence, whether all that is required fits, and how many members do."""
    selector = cluster.engine.selector
    known: dict[tuple[str, ...], GangMember] = {}
    planned = []
    for request, document in members:
        names = tuple(cluster.candidates(document)[0])
        like = known.setdefault(names, GangMember(request, selector.candidates(names)))
        planned.append(GangMember(request, like.candidates))
    domains = cluster.engine.labels.domains(topology)
    answer = plan_gang(selector, planned, required=required, domains=domains)
    assert not isinstance(answer, Unfinished)  # without a limit of work
    if isinstance(answer, GangMisfit):
        return answer.text, False, len(answer.places)
    what = describe_members([request for request, _ in members])
    close = ""
    if domains is not None:
        values = {domains.by_node.get(place.placement.node, "none") for place in answer.places}
        close = f", in {len(values)} of {topology}: {', '.join(sorted(values))}"
    return f"{what}: all {len(answer.places)} members fit together{close}", True, len(answer.places)
