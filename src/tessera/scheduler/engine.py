"""Composition root of the scheduling pipeline: ledger, informer handlers, filter, binder, queue and wake-ups.

One event loop runs all of it. The engine does not read the API by itself: something else feeds the three handlers
(`pods`, `nodes`, `quotas`), calls `tick`, and begins and ends the tenure.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any

import structlog

from tessera.core.ledger.ledger import Ledger
from tessera.core.model.requests import PodRequest
from tessera.core.policies import uses_forecast
from tessera.core.search.preemption import Preemption
from tessera.core.search.selection import Selector
from tessera.kube.backoff import Backoff
from tessera.kube.errors import KubeError, is_conflict
from tessera.scheduler.binder import Binder
from tessera.scheduler.clock import Clock
from tessera.scheduler.eviction.evictor import Evictor
from tessera.scheduler.eviction.preemption_loop import NominatedNodes, Preemptor
from tessera.scheduler.eviction.victim_book import BudgetInformer, VictimBook
from tessera.scheduler.features.registry import FEATURES
from tessera.scheduler.filter import Filter
from tessera.scheduler.framework import F, Feature, Pipeline, WaitingGroup, Work, feature_of, methods
from tessera.scheduler.informers.handler import InformerHandler
from tessera.scheduler.informers.nodes import NodeInformer, Patch
from tessera.scheduler.informers.pods import PodInformer, QuotaInformer
from tessera.scheduler.kube_api import KubeApi
from tessera.scheduler.observer import SchedulerObserver
from tessera.scheduler.pod_cycle import PodCycles
from tessera.scheduler.queue.allocation_queue import AllocationQueue
from tessera.scheduler.queue.node_lock import NodeLocks
from tessera.scheduler.queue.unschedulable_pods import UnschedulablePods
from tessera.scheduler.queue.waker import Waker
from tessera.scheduler.requests.demand_tracker import DemandTracker
from tessera.scheduler.requests.host_resources import HostResources
from tessera.scheduler.requests.reader import RequestReader
from tessera.scheduler.settings import Settings
from tessera.scheduler.takeover import Takeover
from tessera.scheduler.tenure import Tenure
from tessera.vendors.drafts import BadPod
from tessera.vendors.registry import build_vendors
from tessera.wire.extender import encode_binding_result, encode_filter_result, encode_preemption_result
from tessera.wire.objects import Node, Pod

log = structlog.get_logger(__name__)

WAKE_AGAIN_S = 1.0
"""until pods are woken that could not be woken at once"""
WAKE_PAUSES = Backoff(initial=WAKE_AGAIN_S, cap=15.0)
"""between tries, if nothing else happens: a backlog must not add to what an apiserver cannot serve"""


class Engine:
    """The pipeline of one scheduler replica: the `Pipeline` of its features."""

    def __init__(
        self,
        settings: Settings,
        api: KubeApi,
        *,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        observer: SchedulerObserver,
        tenure: Tenure,
        features: Sequence[Callable[[Pipeline], Feature]] = FEATURES,
    ) -> None:
        self.settings, self.api, self.clock, self.spawn = settings, api, clock, spawn
        self.observer, self.tenure = observer, tenure
        self.vendors = build_vendors(settings.device_sections, settings.switches)
        self.ledger = Ledger(self.vendors)
        self.selector = Selector(self.ledger)
        self.unschedulable = UnschedulablePods()
        self.queue = AllocationQueue(
            NodeLocks(api, now=clock.now, time=clock.monotonic),
            self.vendors,
            mode=settings.node_lock,
            turn_s=settings.turn_s,
            lock_s=settings.node_lock_s,
            time=clock.monotonic,
        )
        self.cycles = PodCycles(
            self.ledger,
            self.queue,
            self.unschedulable,
            clock=clock,
            reservation_s=settings.reservation_s,
            observer=observer,
        )
        self._uses_forecast = uses_forecast(settings.policies.node, settings.policies.device)
        self._demand = DemandTracker(self.ledger.arrays, self.vendors)
        self._hosts = HostResources(self.ledger) if self._uses_forecast else None
        self.request_reader = RequestReader(self.vendors, settings.policies, self._demand)
        self.victims = VictimBook(time=clock.monotonic, on_change=self._on_victims, is_binding=self._is_binding)
        self.budgets = BudgetInformer(self.victims)
        self.preemption = Preemption(self.selector, self.victims)
        self.evictor = Evictor(api, self.victims, observer=observer)
        self.nominated_nodes = NominatedNodes(api)
        self.features = made = tuple(make(self) for make in features)
        self.request_reader.joins = methods(made, Feature.join_pod)
        self._on_pod, self._on_pod_gone = methods(made, Feature.on_pod), methods(made, Feature.on_pod_gone)
        self._on_node, self._on_node_gone = methods(made, Feature.on_node), methods(made, Feature.on_node_gone)
        self._missing = methods(made, Feature.missing)
        self._is_nominated = methods(made, Feature.is_nominated)
        self.filter = Filter(
            self.selector, self.cycles, self.request_reader, made, demand=self._demand, observer=observer
        )
        self.binder = Binder(self.cycles, self.filter, made, api=api, tenure=tenure, observer=observer)
        self.waker = Waker(self, made)
        self.pods = PodInformer(
            self.cycles, self.vendors, hosts=self._hosts, victims=self.victims, observer=observer, listener=self
        )
        self.nodes = NodeInformer(
            self.ledger,
            self.vendors,
            joins=methods(made, Feature.join_node),
            selector=settings.node_selector,
            clock=clock,
            listener=self,
        )
        self.quotas = QuotaInformer(self.ledger, self.vendors, self.unschedulable, on_synced=self.on_synced)
        self.awaited: dict[str, InformerHandler[Any]] = {
            "pods": self.pods, "nodes": self.nodes, "quotas": self.quotas
        }  # fmt: skip
        """without whose lists nothing is decided"""
        for feature in made:
            self.awaited.update(feature.informers())
        self.takeover = Takeover(
            api,
            tenure,
            is_ours=self._is_ours,
            now=clock.now,
            is_ours_claim=next(iter(methods(made, Feature.is_ours_claim)), None) if settings.dra else None,
        )

    def feature(self, kind: type[F]) -> F:
        """The feature of this class."""
        return feature_of(self.features, kind)

    def work(self) -> list[Work]:
        """What runs as long as the process does."""
        return [self.waker.run, self.nominated_nodes.run, *(each for one in self.features for each in one.work())]

    @property
    def is_leader(self) -> bool:
        """Whether this replica decides, judged now."""
        return self.tenure.is_held()

    async def take_over(self, number: int, catch_up: Callable[[], None]) -> None:
        """Begin a tenure, unless the lease moves before that is done. `catch_up` starts another list of all pods."""
        fence = await self.takeover.run(number)
        if fence is not None:
            # Whatever an earlier decider bound has landed by now; what the informer knows may be older.
            catch_up()
            self.tenure.begin(number, fence)
            self.observer.on_tenure()
            self.nodes.tick()
            self.spawn(self.takeover.clear_nominated_nodes(number, is_nominated=self.is_nominated))
        else:
            self.tenure.end()

    def step_down(self) -> None:
        """The tenure is over."""
        self.tenure.end()
        for feature in self.features:
            feature.end_term()
        self.nominated_nodes.forget()
        self.cycles.end_term()
        self.observer.on_step_down()

    def is_nominated(self, uid: str) -> bool:
        """Whether victims leave for the pod."""
        return any(is_nominated(uid) for is_nominated in self._is_nominated)

    def _is_ours(self, pod: Pod) -> bool:
        """Whether a scheduler with these settings, or earlier ones, may have decided about a pod that is not bound."""
        if pod.spec.scheduling_gates:
            return False  # kube-scheduler has never asked for it.
        prepared = self.request_reader.read(pod)
        asks = isinstance(prepared, BadPod) or prepared.needs_placement
        return asks or pod.spec.scheduler_name == self.settings.scheduler_name

    # -- answers

    def answer_filter(self, body: bytes) -> bytes | Coroutine[Any, Any, bytes]:
        """At once, or between other requests where a large gang has to be planned first."""
        missing = self.missing()
        return encode_filter_result(error=missing) if missing else self.filter.begin(body, self.missing)

    def answer_bind(self, body: bytes) -> Awaitable[bytes]:
        missing = self.missing()
        return _completed(encode_binding_result(missing)) if missing else self.binder.answer(body)

    async def answer_preempt(self, body: bytes) -> bytes:
        """Between other requests."""
        found = encode_preemption_result({})
        for answer_preempt in methods(self.features, Feature.answer_preempt):
            found = found if self.missing() else await answer_preempt(body)
        return encode_preemption_result({}) if self.missing() else found

    def unsynced(self) -> str:
        """Which first list is not complete; empty if all are."""
        missing = [name for name, handler in self.awaited.items() if not handler.has_synced]
        return f"the first list of {', '.join(missing)} is not complete" if missing else ""

    def missing(self) -> str:
        """Why no decision can be made; empty if one can."""
        missing = self.unsynced() or self.tenure.missing()
        for of_feature in self._missing:
            missing = missing or of_feature()
        return missing

    def may_preempt(self) -> bool:
        """Whether this replica decides now, on complete lists."""
        return not self.missing() and self.budgets.has_synced

    # -- what features ask

    def read_again(self, pod: Pod) -> None:
        """What the pod asks for is another now, without a change of the pod."""
        cycle = self.cycles.get(pod.metadata.uid)
        if cycle is not None and cycle.is_shown:  # Otherwise it may be gone.
            self.on_pod(pod)

    def refresh_node(self, name: str) -> None:
        self.nodes.refresh(name)

    def make_way(self, uid: str) -> None:
        for make_way in methods(self.features, Feature.make_way):
            make_way(uid)

    def preemption_nodes(self, request: PodRequest) -> frozenset[str] | None:
        """The only nodes on which room helps the pod; None if any does."""
        found = (nodes(request) for nodes in methods(self.features, Feature.preemption_nodes))
        return next((nodes for nodes in found if nodes is not None), None)

    def waiting_groups(self) -> Iterable[WaitingGroup]:
        """What waits for room beside single pods."""
        return (each for groups in methods(self.features, Feature.waiting_groups) for each in groups())

    def _is_binding(self, group: str) -> bool:
        return any(is_binding(group) for is_binding in methods(self.features, Feature.is_binding))

    def preemptors(self) -> Iterable[Preemptor]:
        """What was refused since it was looked at last, and may preempt."""
        return (each for preemptors in methods(self.features, Feature.preemptors) for each in preemptors())

    async def wake(self, pods: Sequence[PodRequest], on_failed: Callable[[str], None]) -> None:
        await self.waker.wake(pods, on_failed)

    # -- told by the informers

    def on_pod(self, pod: Pod) -> None:
        for on_pod in self._on_pod:
            on_pod(pod)

    def on_pod_gone(self, uid: str) -> None:
        for on_pod_gone in self._on_pod_gone:
            on_pod_gone(uid)

    def on_node(self, node: Node) -> None:
        self.queue.observe_node(node)
        for on_node in self._on_node:
            on_node(node)
        if self._hosts is not None:
            self._hosts.put_node(node)

    def on_node_gone(self, name: str) -> None:
        self.queue.forget_node(name)
        for on_node_gone in self._on_node_gone:
            on_node_gone(name)
        if self._hosts is not None:
            self._hosts.drop_node(name)

    def on_cards(self, name: str) -> None:
        self.observer.on_cards(name)

    def on_handshake(self, node: Node, annotations: Patch) -> None:
        if self.is_leader:
            self.spawn(self._shake_hands(node, annotations))

    def on_room(self) -> None:
        self.unschedulable.on_room()

    def on_synced(self) -> None:
        if self._uses_forecast and self.pods.has_synced and self.nodes.has_synced:
            # What a pod asks for is seen against the cards that there are, so both lists are needed.
            self._demand.start(self._read_request)
        if not self.missing():
            # Before any other decision: what an earlier process has promised.
            for feature in self.features:
                feature.recover()
        # What was gained while decisions had to wait woke no pod.
        self.unschedulable.on_room()

    def _on_victims(self, node: str) -> None:
        self.preemption.arrays.note(node)

    def on_pod_listed(self, pod: Pod) -> None:
        if self._uses_forecast:
            self._demand.note_listed(pod)

    def _read_request(self, pod: Pod) -> PodRequest | None:
        prepared = self.request_reader.read(pod)
        return None if isinstance(prepared, BadPod) or not prepared.request.asks_for_devices else prepared.request

    # -- over time

    def forget_vendors(self) -> None:
        """The vendors have changed: drop everything that was read or judged by the old ones."""
        self.filter.forget()
        self.pods.forget()
        for feature in self.features:
            feature.forget_vendors()
        for name in self.ledger.node_names():
            # Equal facts would not be charged again, but what they are charged may have changed.
            self.ledger.forget_node(name)

    def tick(self) -> None:
        """Do what only time brings: handshakes, expiries, look-ups. Called every 15 s."""
        if self.is_leader:
            self.nodes.tick()
        self.cycles.tick()
        for feature in self.features:
            feature.tick()
        self.spawn(self.binder.look_up_unconfirmed())

    async def _shake_hands(self, node: Node, annotations: Patch) -> None:
        """For this version of the node only: a stamp that arrives late makes a plugin that has reported look dead."""
        try:
            await self.api.annotate_node(node.name, annotations, resource_version=node.metadata.resource_version)
        except KubeError as error:
            if not is_conflict(error):  # The change is about to be shown.
                log.warning("handshake not written", node=node.name, error=str(error))


async def _completed(answer: bytes) -> bytes:
    return answer
