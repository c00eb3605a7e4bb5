"""The extension points of the pipeline, with kube-scheduler's names and in its order.

    filter   pre_filter ─▶ place ─▶ (the selector) ─▶ post_filter ─▶ reserve
                                                      │              unreserve, in reverse order: asked for again
                                                      └─ on_refused: there is no place
    bind     permit ─▶ pre_bind ─▶ before_binding ─▶ (the Binding) ─▶ post_bind
    always   what the API shows (on_pod, on_node, ...), recover, tick, wake, run, end_term

A feature overrides the methods of the points that it needs. Filter asks it about those pods only that it says it
`concerns`. Features are made in one order (`features.registry`); they know the pipeline, and never each other. Up to
the bind nothing waits: filter is one step of the event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from tessera.core.model.devices import NodeFacts
from tessera.core.model.grants import Placement
from tessera.core.model.misfits import Misfit
from tessera.core.model.requests import PodRequest
from tessera.core.search.preemption import Preemption
from tessera.core.search.selection import Candidates, Refused, Selector
from tessera.scheduler.clock import Clock
from tessera.scheduler.eviction.evictor import Evictor
from tessera.scheduler.eviction.preemption_loop import NominatedNodes, Preemptor
from tessera.scheduler.informers.handler import InformerHandler
from tessera.scheduler.kube_api import KubeApi
from tessera.scheduler.observer import SchedulerObserver
from tessera.scheduler.pod_cycle import PodCycle, PodCycles
from tessera.scheduler.requests.candidate_lists import CandidateList
from tessera.scheduler.requests.reader import PreparedRequest, RequestReader
from tessera.scheduler.settings import Settings
from tessera.scheduler.tenure import Tenure
from tessera.vendors.drafts import BadPod
from tessera.wire.objects import Node, Pod
from tessera.wire.resource_api import ResourceClaim

Named = CandidateList | Candidates
"""the nodes to choose from"""
Work = Callable[[], Coroutine[Any, Any, None]]
F = TypeVar("F", bound="Feature")
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class Attempt:
    """One filter call for one pod, or one try to place it on the node that a bind names."""

    pod: Pod
    prepared: PreparedRequest
    request: PodRequest
    given: Named
    """by kube-scheduler"""
    candidates: Named
    """those of them that features leave"""
    features: Sequence[Feature] = ()
    """those that have a say about the pod"""
    elsewhere: Misfit | None = None
    """why the others are left out"""

    def narrow(self, candidates: Candidates, elsewhere: Misfit) -> None:
        self.candidates, self.elsewhere = candidates, elsewhere


class Place(NamedTuple):
    """A feature has a place for the pod."""

    request: PodRequest
    """the alternative of the pod's request that it is for"""
    placement: Placement


class Refusal(NamedTuple):
    """A feature refuses the pod on all nodes, and wakes it itself."""

    misfit: Misfit
    is_first: bool
    """it was not refused with these words before"""
    refusals: int
    """in all, with this one"""


class WaitingGroup(NamedTuple):
    """Pods that wait for room together: all of them get a place, or none."""

    name: str
    requests: tuple[PodRequest, ...]
    candidates: Candidates
    """of the first of them"""


class Pipeline(Protocol):
    """What a feature gets of the pipeline; kube-scheduler calls it the handle."""

    settings: Settings
    api: KubeApi
    clock: Clock
    observer: SchedulerObserver
    tenure: Tenure
    selector: Selector
    """and its ledger"""
    cycles: PodCycles
    """with the pods that were refused"""
    request_reader: RequestReader
    preemption: Preemption
    """the search for victims"""
    evictor: Evictor
    """and what is known of victims"""
    nominated_nodes: NominatedNodes
    spawn: Callable[[Coroutine[Any, Any, None]], object]
    """runs it beside everything else"""

    def missing(self) -> str:
        """Why no decision can be made; empty if one can."""

    def may_preempt(self) -> bool:
        """Whether this replica decides now, on complete lists."""

    def on_synced(self) -> None:
        """A list is complete that decisions have waited for."""

    def read_again(self, pod: Pod) -> None:
        """What the pod asks for is another now, without a change of the pod."""

    def refresh_node(self, name: str) -> None:
        """What a feature knows of the node's cards has changed."""

    def make_way(self, uid: str) -> None:
        """A place is about to be held for this pod: features release what would be in the way."""

    def preemption_nodes(self, request: PodRequest) -> frozenset[str] | None:
        """The only nodes on which room helps the pod; None if any does."""

    def waiting_groups(self) -> Iterable[WaitingGroup]:
        """What waits for room beside single pods."""

    def preemptors(self) -> Iterable[Preemptor]:
        """What was refused since it was looked at last, and may preempt."""

    async def wake(self, pods: Sequence[PodRequest], on_failed: Callable[[str], None]) -> None:
        """Make kube-scheduler ask for these pods again, several at a time."""


class Feature:
    """Override what is needed. Used from the event loop only."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    # -- what the API shows

    def informers(self) -> Mapping[str, InformerHandler[Any]]:
        """Lists without which nothing is decided, by resource."""
        return {}

    def on_pod(self, pod: Pod) -> None:
        """The API shows the pod; its record and the ledger have seen it."""

    def on_pod_gone(self, uid: str) -> None:
        """The pod was deleted."""

    def on_node(self, node: Node) -> None: ...

    def on_node_gone(self, name: str) -> None: ...

    def join_node(self, facts: NodeFacts) -> NodeFacts:
        """The node with what the feature knows of its cards."""
        return facts

    def join_pod(self, pod: Pod, prepared: PreparedRequest) -> PreparedRequest | BadPod:
        """The pod's request with what the feature adds to it, or why it cannot be placed now."""
        return prepared

    def forget_vendors(self) -> None:
        """The vendors have changed: drop everything that was read or judged by the old ones."""

    # -- filter

    def concerns(self, attempt: Attempt) -> bool:
        """Whether the feature has a say about this pod. Otherwise no point of filter asks it: this is the one question
        that a plain pod costs."""
        return False

    def takes_time(self, attempt: Attempt) -> bool:
        """Whether `prepare` has to come before the decision."""
        return False

    async def prepare(self, attempt: Attempt) -> bool:
        """Work for the decision between other requests; False: the pod was deleted or bound meanwhile."""
        return True

    def pre_filter(self, attempt: Attempt) -> BadPod | None:
        """Narrow the candidates, or say why none will do."""
        return None

    def place(self, attempt: Attempt) -> Place | Refusal | None:
        """A place, a refusal, or nothing: then the next feature is asked, and then the selector."""
        return None

    def post_filter(self, request: PodRequest, candidates: Named) -> bool:
        """The pod fits nowhere: whether room was made for it just now."""
        return False

    def on_refused(self, attempt: Attempt, refused: Refused, *, by_feature: bool) -> Refused:
        """The pod is refused: what it is told."""
        return refused

    def on_bad_pod(self, pod: Pod, bad: BadPod) -> None:
        """The pod is refused because its request cannot be placed now."""

    def reserve(self, prepared: PreparedRequest) -> None:
        """The pod has a reservation."""

    def unreserve(self, request: PodRequest, placement: Placement | None) -> None:
        """kube-scheduler asks for the pod again: its reservation was given up. `placement`: what is free again; None if
        claims of the pod have a part of it."""

    # -- bind

    async def permit(self, cycle: PodCycle) -> str:
        """Wait until the pod may be bound; empty, or why it may not."""
        return ""

    async def pre_bind(self, cycle: PodCycle, annotations: dict[str, str]) -> str:
        """Write what has to be there before the Binding, and add to its annotations; empty, or why it is not sent."""
        return ""

    async def before_binding(self, cycle: PodCycle) -> str:
        """Everything of the pod is written but its Binding: wait until that may be; empty, or why it may not."""
        return ""

    def post_bind(self, cycle: PodCycle, error: str) -> None:
        """The bind has ended: the pod is bound, or why it is not."""

    # -- preemption

    def answer_preempt(self, body: bytes) -> Coroutine[Any, Any, bytes]:
        """The answer to POST /preempt."""
        raise NotImplementedError  # Features that do not override it are not asked.

    def preemption_nodes(self, request: PodRequest) -> frozenset[str] | None:
        """The only nodes on which room helps the pod; None if any does."""
        return None

    def make_way(self, uid: str) -> None:
        """A place is about to be held for this pod: release what would be in the way."""

    def waiting_groups(self) -> Iterable[WaitingGroup]:
        """Pods that wait for room together, and that nothing else is about to help."""
        return ()

    def preemptors(self) -> Iterable[Preemptor]:
        """What was refused since it was looked at last, and may preempt."""
        return ()

    def is_nominated(self, uid: str) -> bool:
        """Whether victims leave for the pod."""
        return False

    def is_binding(self, group: str) -> bool:
        """Whether pods of this group, by namespace and name, are being bound: then none of it may be evicted."""
        return False

    def is_ours_claim(self, claim: ResourceClaim) -> bool:
        """Whether this scheduler, or an earlier one, may have been about to write the claim."""
        return False

    # -- over time

    def missing(self) -> str:
        """Why nothing is decided now; empty if it is."""
        return ""

    def recover(self) -> None:
        """Decisions can be made from now on: first of all, hold what an earlier process has promised."""

    def tick(self) -> None:
        """End what only time ends. Called every 15 s."""

    def wake(self) -> AsyncIterator[Sequence[PodRequest]]:
        """Room was freed: pods of the feature that kube-scheduler should ask for again."""
        raise NotImplementedError  # Features that do not override it are not asked.

    def on_wake_failed(self, uid: str) -> None:
        """A pod of `wake` was not woken: the next change tries again."""

    def work(self) -> Sequence[Work]:
        """What runs as long as the process does."""
        return ()

    def end_term(self) -> None:
        """This replica does not decide any more: nothing is held."""


def methods(features: Iterable[Feature], point: Callable[Concatenate[Any, P], R]) -> tuple[Callable[P, R], ...]:
    """The methods of the features that override this point of `Feature`, in the order of the features."""
    name = point.__name__
    return tuple(getattr(each, name) for each in features if getattr(type(each), name) is not getattr(Feature, name))


def feature_of(features: Iterable[Feature], kind: type[F]) -> F:
    """The feature of this class."""
    return next(each for each in features if isinstance(each, kind))
