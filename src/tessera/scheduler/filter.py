"""POST /filter: choose a node and reserve its cards, in memory, without an API call, and in one step of the event loop.

An answer has exactly one node, or a reason for every candidate. Where that takes too long for one call, it is an error,
and the decision is made between other requests. A pod that asks for no devices passes through. Whole `Nodes` instead of
names mean a simulation: the same rules on those nodes, without effects. The decision depends on the ledger, the request
and the set of candidates, and on nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from functools import partial
from sys import intern
from typing import Any

from msgspec import Raw, structs

from tessera.core.event_text import brief_success_text, refusal_sentence, success_text
from tessera.core.grants import Placement
from tessera.core.ledger import Ledger
from tessera.core.misfits import UNREGISTERED, Misfit, Reason, node_misfit
from tessera.core.requests import PodRequest
from tessera.core.selection import Candidates, Refused, Selected, Selector, Unfinished
from tessera.scheduler.candidate_lists import CandidateList, CandidateLists
from tessera.scheduler.demand_tracker import DemandTracker
from tessera.scheduler.features.claims.pod_claims import ClaimNotReady
from tessera.scheduler.features.gangs.coordinator import GangCoordinator
from tessera.scheduler.features.gangs.turns import HeldNodes
from tessera.scheduler.identity_cache import IdentityCache
from tessera.scheduler.observer import BindDecision, FilterDecision, PlacedEvent, RefusedEvent, SchedulerObserver
from tessera.scheduler.pod_cycle import UNSCHEDULABLE, CycleState, PodCycle, PodCycles
from tessera.scheduler.pod_requests import PreparedRequest, RequestReader
from tessera.scheduler.unschedulable_pods import MAX_WORK
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


Named = CandidateList | Candidates
"""the nodes to choose from"""


class Filter:
    """Decides on one ledger."""

    def __init__(
        self,
        selector: Selector,
        cycles: PodCycles,
        requests: RequestReader,
        *,
        gangs: GangCoordinator,
        demand: DemandTracker,
        observer: SchedulerObserver,
    ) -> None:
        self._selector = selector
        self._ledger = selector.ledger
        self._cycles = cycles
        self.requests = requests
        self.gangs = gangs
        self._demand = demand
        self._observer = observer
        self._candidate_lists = CandidateLists(selector)
        # Most members of a gang are refused with the same reason for the same candidates.
        self._gang_refusals = IdentityCache(_refuse_all, most=KEPT_REFUSALS)
        self._held_refusals = IdentityCache(_refuse_for_turn, most=KEPT_REFUSALS)
        self._encoded = IdentityCache(_encode_refusal, most=KEPT_REFUSALS)
        self._after_reserve = failpoint(Failpoint.AFTER_RESERVE)

    def answer(self, body: bytes) -> bytes:
        """The answer to a request. Errors are part of it, so HTTP always says 200."""
        try:
            return self._filter(decode_filter_args(body))
        except WireError as error:
            return encode_filter_result(error=str(error))

    def begin(self, body: bytes, missing: Callable[[], str]) -> bytes | Coroutine[Any, Any, bytes]:
        """As `answer`; the plan of a large gang is made first, between other requests.

        `missing` says why no decision can be made, which may be so by then.
        """
        try:
            args = decode_filter_args(body)
            if not self.gangs.takes_time(args.pod):
                return self._filter(args)
        except WireError as error:
            return encode_filter_result(error=str(error))
        return self._plan_and_answer(args, missing)

    async def _plan_and_answer(self, args: FilterArgs, missing: Callable[[], str]) -> bytes:
        try:
            prepared = self.requests.read(args.pod)
            if isinstance(prepared, BadPod) or not prepared.needs_placement or args.node_names is None:
                return self._filter(args)
            named, request = CandidateList(args.node_names, self._candidate_lists), prepared.request
            if self._standing_answer(request, self._cycles.get(request.uid), named) is None:
                is_there = await self.gangs.prepare(args.pod, prepared, named)
                if not is_there:
                    pod = f"pod {request.namespace}/{request.name}"
                    return encode_filter_result(error=f"{pod} was deleted or bound meanwhile")
            problem = missing()
            return encode_filter_result(error=problem) if problem else self._decide(args.pod, prepared, named)
        except WireError as error:
            return encode_filter_result(error=str(error))

    def reserve_on(self, prepared: PreparedRequest, node: str) -> str:
        """Reserve a placement on this node only; empty, or why there is none."""
        claims = prepared.claims
        if claims is not None and claims.node not in ("", node):
            return f"{claims.pinned_by} is allocated on node {claims.node}"
        first: Misfit | None = None
        for request in prepared.variants:
            began = time.perf_counter()
            if not request.asks_for_devices:
                self._reserve(prepared, Placement(node, {}))
                return ""
            answer = self._ledger.fit(request, node)
            self._observer.on_bind_decision(BindDecision(request, answer, node, time.perf_counter() - began))
            if not isinstance(answer, Misfit):
                self._reserve(structs.replace(prepared, request=request), answer)
                return ""
            first = first or answer
        if first is None or first is UNREGISTERED:
            return f"node {node} has no registered devices"
        return f"pod no longer fits node {node}: {first.text}"

    def _reserve(self, prepared: PreparedRequest, placement: Placement) -> None:
        self._cycles.reserve(prepared, placement)
        if self.requests.claims is not None:
            self.requests.claims.reserve(prepared)

    def forget(self) -> None:
        """The vendors have changed: drop everything that was read or judged by the old ones."""
        self.requests.forget()
        self._selector.forget()

    # -- decisions

    def _filter(self, args: FilterArgs) -> bytes:
        prepared = self.requests.read(args.pod)
        if isinstance(prepared, BadPod):
            return self._refuse_bad_pod(args, prepared)
        if not prepared.needs_placement:
            nodes = None if args.nodes is None else [given.raw for given in decode_nodes(args.nodes)]
            return encode_filter_result(node_names=args.node_names, nodes=nodes)
        if args.nodes is not None:
            return self._simulate(prepared.request, args.nodes)
        if args.node_names is None:
            return encode_filter_result(error=NO_NODES)
        return self._decide(args.pod, prepared, CandidateList(args.node_names, self._candidate_lists))

    def _decide(self, pod: Pod, prepared: PreparedRequest, named: Named) -> bytes:
        request, began = prepared.request, time.perf_counter()
        cycle = self._cycles.get(request.uid)
        standing = self._standing_answer(request, cycle, named)
        if standing is not None:
            return standing
        every, claims = named, prepared.claims
        if claims is not None and claims.node:
            if claims.node not in named:
                self._leave_to_others(cycle)
                return self._refuse_for_claims(pod, every, claims.elsewhere)
            named = self._selector.candidates([claims.node])
        of_gang = self.gangs.decide(pod, prepared, named)
        if isinstance(of_gang, Misfit):
            self._leave_to_others(cycle)
            return self._refuse_member(pod, prepared, every, misfit=of_gang, began=began)
        if of_gang is not None:
            answered = self._place_given(prepared, request, of_gang, began)
            self.gangs.holds.settle()
            return answered
        if cycle is not None and cycle.state is CycleState.RESERVED:
            self._cycles.give_up(cycle)
        if not request.asks_for_devices and claims is not None:
            # All its claims are allocated on one node, which kube-scheduler accepts.
            place = Placement(claims.node, {})
            return self._place(prepared, place, partial(brief_success_text, place))
        moved = self._cycles.moves.take(pod.workload, request, named) if len(self._cycles.moves) else None
        if moved is not None:
            return self._place_given(prepared, *moved, began)
        if cycle is not None and cycle.state is CycleState.NOMINATED:
            nominated = self._nominated_place(request, named)
            if nominated is not None:
                return self._place_given(prepared, request, nominated, began)
        was_refused = cycle is not None and cycle.state in UNSCHEDULABLE
        request, answer = self._select(prepared, named)
        turns = self.gangs.turns
        if isinstance(answer, Refused) and turns.favoured is not None and turns.makes_way_for(request, named):
            request, answer = self._select(prepared, named)
        if isinstance(answer, Unfinished):
            self._report(request, answer, named, began)
            return self._finish_later(prepared, named)
        if isinstance(answer, Refused):
            candidates = named.resolve()
            is_first = self._cycles.refuse(request, candidates, others=prepared.variants[1:])
            self._report(request, answer, named, began)
            if is_first:
                self._demand.note_request(request)
            if turns.favoured is not None and (held := turns.refusal_of(request, named)) is not None:
                answer = self._held_refusals.of(answer, held)
            describe = partial(self._describe_refusal, request, candidates, answer)
            self._observer.on_refused(RefusedEvent(request, answer, is_first, describe, pod))
            if claims is not None and claims.node:
                answer = self._refuse_elsewhere(pod, answer, every, claims.elsewhere)
            return self._encode(answer, pod, request)
        if not was_refused:
            self._demand.note_request(request)
        self._report(request, answer, named, began)
        if request is not prepared.request:
            prepared = structs.replace(prepared, request=request)
        return self._place(prepared, answer.placement, partial(self._describe_success, answer))

    def _select(self, prepared: PreparedRequest, named: Named) -> tuple[PodRequest, Selected | Refused | Unfinished]:
        """The first alternative that fits; if none does, what is said of the preferred one."""
        try:
            next(self._selector.select_in_steps(prepared.variants, named, MAX_WORK))
        except StopIteration as end:
            found: tuple[PodRequest, Selected | Refused] = end.value
            return found
        return prepared.request, Unfinished()

    def _place(self, prepared: PreparedRequest, placement: Placement, describe: Callable[[], str]) -> bytes:
        self._reserve(prepared, placement)
        self._after_reserve()
        self._observer.on_placed(PlacedEvent(prepared.request, describe, partial(brief_success_text, placement)))
        return encode_filter_result(node_names=[placement.node])

    def _place_given(self, prepared: PreparedRequest, asked: PodRequest, placement: Placement, began: float) -> bytes:
        """On a node that was given: it is not chosen among the candidates."""
        # A score compares nodes.
        decision = BindDecision(asked, placement._replace(score=0.0), placement.node, time.perf_counter() - began)
        self._observer.on_bind_decision(decision)
        return self._place(prepared, placement, partial(brief_success_text, placement))

    def _nominated_place(self, request: PodRequest, named: Named) -> Placement | None:
        """On the node that the pod is nominated for, if its victims have left; None if they have not, or it does not
        fit. Then it is placed wherever it fits, or keeps its nomination."""
        nomination = self._ledger.nominations.get(request.uid)
        if nomination is None or nomination.facts.node not in named:
            return None
        answer = self._ledger.fit(request, nomination.facts.node)
        return None if isinstance(answer, Misfit) else answer

    def _leave_to_others(self, cycle: PodCycle | None) -> None:
        """A gang, or what becomes of a claim, decides: nothing is held, or evicted, for the pod alone."""
        if cycle is not None and cycle.state is CycleState.RESERVED:
            self._cycles.give_up(cycle)
        elif cycle is not None and cycle.state in UNSCHEDULABLE:
            self._cycles.forget(cycle)

    def _refuse_member(
        self, pod: Pod, prepared: PreparedRequest, named: Named, *, misfit: Misfit, began: float
    ) -> bytes:
        """The gang waits as a whole: it wakes its members itself, unless the claims of one change."""
        request, claims = prepared.request, prepared.claims
        if claims is not None and self.requests.claims is not None:
            problem = claims.elsewhere if claims.node else ClaimNotReady("", misfit.text)
            self.requests.claims.wait(pod, problem)
        refused = self._gang_refusals.of(named.resolve(), misfit)
        is_first, refusals = self.gangs.note_refusal(request.uid, misfit.text)
        decision = FilterDecision(request, refused, named, refusals, time.perf_counter() - began, of_gang=True)
        self._observer.on_filter_decision(decision)
        self._observer.on_refused(RefusedEvent(request, refused, is_first, lambda: misfit.text, pod))
        return self._encode(refused, pod, request)

    def _report(
        self,
        request: PodRequest,
        answer: Selected | Refused | Unfinished,
        named: Named,
        began: float,
    ) -> None:
        seconds, refusals = time.perf_counter() - began, self._cycles.unschedulable.refusals(request.uid)
        self._observer.on_filter_decision(FilterDecision(request, answer, named, refusals, seconds))

    def _standing_answer(self, request: PodRequest, cycle: PodCycle | None, named: Named) -> bytes | None:
        """For a pod that is, is being, or may be bound: its cards are not given up for others."""
        pod, held = f"pod {request.namespace}/{request.name}", self._ledger.pod(request.uid)
        if held is not None and held.observed:
            return encode_filter_result(error=f"{pod} is bound to {held.facts.node}")
        if cycle is None:
            return None
        if cycle.is_claimed or cycle.state is CycleState.BOUND:
            where = f" to {cycle.placement.node}" if cycle.placement is not None else ""
            return encode_filter_result(error=f"{pod} is being bound{where}")
        if cycle.state is CycleState.UNCERTAIN and cycle.placement is not None:
            node = cycle.placement.node
            if node not in named or not self._cycles.may_be_written(cycle):
                return encode_filter_result(error=f"{pod} may be bound to {node} already")
            # The same write again is right whether or not the first one took effect.
            return encode_filter_result(node_names=[node])
        return None

    def _finish_later(self, prepared: PreparedRequest, named: Named) -> bytes:
        """The decision goes on between other requests; kube-scheduler asks again, at the latest when it is made."""
        request = prepared.request
        self._cycles.refuse(request, named.resolve(), is_judged=False, others=prepared.variants[1:])
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
        encoded: bytes = self._encoded.of(refused, None if kept is None else intern(kept))
        return encoded

    def _refuse_for_claims(self, pod: Pod, named: Named, problem: ClaimNotReady) -> bytes:
        """The pod has to wait for a claim: every node says why."""
        if self.requests.claims is not None:
            self.requests.claims.wait(pod, problem)
        return encode_filter_result(unresolvable=dict.fromkeys(named.resolve().names, problem.text))

    def _refuse_elsewhere(self, pod: Pod, refused: Refused, named: Named, problem: ClaimNotReady) -> Refused:
        """The pod does not fit the one node where its claims are; all others say that they are not theirs."""
        if self.requests.claims is not None:
            self.requests.claims.wait(pod, problem)
        elsewhere = node_misfit(Reason.CLAIM_ELSEWHERE, detail=problem.text)
        return Refused(dict.fromkeys(named.resolve().names, elsewhere) | dict(refused.misfits))

    def _refuse_bad_pod(self, args: FilterArgs, bad: BadPod) -> bytes:
        """No node can ever honour this request: every node says why."""
        if isinstance(bad, ClaimNotReady) and self.requests.claims is not None and args.nodes is None:
            self.requests.claims.wait(args.pod, bad)
        text = f"container {bad.container}: {bad.text}" if bad.container else bad.text
        if args.nodes is not None:
            names = [given.node.name for given in decode_nodes(args.nodes)]
        else:
            names = decode_node_names(args.node_names) if args.node_names is not None else []
        return encode_filter_result(unresolvable=dict.fromkeys(names, text), error="" if names else text)

    # -- simulation

    def _simulate(self, request: PodRequest, nodes: Raw) -> bytes:
        """The given nodes as if they were empty: what an autoscaler wants to know about a new node."""
        given = {entry.node.name: entry for entry in decode_nodes(nodes)}
        ledger = Ledger(self.requests.vendors)
        ledger.quotas = self._ledger.quotas  # No new node helps a namespace whose quota is used up.
        for entry in given.values():
            facts = node_facts(entry.node, self.requests.vendors)
            if facts.devices or facts.problem:
                ledger.observe_node(facts)
        answer = Selector(ledger).select(request, list(given))
        if isinstance(answer, Selected):
            chosen = answer.placement.node
            return encode_filter_result(nodes=[given[chosen].raw])
        return encode_filter_result(failed={name: misfit.text for name, misfit in answer.misfits.items()})


def _refuse_all(candidates: Candidates, misfit: Misfit) -> Refused:
    return Refused(dict.fromkeys(candidates.names, misfit))


def _refuse_for_turn(refused: Refused, held: HeldNodes) -> Refused:
    """The same, with the reason of the nodes where the pod would fit without what is held."""
    return Refused(dict(refused.misfits) | dict.fromkeys(held.nodes, held.misfit))


def _encode_refusal(refused: Refused, kept: str | None) -> bytes:
    """`kept`: None, or the only node that is not hopeless; it may be empty."""
    texts = {id(misfit): misfit.text for misfit, _ in refused.verdicts}
    reasons = {name: texts[id(misfit)] for name, misfit in refused.misfits.items()}
    if kept is None:
        return encode_filter_result(failed=reasons)
    waits = {kept: reasons.pop(kept)} if kept in reasons else None
    return encode_filter_result(failed=waits, unresolvable=reasons)
