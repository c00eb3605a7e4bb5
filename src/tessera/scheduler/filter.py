"""POST /filter: choose and reserve, in memory, without a single await or API call.

An answer has exactly one node, or a reason for every candidate. A pod that asks for no devices passes through. Whole
`Nodes` instead of names mean a simulation: same rules on those nodes, no effects.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import msgspec
from msgspec import Raw

from tessera.core import policies
from tessera.core.demand_forecast import DemandForecast
from tessera.core.demand_history import DemandHistory
from tessera.core.event_text import brief_success_text, failure_texts, success_text
from tessera.core.grants import Placement
from tessera.core.ledger import GrantState, Ledger, PodEntry
from tessera.core.near_misses import quick_near_miss
from tessera.core.requests import PodRequest
from tessera.core.selection import Candidates, Refused, Selected, Selector
from tessera.scheduler.candidate_lists import CandidateLists
from tessera.scheduler.host_resources import host_ask
from tessera.scheduler.pod_requests import Prepared, Preparing
from tessera.scheduler.unschedulable_pods import UnschedulablePods
from tessera.vendors.base import Vendor
from tessera.vendors.drafts import BadPod
from tessera.vendors.node_reader import node_facts
from tessera.vendors.pod_reader import PolicyDefaults
from tessera.wire.errors import WireError
from tessera.wire.extender import FilterArgs, decode_filter_args, decode_node_names, decode_nodes, encode_filter_result
from tessera.wire.objects import Pod

REFUSALS = 32
"""encoded refusals kept: a backlog is refused with the same few again and again"""

UNCOUNTED = 4096
"""pods that are remembered to be counted; older ones would hardly matter"""

NOTHING_GIVEN = "extender args name no nodes"


class FilterEvent(msgspec.Struct, frozen=True):
    """What the user is told about a decision."""

    request: PodRequest
    success: bool
    texts: Callable[[], Sequence[str]]
    """worked out by whoever tells the user, right after the answer or not at all: nodes change"""
    brief: Callable[[], str] = str
    """of a success: a sentence that can be worked out at any time, since it keeps nothing of the request"""


class Filter:
    """Decides on one ledger."""

    def __init__(
        self,
        ledger: Ledger,
        selector: Selector,
        vendors: Mapping[str, Vendor],
        *,
        waiting: UnschedulablePods,
        defaults: PolicyDefaults,
        reservation_seconds: float,
        time: Callable[[], float],
        on_room: Callable[[], None] = lambda: None,
        on_decision: Callable[[FilterEvent], None] = lambda _event: None,
        on_refusal: Callable[[Refused], None] = lambda _refused: None,
    ) -> None:
        self._ledger = ledger
        self._selector = selector
        self._vendors = vendors
        self._waiting = waiting
        self._preparing = Preparing(vendors, defaults)
        self._reservation_seconds = reservation_seconds
        self._time = time
        self._on_room = on_room
        self._on_decision = on_decision
        self._on_refusal = on_refusal
        self._candidate_lists = CandidateLists(selector)
        self._history = DemandHistory()
        self._uncounted: deque[PodRequest] = deque(maxlen=UNCOUNTED)
        """asked for the first time since somebody looked ahead"""
        self._encoded: OrderedDict[int, tuple[Refused, bytes]] = OrderedDict()
        self.prepared: dict[str, Prepared] = {}
        """by uid, pods with a reservation: what bind needs to write down"""
        self.uncertain: set[str] = set()
        """uids of reservations whose binding may have been written after all: they stay where they are"""

    def answer(self, body: bytes) -> bytes:
        """The answer to a request, errors included: HTTP has nothing to add."""
        try:
            return self._filter(decode_filter_args(body))
        except WireError as error:
            return encode_filter_result(error=str(error))

    def _filter(self, args: FilterArgs) -> bytes:
        prepared = self.prepare(args.pod)
        if isinstance(prepared, BadPod):
            return self._refuse_bad(args, prepared)
        request = prepared.request
        if not request.asks_for_devices:
            nodes = None if args.nodes is None else [given.raw for given in decode_nodes(args.nodes)]
            return encode_filter_result(node_names=args.node_names, nodes=nodes)
        if args.nodes is not None:
            return self._simulate(request, args.nodes)
        if args.node_names is None:
            return encode_filter_result(error=NOTHING_GIVEN)
        return self._decide(prepared, self._candidate_lists.lookup(args.node_names))

    def prepare(self, pod: Pod) -> Prepared | BadPod:
        """The pod's request as it will be placed."""
        prepared = self._preparing.prepare(pod)
        if isinstance(prepared, BadPod):
            return prepared
        request = prepared.request
        if request.asks_for_devices and policies.uses_forecast(request.node_policy, request.device_policy):
            ahead = replace(request, host=host_ask(pod), forecast=self._forecast())
            return msgspec.structs.replace(prepared, request=ahead)
        return prepared

    def _forecast(self) -> DemandForecast:
        """What the pods so far have taught. They are counted when it matters: most clusters never look ahead."""
        while self._uncounted:
            self._history.observe(self._uncounted.popleft(), self._ledger.arrays, self._vendors)
        return self._history.forecast(self._ledger.arrays)

    def _decide(self, prepared: Prepared, candidates: Candidates) -> bytes:
        request = prepared.request
        held = self._ledger.pod(request.uid)
        if held is not None and (held.state is GrantState.BOUND or request.uid in self.uncertain):
            return self._stay(held, candidates)
        if held is not None or request.uid in self.prepared:
            self.forget(request.uid)
        answer = self._selector.select(request, candidates)
        if isinstance(answer, Refused):
            self._on_refusal(answer)
            if self._waiting.refused(request, candidates):
                self._uncounted.append(request)
                self._on_decision(FilterEvent(request, False, partial(self._explain, request, candidates, answer)))
            return self._encode(answer)
        if request.uid in self._waiting:
            self._waiting.gone(request.uid)
        else:
            self._uncounted.append(request)
        placement = answer.placement
        self.keep(prepared, placement)
        brief = partial(brief_success_text, placement)
        self._on_decision(FilterEvent(request, True, partial(_success_texts, answer), brief))
        return encode_filter_result(node_names=[placement.node])

    def _stay(self, held: PodEntry, candidates: Candidates) -> bytes:
        """A pod that has been bound, is being bound, or may have been bound: its cards are not given up for others."""
        pod, node = f"pod {held.facts.namespace}/{held.facts.name}", held.facts.node
        if held.state is GrantState.BOUND:
            return encode_filter_result(error=f"{pod} is {'' if held.observed else 'being '}bound to {node}")
        if node not in candidates.names:
            return encode_filter_result(error=f"{pod} may be bound to {node} already")
        # The same write again is right whether or not the first one took effect.
        return encode_filter_result(node_names=[node])

    def keep(self, prepared: Prepared, placement: Placement) -> None:
        """Reserve a placement for the bind that follows."""
        deadline = self._time() + self._reservation_seconds
        self._ledger.reserve(prepared.request, placement, deadline=deadline)
        self.prepared[prepared.request.uid] = prepared

    def forget(self, uid: str) -> None:
        """Drop the pod's older reservation, if it has one."""
        self.settled(uid)
        if self._ledger.give_up(uid):
            self._on_room()

    def settled(self, uid: str) -> None:
        """The pod is bound or gone: no bind will ask for what was prepared."""
        self.prepared.pop(uid, None)
        self.uncertain.discard(uid)

    def vendors_changed(self) -> None:
        """What was read and judged by the old rules means nothing any more."""
        self._preparing.forget()
        self._selector.forget()

    def learn(self, pods: Iterable[Pod]) -> None:
        """Count these pods instead of all that were counted before; an unreadable one teaches nothing."""
        self._history = DemandHistory()
        self._uncounted.clear()
        for pod in pods:
            prepared = self.prepare(pod)
            if isinstance(prepared, Prepared) and prepared.request.asks_for_devices:
                self._history.observe(prepared.request, self._ledger.arrays, self._vendors)

    def expire(self) -> list[str]:
        """Release reservations that were never bound."""
        over = self._ledger.expire(self._time())
        for uid in over:
            self.settled(uid)
        return over

    def _explain(self, request: PodRequest, candidates: Candidates, refused: Refused) -> list[str]:
        texts = failure_texts(refused)
        near = quick_near_miss(self._ledger, request, candidates.rows)
        return [*texts, near.text] if near is not None else texts

    def _encode(self, refused: Refused) -> bytes:
        """Equal refusals are one object, and one text."""
        known = self._encoded.get(id(refused))
        if known is None or known[0] is not refused:
            texts = {id(misfit): misfit.text for misfit in {id(m): m for m in refused.misfits.values()}.values()}
            failed = {name: texts[id(misfit)] for name, misfit in refused.misfits.items()}
            known = self._encoded[id(refused)] = (refused, encode_filter_result(failed=failed))
            if len(self._encoded) > REFUSALS:
                self._encoded.popitem(last=False)
        return known[1]

    def _refuse_bad(self, args: FilterArgs, bad: BadPod) -> bytes:
        """A request that no node can ever honour: every node says why."""
        text = f"container {bad.container}: {bad.text}" if bad.container else bad.text
        if args.nodes is not None:
            names = [given.node.name for given in decode_nodes(args.nodes)]
        else:
            names = decode_node_names(args.node_names) if args.node_names is not None else []
        return encode_filter_result(unresolvable=dict.fromkeys(names, text), error="" if names else text)

    def _simulate(self, request: PodRequest, nodes: Raw) -> bytes:
        """The given nodes as if they were empty: what an autoscaler wants to know about a new node."""
        given = {entry.node.name: entry for entry in decode_nodes(nodes)}
        ledger = Ledger(self._vendors)
        ledger.quotas = self._ledger.quotas  # no new node helps a namespace whose quota is used up
        for entry in given.values():
            facts = node_facts(entry.node, self._vendors)
            if facts.devices or facts.problem:
                ledger.observe_node(facts)
        answer = Selector(ledger).select(request, list(given))
        if isinstance(answer, Selected):
            chosen = answer.placement.node
            return encode_filter_result(nodes=[given[chosen].raw])
        return encode_filter_result(failed={name: misfit.text for name, misfit in answer.misfits.items()})


def _success_texts(selected: Selected) -> list[str]:
    return [success_text(selected)]
