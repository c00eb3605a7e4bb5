"""Why a pod waits, or why it is where it is.

A waiting pod is judged by the engine as it would be judged now. A placed pod is explained from the same engine without
that pod: what the choice looks like today, which is said so, since others may have come and gone since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from tessera.core.grants import Placement
from tessera.core.holdings import PodFacts
from tessera.core.ledger import State
from tessera.inspect.choice import Fits
from tessera.inspect.demand import Expected, refusal
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.request import Understood, understood
from tessera.inspect.slices import Slice, slices_of
from tessera.inspect.state import InspectionError, Json
from tessera.inspect.verdicts import FitsNowhere, Group, judge
from tessera.scheduler.pod_requests import Prepared
from tessera.vendors.drafts import BadPod
from tessera.vendors.pod_reader import ENDED
from tessera.wire.expectations import nearest
from tessera.wire.objects import Pod


class Status(Enum):
    """Where the pod stands."""

    PLACED = "Placed"
    FITS = "Fits"
    """it waits, but there is a place for it"""
    REFUSED = "Refused"
    INVALID = "Invalid"
    NO_DEVICES = "NoDevices"
    ENDED = "Ended"
    UNACCOUNTED = "Unaccounted"


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that is known about one pod."""

    namespace: str
    name: str
    status: Status
    scheduler: str
    phase: str
    node: str = ""
    request: Understood | None = None
    problem: str = ""
    """why the request cannot be honoured, or why the allocation cannot be read"""
    notes: tuple[str, ...] = ()
    slices: tuple[Slice, ...] = ()
    """what a placed pod holds"""
    verdict: Fits | FitsNowhere | None = None
    kept_off: tuple[Group, ...] = ()
    """nodes that kube-scheduler's own rules rule out before Tessera is asked"""
    expected: Expected | None = None
    """the pods to come; None where the policies do not look ahead"""
    said: str = ""
    """what kube-scheduler last said about the pod"""

    @property
    def is_good(self) -> bool:
        """Whether nothing keeps the pod from running, as far as devices go."""
        return self.status not in (Status.REFUSED, Status.INVALID, Status.UNACCOUNTED)


def find(world: OfflineCluster, name: str, namespace: str) -> str:
    """The key of a pod named NAME or NAMESPACE/NAME; raises InspectionError where there is none."""
    key = name if "/" in name else f"{namespace}/{name}"
    if key in world.pods:
        return key
    elsewhere = sorted(other for other in world.pods if other.endswith(f"/{name}"))
    if elsewhere and "/" not in name:
        raise InspectionError(f"no pod {key}; there is {', '.join(elsewhere[:3])}: name one of them")
    raise InspectionError(f"no pod {key} that asks for devices{nearest(key, list(world.pods), what='pods')}")


def explain(world: OfflineCluster, key: str, *, cards: bool = False) -> Explanation:
    pod, document = world.pods[key], world.documents[key]
    prepared = world.prepare(pod)
    base = _base(world, pod, document, prepared)
    if pod.status.phase in ENDED:
        return replace(base, status=Status.ENDED)
    entry = world.ledger.pod(pod.metadata.uid)
    if entry is not None and entry.state is State.BOUND:
        return _placed(world, pod, document, prepared, entry.facts, base)
    if isinstance(prepared, BadPod):
        return replace(base, status=Status.INVALID)
    if not prepared.request.asks_for_devices:
        return base
    if pod.spec.node_name:
        text = (
            f"it is on {pod.spec.node_name}, but no annotation says which cards it has: another scheduler put it there"
        )
        return replace(base, status=Status.UNACCOUNTED, problem=text)
    names, kept_off = world.candidates(document)
    verdict = judge(world.engine.selector, prepared.request, names, cards=cards)
    status = Status.FITS if isinstance(verdict, Fits) else Status.REFUSED
    return replace(base, status=status, verdict=verdict, kept_off=grouped(kept_off))


def expected_by(world: OfflineCluster, prepared: Prepared | BadPod) -> Expected | None:
    """What the pod's policies know about the pods to come."""
    ahead = isinstance(prepared, Prepared) and prepared.request.outlook is not None
    return world.learning.expected if ahead else None


def grouped(kept_off: Mapping[str, str]) -> tuple[Group, ...]:
    """Nodes by the reason for which kube-scheduler would not ask about them."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in kept_off.items():
        by_reason.setdefault(reason, []).append(name)
    return tuple(Group(reason, tuple(sorted(names))) for reason, names in sorted(by_reason.items()))


def bad_text(bad: BadPod) -> str:
    return f"container {bad.container}: {bad.text}" if bad.container else bad.text


def _base(world: OfflineCluster, pod: Pod, document: Json, prepared: Prepared | BadPod) -> Explanation:
    """What is always said."""
    asks = isinstance(prepared, Prepared) and prepared.request.asks_for_devices
    return Explanation(
        pod.metadata.namespace,
        pod.metadata.name,
        Status.NO_DEVICES,
        pod.spec.scheduler_name,
        pod.status.phase,
        node=pod.spec.node_name,
        request=understood(prepared.request, pod.annotations, world.vendors)
        if isinstance(prepared, Prepared) and asks
        else None,
        problem=bad_text(prepared) if isinstance(prepared, BadPod) else "",
        notes=tuple(_notes(world, pod)),
        expected=expected_by(world, prepared),
        said=refusal(document) or "",
    )


def _placed(
    world: OfflineCluster, pod: Pod, document: Json, prepared: Prepared | BadPod, facts: PodFacts, base: Explanation
) -> Explanation:
    containers = [container.name for container in (*pod.init_containers, *pod.app_containers)]
    slices = slices_of(world.ledger, Placement(facts.node, facts.grants), containers)
    names, kept_off = world.candidates(document)
    verdict = None
    if isinstance(prepared, Prepared) and prepared.request.asks_for_devices:
        with world.without(f"{pod.metadata.namespace}/{pod.metadata.name}"):
            verdict = judge(world.engine.selector, prepared.request, names, advice=False, cards_of=facts.node)
    return replace(
        base,
        status=Status.PLACED,
        slices=slices,
        verdict=verdict,
        kept_off=grouped(kept_off),
        node=facts.node,
        problem=facts.problem or base.problem,
    )


def _notes(world: OfflineCluster, pod: Pod) -> list[str]:
    notes = []
    ours, scheduler = world.settings.scheduler_name, pod.spec.scheduler_name
    if not pod.spec.node_name and scheduler and scheduler != ours:
        notes.append(
            f"its schedulerName is {scheduler}, not {ours}: Tessera is never asked about it."
            " Did it pass the webhook? (tessera doctor)"
        )
    if pod.metadata.deletion_timestamp:
        notes.append("it is being deleted; its slices count until it is gone")
    return notes
