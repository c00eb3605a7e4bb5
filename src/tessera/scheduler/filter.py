"""POST /filter: choose a node and reserve its cards, in memory, without an API call, and in one step of the event loop.

An answer has exactly one node, or a reason for every candidate. Where that takes too long for one call, it is an error,
and the decision is made between other requests. A pod that asks for no devices passes through. Whole `Nodes` instead of
names mean a simulation: the same rules on those nodes, without effects. The decision depends on the ledger, the request
and the set of candidates, and on nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from functools import lru_cache, partial
from typing import Any

from msgspec import Raw, structs

from tessera.core.ledger.ledger import Ledger
from tessera.core.model.grants import Placement
from tessera.core.model.misfits import UNREGISTERED, Misfit
from tessera.core.model.requests import PodRequest
from tessera.core.search.advice import brief_success_text, refusal_sentence, success_text
from tessera.core.search.selection import Candidates, Refused, Selected, Selector, Unfinished
from tessera.scheduler.framework import Attempt, Feature, Named, Place, Refusal, methods
from tessera.scheduler.observer import BindDecision, FilterDecision, PlacedEvent, RefusedEvent, SchedulerObserver
from tessera.scheduler.pod_cycle import UNSCHEDULABLE, CycleState, PodCycle, PodCycles
from tessera.scheduler.queue.unschedulable_pods import MAX_WORK
from tessera.scheduler.requests.candidate_lists import CandidateList, CandidateLists
from tessera.scheduler.requests.demand_tracker import DemandTracker
from tessera.scheduler.requests.reader import PreparedRequest, RequestReader
from tessera.services.failpoints import Failpoint, failpoint
from tessera.vendors.drafts import BadPod
from tessera.vendors.node_reader import node_facts
from tessera.wire.errors import WireError
from tessera.wire.extender import FilterArgs, decode_filter_args, decode_node_names, decode_nodes, encode_filter_result
from tessera.wire.objects import Pod

KEPT_REFUSALS = 32
"""a backlog is refused with the same few again and again"""

NO_NODES = "extender args name no nodes"
UNFINISHED = "finding a node takes longer than one call may; the search goes on"


class Filter:
    """Decides on one ledger."""

    def __init__(
        self,
        selector: Selector,
        cycles: PodCycles,
        request_reader: RequestReader,
        features: Sequence[Feature],
        *,
        demand: DemandTracker,
        observer: SchedulerObserver,
    ) -> None:
        self._selector = selector
        self._ledger = selector.ledger
        self._cycles = cycles
        self.request_reader = request_reader
        self._demand = demand
        self._observer = observer
        self._candidate_lists = CandidateLists(selector)
        self._features = features
        self._on_bad_pod = methods(features, Feature.on_bad_pod)
        # Most members of a gang are refused with the same reason for the same candidates.
        self._refuse_all = lru_cache(KEPT_REFUSALS)(_refuse_all)
        self._encode_refusal = lru_cache(KEPT_REFUSALS)(_encode_refusal)
        self._after_reserve = failpoint(Failpoint.AFTER_RESERVE)

    def answer(self, body: bytes) -> bytes:
        """The answer to a request. Errors are part of it, so HTTP always says 200."""
        try:
            args = decode_filter_args(body)
            attempt = self._attempt(args)
            return self._decide(attempt) if isinstance(attempt, Attempt) else self._answer(args, attempt)
        except WireError as error:
            return encode_filter_result(error=str(error))

    def begin(self, body: bytes, missing: Callable[[], str]) -> bytes | Coroutine[Any, Any, bytes]:
        """As `answer`; what takes a feature long is done first, between other requests.

        `missing` says why no decision can be made, which may be so by then.
        """
        try:
            args = decode_filter_args(body)
            attempt = self._attempt(args)
            if not isinstance(attempt, Attempt):
                return self._answer(args, attempt)
            for feature in attempt.features:
                if feature.takes_time(attempt):
                    return self._prepare_and_answer(attempt, missing)
            return self._decide(attempt)
        except WireError as error:
            return encode_filter_result(error=str(error))

    async def _prepare_and_answer(self, attempt: Attempt, missing: Callable[[], str]) -> bytes:
        try:
            request = attempt.request
            cycle = self._cycles.get(request.uid)
            if self._standing_answer(request, cycle, attempt.given) is None:
                if cycle is not None and cycle.state is CycleState.RESERVED:
                    self._give_up(attempt, cycle)
                for feature in attempt.features:
                    if not await feature.prepare(attempt):
                        pod = f"pod {request.namespace}/{request.name}"
                        return encode_filter_result(error=f"{pod} was deleted or bound meanwhile")
            problem = missing()
            return encode_filter_result(error=problem) if problem else self._decide(attempt)
        except WireError as error:
            return encode_filter_result(error=str(error))

    def reserve_on(self, pod: Pod, prepared: PreparedRequest, node: str) -> str:
        """Reserve a placement on this node only; empty, or why there is none."""
        named = self._selector.candidates([node])
        attempt = self._new_attempt(pod, prepared, named)
        for feature in attempt.features:
            bad = feature.pre_filter(attempt)
            if bad is not None:
                return bad.text
        first: Misfit | None = None
        for request in prepared.variants:
            began = time.perf_counter()
            if not request.asks_for_devices:
                self._reserve(attempt, prepared, Placement(node, {}))
                return ""
            answer = self._ledger.fit(request, node)
            self._observer.on_bind_decision(BindDecision(request, answer, node, time.perf_counter() - began))
            if not isinstance(answer, Misfit):
                self._reserve(attempt, structs.replace(prepared, request=request), answer)
                return ""
            first = first or answer
        if first is None or first is UNREGISTERED:
            return f"node {node} has no registered devices"
        return f"pod no longer fits node {node}: {first.text}"

    def _reserve(self, attempt: Attempt, prepared: PreparedRequest, placement: Placement) -> None:
        self._cycles.reserve(prepared, placement)
        for feature in attempt.features:
            feature.reserve(prepared)

    def forget(self) -> None:
        """The vendors have changed: drop everything that was read or judged by the old ones."""
        self.request_reader.forget()
        self._selector.forget()

    # -- decisions

    def _answer(self, args: FilterArgs, prepared: PreparedRequest | BadPod) -> bytes:
        """Where there is nothing to decide on the ledger."""
        if isinstance(prepared, BadPod):
            return self._refuse_bad_pod(args, prepared)
        if not prepared.needs_placement:
            nodes = None if args.nodes is None else [given.raw for given in decode_nodes(args.nodes)]
            return encode_filter_result(node_names=args.node_names, nodes=nodes)
        if args.nodes is not None:
            return self._simulate(prepared.request, args.nodes)
        return encode_filter_result(error=NO_NODES)

    def _attempt(self, args: FilterArgs) -> Attempt | PreparedRequest | BadPod:
        """What is to be decided; the request alone if that is nothing."""
        prepared = self.request_reader.read(args.pod)
        if isinstance(prepared, BadPod) or not prepared.needs_placement or args.nodes is not None:
            return prepared
        if args.node_names is None:
            return prepared
        return self._new_attempt(args.pod, prepared, CandidateList(args.node_names, self._candidate_lists))

    def _new_attempt(self, pod: Pod, prepared: PreparedRequest, named: Named) -> Attempt:
        attempt = Attempt(pod, prepared, prepared.request, named, named)
        attempt.features = [feature for feature in self._features if feature.concerns(attempt)]
        return attempt

    def _decide(self, attempt: Attempt) -> bytes:
        """Pre-filter, place, the selector, post-filter, reserve."""
        request, began = attempt.request, time.perf_counter()
        cycle = self._cycles.get(request.uid)
        standing = self._standing_answer(request, cycle, attempt.given)
        if standing is not None:
            return standing
        if cycle is not None and cycle.state is CycleState.RESERVED:
            self._give_up(attempt, cycle)
        for feature in attempt.features:
            bad = feature.pre_filter(attempt)
            if bad is not None:
                self._leave_to_feature(cycle)
                return self._refuse_unready(attempt.pod, attempt.given, bad)
        for feature in attempt.features:
            found = feature.place(attempt)
            if isinstance(found, Place):
                return self._place_given(attempt, *found, began)
            if found is not None:
                self._leave_to_feature(cycle)
                return self._refuse_by_feature(attempt, found, began)
        was_refused = cycle is not None and cycle.state in UNSCHEDULABLE
        refusals = self._cycles.unschedulable.refusals(request.uid) if was_refused else 0
        request, answer = self._select(attempt)
        if isinstance(answer, Unfinished):
            self._report(attempt, request, answer, refusals, began)
            return self._finish_later(attempt)
        if isinstance(answer, Refused):
            return self._refuse(attempt, request, answer, began)
        if not was_refused:
            self._demand.note_request(request)
        self._report(attempt, request, answer, refusals, began)
        prepared = attempt.prepared
        if request is not prepared.request:
            prepared = structs.replace(prepared, request=request)
        return self._place(attempt, prepared, answer.placement, partial(self._describe_success, answer))

    def _give_up(self, attempt: Attempt, cycle: PodCycle) -> None:
        """kube-scheduler asks again: what was reserved for the pod is free, or a feature's again."""
        placement = self._cycles.give_up(cycle)
        for feature in reversed(attempt.features):
            feature.unreserve(attempt.request, placement)

    def _select(self, attempt: Attempt) -> tuple[PodRequest, Selected | Refused | Unfinished]:
        """The first alternative that fits; if none does, what is said of the preferred one. A feature may make room
        once."""
        prepared, is_room_made = attempt.prepared, False
        while True:
            try:
                next(self._selector.select_in_steps(prepared.variants, attempt.candidates, MAX_WORK))
                return prepared.request, Unfinished()
            except StopIteration as end:
                request, answer = end.value
            if isinstance(answer, Selected) or is_room_made:
                return request, answer
            is_room_made = any(feature.post_filter(request, attempt.candidates) for feature in attempt.features)
            if not is_room_made:
                return request, answer

    def _place(
        self, attempt: Attempt, prepared: PreparedRequest, placement: Placement, describe: Callable[[], str]
    ) -> bytes:
        self._reserve(attempt, prepared, placement)
        self._after_reserve()
        self._observer.on_placed(PlacedEvent(prepared.request, describe, partial(brief_success_text, placement)))
        return encode_filter_result(node_names=[placement.node])

    def _place_given(self, attempt: Attempt, asked: PodRequest, placement: Placement, began: float) -> bytes:
        """On a node that was given: it is not chosen among the candidates."""
        if placement.grants:
            # A score compares nodes.
            decision = BindDecision(asked, placement._replace(score=0.0), placement.node, time.perf_counter() - began)
            self._observer.on_bind_decision(decision)
        return self._place(attempt, attempt.prepared, placement, partial(brief_success_text, placement))

    def _leave_to_feature(self, cycle: PodCycle | None) -> None:
        """A feature decides what becomes of the pod: nothing is evicted for it alone."""
        if cycle is not None and cycle.state in UNSCHEDULABLE:
            self._cycles.forget(cycle)

    def _refuse(self, attempt: Attempt, request: PodRequest, refused: Refused, began: float) -> bytes:
        """The pod fits nowhere: it is woken when it does."""
        candidates = attempt.candidates.resolve()
        is_first = self._cycles.refuse(request, candidates, others=attempt.prepared.variants[1:])
        self._report(attempt, request, refused, self._cycles.unschedulable.refusals(request.uid), began)
        if is_first:
            self._demand.note_request(request)
        for feature in attempt.features:
            refused = feature.on_refused(attempt, refused, by_feature=False)
        describe = partial(self._describe_refusal, request, candidates, refused)
        self._observer.on_refused(RefusedEvent(request, refused, is_first, describe, attempt.pod))
        if attempt.elsewhere is not None:
            left_out = dict.fromkeys(attempt.given.resolve().names, attempt.elsewhere)
            refused = Refused(left_out | dict(refused.misfits))
        return self._encode(refused, attempt.pod, request)

    def _refuse_by_feature(self, attempt: Attempt, refusal: Refusal, began: float) -> bytes:
        request, misfit = attempt.request, refusal.misfit
        refused = self._refuse_all(attempt.given.resolve(), misfit)
        for feature in attempt.features:
            refused = feature.on_refused(attempt, refused, by_feature=True)
        seconds = time.perf_counter() - began
        decision = FilterDecision(request, refused, attempt.given, refusal.refusals, seconds, of_gang=True)
        self._observer.on_filter_decision(decision)
        self._observer.on_refused(RefusedEvent(request, refused, refusal.is_first, lambda: misfit.text, attempt.pod))
        return self._encode(refused, attempt.pod, request)

    def _report(
        self,
        attempt: Attempt,
        request: PodRequest,
        answer: Selected | Refused | Unfinished,
        refusals: int,
        began: float,
    ) -> None:
        seconds = time.perf_counter() - began
        self._observer.on_filter_decision(FilterDecision(request, answer, attempt.candidates, refusals, seconds))

    def _standing_answer(self, request: PodRequest, cycle: PodCycle | None, named: Named) -> bytes | None:
        """For a pod that is, is being, or may be bound: its cards are not given up for others."""
        pod, held = f"pod {request.namespace}/{request.name}", self._ledger.pod(request.uid)
        if held is not None and held.observed:
            return encode_filter_result(error=f"{pod} is bound to {held.facts.node}")
        if cycle is None:
            return None
        if cycle.is_checked_out or cycle.state is CycleState.BOUND:
            where = f" to {cycle.placement.node}" if cycle.placement is not None else ""
            return encode_filter_result(error=f"{pod} is being bound{where}")
        if cycle.state is CycleState.UNCERTAIN and cycle.placement is not None:
            node = cycle.placement.node
            if node not in named or not self._cycles.may_be_written(cycle):
                return encode_filter_result(error=f"{pod} may be bound to {node} already")
            # The same write again is right whether or not the first one took effect.
            return encode_filter_result(node_names=[node])
        return None

    def _finish_later(self, attempt: Attempt) -> bytes:
        """The decision goes on between other requests; kube-scheduler asks again, at the latest when it is made."""
        request, candidates = attempt.request, attempt.candidates.resolve()
        self._cycles.refuse(request, candidates, is_judged=False, others=attempt.prepared.variants[1:])
        self._cycles.unschedulable.on_room()
        return encode_filter_result(error=f"pod {request.namespace}/{request.name}: {UNFINISHED}")

    def _describe_success(self, selected: Selected) -> str:
        try:
            return success_text(selected)
        except WireError:  # The chosen node was found in the list before something that is no name.
            return brief_success_text(selected.placement)

    def _describe_refusal(self, request: PodRequest, candidates: Candidates, refused: Refused) -> str:
        if candidates.order is not self._ledger.arrays.order:  # Nodes have come or gone since.
            candidates = self._selector.candidates(candidates.names)
        return refusal_sentence(self._ledger, request, candidates.rows, refused)

    def _encode(self, refused: Refused, pod: Pod, request: PodRequest) -> bytes:
        """Equal refusals are one object, and are encoded once.

        The nodes that are asked about have passed kube-scheduler's own checks, so evicting pods for CPU or memory helps
        on none of them. It simulates that nevertheless, for longer than everything else about a refusal takes; so a pod
        with a priority, for which it would find pods to evict, is told that there is no use. But it gives up its
        nomination for a node that it takes for hopeless, so that one is only refused.
        """
        kept = pod.status.nominated_node_name if (request.preempts_below or 0) > 0 else None
        return self._encode_refusal(refused, kept)

    def _refuse_unready(self, pod: Pod, named: Named, bad: BadPod) -> bytes:
        """The pod cannot be placed now: every node says why."""
        for on_bad_pod in self._on_bad_pod:
            on_bad_pod(pod, bad)
        return encode_filter_result(unresolvable=dict.fromkeys(named.resolve().names, bad.text))

    def _refuse_bad_pod(self, args: FilterArgs, bad: BadPod) -> bytes:
        """No node can honour this request, now or ever: every node says why."""
        if args.nodes is not None:
            names = [given.node.name for given in decode_nodes(args.nodes)]
        else:
            names = decode_node_names(args.node_names) if args.node_names is not None else []
            for on_bad_pod in self._on_bad_pod:
                on_bad_pod(args.pod, bad)
        text = f"container {bad.container}: {bad.text}" if bad.container else bad.text
        return encode_filter_result(unresolvable=dict.fromkeys(names, text), error="" if names else text)

    # -- simulation

    def _simulate(self, request: PodRequest, nodes: Raw) -> bytes:
        """The given nodes as if they were empty: what an autoscaler wants to know about a new node."""
        given = {entry.node.name: entry for entry in decode_nodes(nodes)}
        ledger = Ledger(self.request_reader.vendors)
        ledger.quotas = self._ledger.quotas  # No new node helps a namespace whose quota is used up.
        for entry in given.values():
            facts = node_facts(entry.node, self.request_reader.vendors)
            if facts.devices or facts.problem:
                ledger.observe_node(facts)
        answer = Selector(ledger).select(request, list(given))
        if isinstance(answer, Selected):
            chosen = answer.placement.node
            return encode_filter_result(nodes=[given[chosen].raw])
        return encode_filter_result(failed={name: misfit.text for name, misfit in answer.misfits.items()})


def _refuse_all(candidates: Candidates, misfit: Misfit) -> Refused:
    return Refused(dict.fromkeys(candidates.names, misfit))


def _encode_refusal(refused: Refused, kept: str | None) -> bytes:
    """`kept`: None, or the only node that is not hopeless; it may be empty."""
    texts = {id(misfit): misfit.text for misfit, _ in refused.verdicts}
    reasons = {name: texts[id(misfit)] for name, misfit in refused.misfits.items()}
    if kept is None:
        return encode_filter_result(failed=reasons)
    waits = {kept: reasons.pop(kept)} if kept in reasons else None
    return encode_filter_result(failed=waits, unresolvable=reasons)
