"""What the scheduling pipeline reports to the rest of the process: one typed interface, no callbacks.

Observers never raise and never block. Nothing that they do changes a decision.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec
import structlog

from tessera.core.ledger.audit import AuditFinding
from tessera.core.model.grants import Placement
from tessera.core.model.misfits import Misfit
from tessera.core.model.requests import PodRequest
from tessera.core.search.selection import Candidates, Refused, Selected, Unfinished
from tessera.core.search.victims import PodTraits
from tessera.scheduler.requests.candidate_lists import CandidateList
from tessera.wire.journal import ReleaseReason
from tessera.wire.objects import Pod, Workload

log = structlog.get_logger(__name__)


MAX_NAMED = 16
"""pods in one text; an event of the API has 1024 characters"""


class FilterDecision(msgspec.Struct, frozen=True, gc=False):
    """A filter call decided. Reported before the ledger changes."""

    request: PodRequest
    answer: Selected | Refused | Unfinished
    candidates: CandidateList | Candidates
    refusals: int
    """how often the pod was refused so far, this time included"""
    seconds: float
    """that the decision took"""
    of_gang: bool = False
    """the pod's gang waits as a whole, which is why it is refused"""


class BindDecision(msgspec.Struct, frozen=True, gc=False):
    """A pod was placed on one given node, or could not be: on the node that a bind call names, where it has no
    reservation, or on the node that is held for a member of a gang. Reported before the ledger changes."""

    request: PodRequest
    answer: Placement | Misfit
    node: str
    seconds: float


class PlacedEvent(msgspec.Struct, frozen=True):
    """A filter call reserved a placement."""

    request: PodRequest
    describe: Callable[[], str]
    """compares all candidates; call it soon, because nodes change"""
    describe_briefly: Callable[[], str]
    """names the chosen node alone; can be called at any time"""


class RefusedEvent(msgspec.Struct, frozen=True):
    """A filter call found no node."""

    request: PodRequest
    refused: Refused
    is_first: bool
    """the pod was not refused before"""
    describe: Callable[[], str]
    """one sentence, with the numbers of that moment; takes milliseconds where there are thousands of nodes"""
    pod: Pod | None = None
    """as kube-scheduler sent it"""


class BindEvent(msgspec.Struct, frozen=True):
    """A bind call ended."""

    namespace: str
    name: str
    uid: str
    error: str
    """empty if the pod is bound"""
    node: str

    @property
    def text(self) -> str:
        return self.error or f"Successfully binding node [{self.node}] to {self.namespace}/{self.name}"


class EvictedEvent(msgspec.Struct, frozen=True):
    """A pod was evicted so that another one fits."""

    victim: PodTraits
    preemptor: PodRequest
    node: str
    priority: int
    """of the preemptor"""
    gang: str = ""
    """that the preemptor is a member of, if all of it preempts"""

    @property
    def text(self) -> str:
        """The text of the victim's event."""
        who = f"gang {self.gang}" if self.gang else f"pod {self.preemptor.namespace}/{self.preemptor.name}"
        return f"Preempted by {who} (priority {self.priority}) on node {self.node}, which needs its devices"


class PreemptionEvent(msgspec.Struct, frozen=True):
    """The preemptor has looked for victims for a refused pod, or for a gang."""

    request: PodRequest
    """of a gang, one of its members"""
    node: str = ""
    """where the pod is nominated, or the nodes of a gang; empty if it is not"""
    victims: tuple[PodTraits, ...] = ()
    """that are evicted for it"""
    waits_for: tuple[PodTraits, ...] = ()
    """that leave anyway"""
    problem: str = ""
    """why there is no nomination, or none any more"""
    seconds: float = 0.0
    """that the search took"""
    gang: str = ""
    """empty for a single pod"""
    members: tuple[PodRequest, ...] = ()
    """of the gang"""

    @property
    def text(self) -> str:
        """The text of the preemptor's event."""
        if self.problem:
            return f"Gang {self.gang}: {self.problem}" if self.gang else self.problem
        evicted = _some([f"{pod.key} (priority {pod.priority})" for pod in self.victims])
        waits = _some([pod.key for pod in self.waits_for])
        parts = [f"evicting {evicted}"] if evicted else []
        parts += [f"waiting for {waits} to end"] if waits else []
        what = ", ".join(parts) or "its devices are free"
        if self.gang:
            return f"Gang {self.gang} is nominated as a whole: {what}"
        return f"Nominated for node {self.node}: {what}"


def _some(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMED
    return " and ".join([*names[:MAX_NAMED], *([f"{more} more"] if more > 0 else [])])


class GangEvent(msgspec.Struct, frozen=True):
    """A gang is in another state, or waits for another reason."""

    namespace: str
    name: str
    state: str
    """of `gang.GangState`"""
    text: str
    members: tuple[str, ...]
    """uids"""


class ReleasedEvent(msgspec.Struct, frozen=True):
    """What a pod held is free."""

    namespace: str
    name: str
    uid: str
    node: str
    why: ReleaseReason


class SchedulerObserver:
    """The interface. Each method ignores what it is told, so that an observer overrides only what it needs."""

    def on_filter_decision(self, event: FilterDecision) -> None:
        pass

    def on_bind_decision(self, event: BindDecision) -> None:
        pass

    def on_placed(self, event: PlacedEvent) -> None:
        pass

    def on_refused(self, event: RefusedEvent) -> None:
        pass

    def on_bind(self, event: BindEvent) -> None:
        pass

    def on_evicted(self, event: EvictedEvent) -> None:
        """The apiserver has accepted an eviction."""

    def on_preemption(self, event: PreemptionEvent) -> None:
        pass

    def on_gang(self, event: GangEvent) -> None:
        pass

    def on_released(self, event: ReleasedEvent) -> None:
        pass

    def on_woken(self, request: PodRequest) -> None:
        """A refused pod fits now, and kube-scheduler is made to ask again; reported again if that fails."""

    def on_denied(self, namespace: str, name: str, message: str) -> None:
        """A pod is denied at admission; `name` may be its generateName."""

    def on_pod(self, uid: str, pod: Pod | None) -> None:
        """The API shows a pod that holds devices, or no longer does (None)."""

    def on_claim(self, uid: str, workload: Workload | None) -> None:
        """The API shows a ResourceClaim that holds devices for a workload, or no longer does (None)."""

    def on_cards(self, node: str) -> None:
        """The API shows a node, or a claim of its devices: its cards, or the pods that use them, may be others now."""

    def on_tenure(self) -> None:
        """This replica decides from now on."""

    def on_step_down(self) -> None:
        """This replica decides no more."""

    def on_write(self, verb: str) -> None:
        """A write is about to be sent to the apiserver."""

    def on_audit(self, node: str, findings: Sequence[AuditFinding]) -> None:
        """A node's accounting was checked."""


class ObserverGroup(SchedulerObserver):
    """Passes each event on to the members that do something with it, in their order.

    A member that raises all the same is logged, once for each kind of failure, and neither a decision nor the other
    members notice: a full disk under the log must not stop scheduling.
    """

    def __init__(self, *members: SchedulerObserver) -> None:
        self._reported: set[tuple[str, str]] = set()
        for event in vars(SchedulerObserver):
            listeners = [(member, getattr(member, event)) for member in members if _listens(member, event)]
            if listeners:
                # Instead of the method that ignores the event.
                setattr(self, event, partial(self._tell, listeners))

    def _tell(self, listeners: Iterable[tuple[SchedulerObserver, Callable[..., None]]], *event: object) -> None:
        for member, tell in listeners:
            try:
                tell(*event)
            except Exception as error:
                self._report(member, error)

    def _report(self, member: SchedulerObserver, error: Exception) -> None:
        failure = type(member).__name__, type(error).__name__
        if failure in self._reported:
            return
        self._reported.add(failure)
        # Perhaps the log is what fails.
        with contextlib.suppress(Exception):
            log.error("an observer failed; what it is told next may be lost too", observer=failure[0], exc_info=error)


def _listens(member: SchedulerObserver, event: str) -> bool:
    """Whether a member does something with an event; false for what is no event."""
    ignoring = getattr(SchedulerObserver, event)
    return event.startswith("on_") and getattr(getattr(member, event), "__func__", None) is not ignoring
