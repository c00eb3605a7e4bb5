"""POST /bind: one atomic write of node and allocation, once it is the pod's turn on that node.

    RESERVED, UNCERTAIN, or placed again after a restart
      -> permit: a member of a gang waits for the others
      -> BINDING: the reservation no longer expires
      -> pre-bind: its ResourceClaims are written; a pod whose claims are not its own is not bound
      -> turn and node lock, where the plugin needs them
      -> Binding with all annotations; the pod's uid, and the version that the decision saw, are its preconditions
    written                                      BOUND
    the pod has another version (409)            read; sent again for that version while this replica decides
    no answer                                    looked up first; UNCERTAIN while it may yet take effect
    refused for now (429, 5xx)                   sent again a few times; then back to RESERVED
    gone, re-created, bound elsewhere (404, 409) the placement is void

Of all bindings that were sent for one version of a pod only one can land. So sending it again is safe, and a change of
the version voids all of them. Every end leaves ledger and record as the API will show the pod. `pod_cycle` draws the
states.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec
import structlog

from tessera.core.model.grants import Placement
from tessera.kube.errors import KubeError, is_not_found
from tessera.scheduler.filter import Filter
from tessera.scheduler.framework import Feature, methods
from tessera.scheduler.kube_api import KubeApi
from tessera.scheduler.observer import BindEvent, SchedulerObserver
from tessera.scheduler.pod_cycle import UNSCHEDULABLE, CycleState, PodCycle, PodCycles
from tessera.scheduler.queue.allocation_queue import Ticket
from tessera.scheduler.requests.reader import PreparedRequest
from tessera.scheduler.takeover import touch
from tessera.scheduler.tenure import NOT_LEADING, TAKEN_OVER, Tenure
from tessera.scheduler.versioned_write import NotSent, look_up, write_version
from tessera.services.failpoints import Failpoint, failpoint
from tessera.vendors.binding_annotations import binding_annotations
from tessera.vendors.downward_api import slice_annotations
from tessera.vendors.drafts import BadPod
from tessera.vendors.pod_reader import ENDED
from tessera.wire import keys
from tessera.wire.errors import WireError
from tessera.wire.extender import BindingArgs, decode_binding_args, encode_binding_result
from tessera.wire.objects import Pod

log = structlog.get_logger(__name__)


class WriteResult(Enum):
    """What became of a binding."""

    BOUND = "bound"
    NOT_BOUND = "not bound"
    """as far as is known: the record says whether one may land yet"""
    VOID = "void"
    """the pod is gone, re-created, changed or bound elsewhere"""


class Outcome(msgspec.Struct, frozen=True):
    """The end of a bind."""

    result: WriteResult
    error: str = ""


BOUND = Outcome(WriteResult.BOUND)
INTERRUPTED = "the bind was interrupted"


class Binder:
    """Binds reserved pods."""

    def __init__(
        self,
        cycles: PodCycles,
        filter_: Filter,
        features: Sequence[Feature],
        *,
        api: KubeApi,
        tenure: Tenure,
        observer: SchedulerObserver,
    ) -> None:
        self._cycles = cycles
        self._filter = filter_
        self._permit = methods(features, Feature.permit)
        self._pre_bind = methods(features, Feature.pre_bind)
        self._before_binding = methods(features, Feature.before_binding)
        self._post_bind = methods(features, Feature.post_bind)
        self._api = api
        self._vendors = filter_.request_reader.vendors
        self._tenure = tenure
        self._observer = observer
        self._before_write = failpoint(Failpoint.BEFORE_WRITE)
        self._after_write = failpoint(Failpoint.AFTER_WRITE)

    async def answer(self, body: bytes) -> bytes:
        """The answer to a request, errors included."""
        try:
            args = decode_binding_args(body)
        except WireError as error:
            return encode_binding_result(str(error))
        cycle = self._cycles.check_out(args.pod_uid)
        if cycle is None:
            return encode_binding_result(f"pod {args.pod_namespace}/{args.pod_name} is being bound already")
        ended = INTERRUPTED
        try:
            outcome = None if self._has_reservation(cycle, args) else await self._reserve_again(cycle, args)
            if outcome is None:
                outcome = await self._await_permit(cycle, args)
            if outcome is None:
                outcome = await self._bind(cycle, args)
            ended = outcome.error
        finally:
            for post_bind in self._post_bind:
                post_bind(cycle, ended)
            self._cycles.check_in(cycle)
        self._observer.on_bind(BindEvent(args.pod_namespace, args.pod_name, args.pod_uid, outcome.error, args.node))
        return encode_binding_result(outcome.error)

    # -- before the write

    def _has_reservation(self, cycle: PodCycle, args: BindingArgs) -> bool:
        """Whether the pod has a placement on the node that kube-scheduler names."""
        reserved = cycle.state in (CycleState.RESERVED, CycleState.UNCERTAIN) and self._cycles.may_be_written(cycle)
        return reserved and cycle.placement is not None and cycle.placement.node == args.node

    async def _reserve_again(self, cycle: PodCycle, args: BindingArgs) -> Outcome | None:
        """Place the pod on this node; None if it has a reservation now.

        Needed after a restart, after an expiry, and after another replica led.
        """
        pod_name = f"pod {args.pod_namespace}/{args.pod_name}"
        if cycle.state is CycleState.UNCERTAIN and cycle.placement is not None:
            return Outcome(WriteResult.NOT_BOUND, f"{pod_name} may be bound to {cycle.placement.node} already")
        try:
            pod = await self._api.get_pod(args.pod_namespace, args.pod_name)
        except KubeError as error:
            return Outcome(WriteResult.VOID, f"{pod_name} cannot be read: {error}")
        if pod.metadata.uid != args.pod_uid:
            return Outcome(WriteResult.VOID, f"{pod_name} was re-created")
        if pod.spec.node_name:
            is_here = pod.spec.node_name == args.node
            return Outcome(WriteResult.BOUND, "" if is_here else f"pod is bound to {pod.spec.node_name} already")
        prepared = self._filter.request_reader.read(pod)
        if isinstance(prepared, BadPod):
            return Outcome(WriteResult.VOID, prepared.text)
        if self._tenure.is_taken_over(prepared.fence, known=""):
            await self._fence_again(args)
            return Outcome(WriteResult.VOID, f"{pod_name}: {TAKEN_OVER}")
        if not prepared.needs_placement:
            try:
                return await self._write(cycle, args, prepared, {}, {})
            except KubeError as error:
                return Outcome(WriteResult.NOT_BOUND, str(error))
        if cycle.state is CycleState.RESERVED:
            self._cycles.give_up(cycle)
        if cycle.state not in (CycleState.PENDING, *UNSCHEDULABLE):
            return Outcome(WriteResult.VOID, f"{pod_name} was deleted or bound meanwhile")
        problem = self._filter.reserve_on(pod, prepared, args.node)
        return Outcome(WriteResult.VOID, problem) if problem else None

    async def _await_permit(self, cycle: PodCycle, args: BindingArgs) -> Outcome | None:
        """None once the pod may be bound."""
        for permit in self._permit:
            problem = await permit(cycle)
            if problem:
                return Outcome(WriteResult.NOT_BOUND, problem)
        return None if self._has_reservation(cycle, args) else self._overtaken(args)

    # -- the write

    async def _bind(self, cycle: PodCycle, args: BindingArgs) -> Outcome:
        """From a reservation on `args.node` to the end."""
        cycles = self._cycles
        cycles.start_bind(cycle)
        ticket, prepared, placement = cycle.ticket, cycle.prepared, cycle.placement
        assert prepared is not None  # a reservation has both
        assert placement is not None
        is_writing = False
        try:
            annotations: dict[str, str] = {}
            outcome = self._obstacle(cycle, args, placement)
            if outcome is None:
                outcome = await self._pre_bind_all(cycle, annotations) or self._obstacle(cycle, args, placement)
            if outcome is None:
                unserved = await self._take_turn(ticket)
                outcome = self._obstacle(cycle, args, placement) or unserved
            if outcome is None:
                labels = {}
                own = prepared.classic_part(placement)
                if own.grants or prepared.claims is None:
                    now = cycles.clock.now()
                    annotations |= binding_annotations(prepared.classic, own, vendors=self._vendors, now=now)
                    annotations |= slice_annotations(own, self._vendors)
                    labels = {keys.ASSIGNED_NODE: args.node}
                is_writing = True
                outcome = await self._write(cycle, args, prepared, annotations, labels)
        except KubeError as error:
            outcome = Outcome(WriteResult.NOT_BOUND, str(error))
        except BaseException:
            if is_writing:
                cycles.mark_written(cycle)
            await self._finish(cycle, ticket, WriteResult.NOT_BOUND)
            raise
        await self._finish(cycle, ticket, outcome.result)
        return outcome

    def _obstacle(self, cycle: PodCycle, args: BindingArgs, placement: Placement) -> Outcome | None:
        """Why the Binding is not sent; None if it may be."""
        if cycle.state is not CycleState.BINDING:
            return self._overtaken(args)
        if not self._cycles.may_be_written(cycle):
            return Outcome(WriteResult.NOT_BOUND, NOT_LEADING)
        if not self._cycles.has_cards(placement):
            return self._given_up(cycle, f"node {args.node} lost its devices")
        return None

    async def _pre_bind_all(self, cycle: PodCycle, annotations: dict[str, str]) -> Outcome | None:
        problem = ""
        for pre_bind in self._pre_bind:
            problem = problem or await pre_bind(cycle, annotations)
        for before_binding in self._before_binding:
            problem = problem or await before_binding(cycle)
        return self._given_up(cycle, problem) if problem else None

    async def _take_turn(self, ticket: Ticket | None) -> Outcome | None:
        problem = await self._cycles.queue.enter(ticket) if ticket is not None else ""
        return Outcome(WriteResult.NOT_BOUND, problem) if problem else None

    def _write(
        self,
        cycle: PodCycle,
        args: BindingArgs,
        prepared: PreparedRequest,
        annotations: Mapping[str, str],
        labels: Mapping[str, str],
    ) -> Awaitable[Outcome]:
        """Raises KubeError if it is not known what became of it."""
        write = _BindingWrite(self, cycle, args, prepared, annotations, labels, self._cycles.term)
        return write_version(write) if prepared.version else write.read_and_send()

    async def _fence_again(self, args: BindingArgs) -> None:
        """Replace a foreign fence, so that the next bind succeeds if this replica still decides by then.

        It may be a late touch of an earlier decider, or copied from another manifest. Filter accepts what it has seen,
        but a pod without devices may reach bind only.
        """
        if not self._tenure.is_held():
            return
        try:
            await touch(self._api, args.pod_namespace, args.pod_name, self._tenure.next_touch())
        except KubeError as error:
            log.warning("pod not fenced again", pod=f"{args.pod_namespace}/{args.pod_name}", error=str(error))

    @staticmethod
    def _given_up(cycle: PodCycle, error: str) -> Outcome:
        """The placement is not bound; it is void unless an earlier binding may land yet."""
        return Outcome(WriteResult.VOID if cycle.written_at is None else WriteResult.NOT_BOUND, error)

    # -- after the write

    def _overtaken(self, args: BindingArgs) -> Outcome:
        """The informer has shown the pod's end, or its binding, while the bind waited."""
        entry = self._cycles.ledger.pod(args.pod_uid)
        if entry is not None and entry.observed and entry.facts.node == args.node:
            return BOUND
        return Outcome(WriteResult.VOID, f"pod {args.pod_namespace}/{args.pod_name} was deleted or bound meanwhile")

    async def _finish(self, cycle: PodCycle, ticket: Ticket | None, result: WriteResult) -> None:
        """Bring the record to what the result means; give turn and locks back unless it keeps them."""
        match result:
            case WriteResult.BOUND:
                self._cycles.confirm(cycle)
            case WriteResult.NOT_BOUND:
                self._cycles.put_back(cycle)
            case WriteResult.VOID:
                self._cycles.void(cycle)
        if ticket is not None and cycle.ticket is not ticket:
            await self._cycles.queue.give_back(ticket)

    async def look_up_unconfirmed(self) -> None:
        """Look up bindings that the informer should have shown by now; called at every tick.

        A pod that came and went between two lists is never shown, and no event would free what it was given.
        """
        for uid in [cycle.uid for cycle in self._cycles.unconfirmed()]:
            cycle = self._cycles.check_out(uid)
            if cycle is None:
                continue
            try:
                await self._look_up_binding(cycle)
            finally:
                self._cycles.check_in(cycle)

    async def _look_up_binding(self, cycle: PodCycle) -> None:
        state, ticket, prepared, placement = cycle.state, cycle.ticket, cycle.prepared, cycle.placement
        if state not in (CycleState.BOUND, CycleState.UNCERTAIN) or prepared is None or placement is None:
            return
        request = prepared.request
        args = BindingArgs(request.name, request.namespace, request.uid, placement.node)
        try:
            if state is CycleState.UNCERTAIN and self._tenure.is_held():
                # What was sent before can land no more, so what the answer shows is the end of it.
                pod = await touch(self._api, request.namespace, request.name, self._tenure.next_touch())
            else:
                pod = await self._api.get_pod(request.namespace, request.name)
        except KubeError as error:
            if not is_not_found(error):
                if state is CycleState.UNCERTAIN:
                    log.warning("binding uncertain", pod=f"{request.namespace}/{request.name}", error=str(error))
                return
            is_bound = False
        else:
            outcome = _read_outcome(pod, args, "")
            is_bound = outcome is not None and outcome.result is WriteResult.BOUND
            if outcome is None and pod.metadata.resource_version == prepared.version:
                return  # It may land yet.
        if cycle.state is state:
            await self._finish(cycle, ticket, WriteResult.BOUND if is_bound else WriteResult.VOID)


@dataclass(slots=True)
class _BindingWrite:
    """A Binding, for the version of the pod that it is sent for next."""

    _binder: Binder
    _cycle: PodCycle
    _args: BindingArgs
    _prepared: PreparedRequest
    _annotations: Mapping[str, str]
    _labels: Mapping[str, str]
    _term: int

    @property
    def version(self) -> str:
        return self._prepared.version

    async def read_and_send(self) -> Outcome:
        """For a filter request that did not have the pod's version."""
        name = f"pod {self._args.pod_namespace}/{self._args.pod_name}"
        found = await look_up(self, f"{name} is gone, being deleted, or cannot be read")
        return await write_version(self) if found is None else found

    def send(self) -> Awaitable[None]:
        binder, args = self._binder, self._args
        if not binder._tenure.is_held() or self._term != binder._cycles.term:
            # Another replica decides by now, and knows nothing of what was reserved here.
            raise NotSent(NOT_LEADING)
        binder._before_write()
        return binder._api.bind(
            args.pod_namespace,
            args.pod_name,
            uid=args.pod_uid,
            resource_version=self._prepared.version,
            node=args.node,
            annotations=self._annotations,
            labels=self._labels,
        )

    def on_written(self, answer: None) -> Outcome:
        self._binder._after_write()
        return BOUND

    def on_unanswered(self) -> None:
        self._binder._cycles.mark_written(self._cycle)

    async def read(self, error: str) -> Outcome | None:
        try:
            pod = await self._binder._api.get_pod(self._args.pod_namespace, self._args.pod_name)
        except KubeError as fault:
            if is_not_found(fault):
                return Outcome(WriteResult.VOID, error)
            raise
        return _read_outcome(pod, self._args, error) or self._renew(pod)

    async def give_up(self, error: str, *, may_land: bool) -> Outcome:
        found = await look_up(self, error) if may_land else None
        return found or Outcome(WriteResult.NOT_BOUND, error)

    def _renew(self, pod: Pod) -> Outcome | None:
        """Go on with the version that the pod has now, unless it is not what was placed any more."""
        if pod.metadata.resource_version == self._prepared.version:
            return None
        binder, name = self._binder, f"pod {pod.metadata.namespace}/{pod.metadata.name}"
        fresh = binder._filter.request_reader.read(pod)
        if isinstance(fresh, BadPod) or not fresh.asks_the_same(self._prepared):
            return Outcome(WriteResult.VOID, f"{name} was changed after it was placed")
        if binder._tenure.is_taken_over(fresh.fence, known=self._prepared.fence):
            return Outcome(WriteResult.VOID, f"{name}: {TAKEN_OVER}")
        binder._cycles.renew(self._cycle, fresh)
        self._prepared = fresh
        return None


def _read_outcome(pod: Pod, args: BindingArgs, error: str) -> Outcome | None:
    """What the pod shows of its binding; None if it is not bound, but may be."""
    if pod.metadata.uid != args.pod_uid:
        return Outcome(WriteResult.VOID, f"pod {args.pod_namespace}/{args.pod_name} was re-created")
    if pod.status.phase in ENDED:
        # No event will tell of it again: what was reserved for it must go now.
        return Outcome(WriteResult.VOID, f"pod {args.pod_namespace}/{args.pod_name} has ended already")
    if pod.spec.node_name:
        is_here = pod.spec.node_name == args.node
        return BOUND if is_here else Outcome(WriteResult.VOID, f"pod is bound to {pod.spec.node_name} already")
    return Outcome(WriteResult.VOID, error) if pod.metadata.deletion_timestamp else None
