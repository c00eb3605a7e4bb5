"""Composition root of the scheduling pipeline: ledger, informer handlers, filter, binder, queue and wake-ups.

One event loop runs all of it. The engine does not read the API by itself: something else feeds the three handlers
(`pods`, `nodes`, `quotas`), calls `tick`, and begins and ends the tenure.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any

import structlog

from tessera.core.ledger import Ledger
from tessera.core.policies import uses_forecast
from tessera.core.preemption import Preemption
from tessera.core.requests import PodRequest
from tessera.core.selection import Selector
from tessera.kube.backoff import Backoff
from tessera.kube.errors import KubeError, is_conflict, is_not_found
from tessera.scheduler.allocation_queue import AllocationQueue
from tessera.scheduler.binder import Binder
from tessera.scheduler.clock import Clock
from tessera.scheduler.demand_tracker import DemandTracker
from tessera.scheduler.evictor import Evictor
from tessera.scheduler.features.claims.coordinator import ClaimCoordinator
from tessera.scheduler.features.gangs.accounts import HoldAccounts
from tessera.scheduler.features.gangs.coordinator import GangCoordinator
from tessera.scheduler.features.gangs.group_sizes import EACH_S, WantedGroup
from tessera.scheduler.features.gangs.holds import GangHolds, NodeLabels
from tessera.scheduler.features.gangs.preemptor import GangPreemptor
from tessera.scheduler.features.moves.holds import MoveHolds
from tessera.scheduler.features.preemption.nominated_nodes import NominatedNodes
from tessera.scheduler.features.preemption.preempt_verb import PreemptVerb
from tessera.scheduler.features.preemption.preemptor import Preemptor
from tessera.scheduler.features.preemption.victim_book import BudgetInformer, VictimBook
from tessera.scheduler.filter import Filter
from tessera.scheduler.host_resources import HostResources
from tessera.scheduler.informer_handler import InformerHandler
from tessera.scheduler.kube_api import KubeApi
from tessera.scheduler.node_informer import NodeInformer, Patch
from tessera.scheduler.node_lock import NodeLocks
from tessera.scheduler.observer import SchedulerObserver
from tessera.scheduler.pod_cycle import UNSCHEDULABLE, PodCycles
from tessera.scheduler.pod_informer import PodInformer, QuotaInformer
from tessera.scheduler.pod_requests import RequestReader
from tessera.scheduler.settings import Settings
from tessera.scheduler.takeover import AT_ONCE, Takeover
from tessera.scheduler.tenure import Tenure
from tessera.scheduler.unschedulable_pods import UnschedulablePods
from tessera.vendors.drafts import BadPod
from tessera.vendors.registry import build_vendors
from tessera.wire import keys
from tessera.wire.extender import encode_binding_result, encode_filter_result, encode_preemption_result
from tessera.wire.objects import Node, Pod

log = structlog.get_logger(__name__)

WAKE_AGAIN_S = 1.0
"""until pods are woken that could not be woken at once"""
WAKE_PAUSES = Backoff(initial=WAKE_AGAIN_S, cap=15.0)
"""between tries, if nothing else happens: a backlog must not add to what an apiserver cannot serve"""


class Engine:
    """The pipeline of one scheduler replica."""

    def __init__(
        self,
        settings: Settings,
        api: KubeApi,
        *,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        observer: SchedulerObserver,
        tenure: Tenure,
    ) -> None:
        self._api = api
        self._clock = clock
        self._spawn = spawn
        self._observer = observer
        self._scheduler_name = settings.scheduler_name
        self.tenure = tenure
        self.vendors = build_vendors(settings.device_sections, settings.switches)
        self.ledger = Ledger(self.vendors)
        self.selector = Selector(self.ledger)
        self.unschedulable = UnschedulablePods()
        self.queue = AllocationQueue(
            NodeLocks(api, now=clock.now, time=clock.monotonic),
            self.vendors,
            mode=settings.node_lock,
            turn_seconds=settings.turn_seconds,
            lock_seconds=settings.node_lock_seconds,
            time=clock.monotonic,
        )
        self.cycles = PodCycles(
            self.ledger,
            self.queue,
            self.unschedulable,
            clock=clock,
            reservation_seconds=settings.reservation_seconds,
            observer=observer,
        )
        self._began, self._wakes = int(clock.now()), 0
        self._wake_again: asyncio.TimerHandle | None = None
        self._failed_rounds, self._has_failed = 0, False
        """rounds of wake-ups in a row that had failures, and whether this one has"""
        self._uses_forecast = uses_forecast(settings.policies.node, settings.policies.device)
        self._demand = DemandTracker(self.ledger.arrays, self.vendors)
        self._hosts = HostResources(self.ledger) if self._uses_forecast else None
        self.requests = RequestReader(self.vendors, settings.policies, self._demand)
        self.claims = ClaimCoordinator(
            self.cycles,
            api,
            scheduler_name=settings.scheduler_name,
            tenure=tenure,
            spawn=spawn,
            listener=self,
            observer=observer,
        )
        self._reads_claims = settings.dra
        if settings.dra:
            self.requests.claims = self.claims
        self.labels = NodeLabels()
        self.victims = VictimBook(time=clock.monotonic, on_change=self._on_victims)
        self.nominated_nodes = NominatedNodes(api)
        accounts = HoldAccounts(clock.monotonic, lambda: self.ledger.card_count, share=settings.gang_hold_percent / 100)
        self.gangs = GangCoordinator(
            GangHolds(self.selector, self.cycles, self.labels, accounts),
            self.cycles,
            self.requests,
            book=self.victims,
            nominated_nodes=self.nominated_nodes,
            settings=settings,
            observer=observer,
        )
        self.filter = Filter(
            self.selector, self.cycles, self.requests, gangs=self.gangs, demand=self._demand, observer=observer
        )
        self.preemption = Preemption(self.selector, self.victims)
        self.budgets = BudgetInformer(self.victims)
        evictor = Evictor(api, self.victims, observer=observer)
        self.preemptor = Preemptor(
            self.cycles,
            self.preemption,
            evictor,
            nominated_nodes=self.nominated_nodes,
            observer=observer,
            settings=settings,
            is_ready=self._may_preempt,
        )
        self.gang_preemptor = GangPreemptor(
            self.gangs,
            self.preemption,
            evictor,
            settings=settings,
            is_ready=self._may_preempt,
        )
        self.preempt_verb = PreemptVerb(
            self.cycles,
            self.requests,
            self.victims,
            gangs=self.gangs.registry,
            preemptor=self.preemptor,
            adds_victims=settings.preemption,
        )
        self.binder = Binder(
            self.cycles,
            self.filter,
            api,
            claims=self.claims.writer,
            tenure=tenure,
            observer=observer,
        )
        self.moves = MoveHolds(
            self.cycles.moves,
            api,
            clock=clock,
            spawn=spawn,
            is_ready=lambda: not self.missing(),
            on_room=self.unschedulable.on_room,
            make_way=self.gangs.make_way,
        )
        self.pods = PodInformer(
            self.cycles,
            self.vendors,
            hosts=self._hosts,
            victims=self.victims,
            observer=observer,
            listener=self,
        )
        self.nodes = NodeInformer(
            self.ledger,
            self.vendors,
            pools=self.claims.pools,
            selector=settings.node_selector,
            clock=clock,
            listener=self,
        )
        self.quotas = QuotaInformer(self.ledger, self.vendors, self.unschedulable, on_synced=self.on_synced)
        self.awaited: dict[str, InformerHandler[Any]] = {
            "pods": self.pods,
            "nodes": self.nodes,
            "quotas": self.quotas,
            **(self.claims.informers if settings.dra else {}),
        }
        """without whose lists nothing is decided"""
        self.takeover = Takeover(
            api,
            tenure,
            is_ours=self._is_ours,
            now=clock.now,
            is_ours_claim=self.claims.book.may_be_ours if settings.dra else None,
        )

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
            self._observer.on_tenure()
            self.nodes.tick()
            self._spawn(self.takeover.clear_nominated_nodes(number, is_nominated=self._is_nominated))
        else:
            self.tenure.end()

    def step_down(self) -> None:
        """The tenure is over."""
        self.tenure.end()
        self.gangs.end_term()
        self.nominated_nodes.forget()
        self.moves.end_term()
        self.claims.end_term()
        self.cycles.end_term()
        self._observer.on_step_down()

    def _is_nominated(self, uid: str) -> bool:
        return self.ledger.nominations.has(uid) or self.gangs.is_nominated(uid)

    def _is_ours(self, pod: Pod) -> bool:
        """Whether a scheduler with these settings, or earlier ones, may have decided about a pod that is not bound."""
        if pod.spec.scheduling_gates:
            return False  # kube-scheduler has never asked for it.
        prepared = self.requests.read(pod)
        asks = isinstance(prepared, BadPod) or prepared.needs_placement
        return asks or pod.spec.scheduler_name == self._scheduler_name

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
        found = b"" if self.missing() else await self.preempt_verb.answer(body)
        return encode_preemption_result({}) if self.missing() else found

    def unsynced(self) -> str:
        """Which first list is not complete; empty if all are."""
        missing = [name for name, handler in self.awaited.items() if not handler.has_synced]
        return f"the first list of {', '.join(missing)} is not complete" if missing else ""

    def missing(self) -> str:
        """Why no decision can be made; empty if one can."""
        return self.unsynced() or self.tenure.missing() or self.gangs.recovering

    def _may_preempt(self) -> bool:
        """Whether this replica decides now, on complete lists."""
        return not self.missing() and self.budgets.has_synced

    # -- told by the informers

    def on_pod(self, pod: Pod) -> None:
        self.gangs.observe(pod)
        if pod.spec.resource_claims:
            self.claims.on_pod(pod)

    def on_pod_gone(self, uid: str) -> None:
        self.gangs.forget(uid)
        self.claims.on_pod_gone(uid)

    def on_pool(self, node: str) -> None:
        self.nodes.refresh(node)

    def on_claims_ready(self, pod: Pod) -> None:
        cycle = self.cycles.get(pod.metadata.uid)
        if cycle is not None and cycle.is_shown:  # Otherwise it may be gone.
            self.gangs.observe(pod)  # What it asks for is known now.

    def on_node(self, node: Node) -> None:
        self.queue.observe_node(node)
        self.labels.put(node)
        self.moves.put_node(node)
        if self._hosts is not None:
            self._hosts.put_node(node)

    def on_node_gone(self, name: str) -> None:
        self.queue.forget_node(name)
        self.labels.drop(name)
        self.moves.drop_node(name)
        if self._hosts is not None:
            self._hosts.drop_node(name)

    def on_cards(self, name: str) -> None:
        self._observer.on_cards(name)

    def on_handshake(self, node: Node, annotations: Patch) -> None:
        if self.is_leader:
            self._spawn(self._shake_hands(node, annotations))

    def on_room(self) -> None:
        self.unschedulable.on_room()

    def on_synced(self) -> None:
        if self._uses_forecast and self.pods.has_synced and self.nodes.has_synced:
            # What a pod asks for is seen against the cards that there are, so both lists are needed.
            self._demand.start(self._read_request)
        if not self.missing():
            # Before any other decision: what is missing of gangs that an earlier process has bound in part.
            self.gangs.recover(self._spawn)
            self.moves.recover()
        # What was gained while decisions had to wait woke no pod.
        self.unschedulable.on_room()

    def _on_victims(self, node: str) -> None:
        self.preemption.arrays.note(node)

    def on_pod_listed(self, pod: Pod) -> None:
        if self._uses_forecast:
            self._demand.note_listed(pod)

    def _read_request(self, pod: Pod) -> PodRequest | None:
        prepared = self.requests.read(pod)
        return None if isinstance(prepared, BadPod) or not prepared.request.asks_for_devices else prepared.request

    # -- over time

    def forget_vendors(self) -> None:
        """The vendors have changed: drop everything that was read or judged by the old ones."""
        self.filter.forget()
        self.pods.forget()
        self.gangs.outlook.forget()
        for name in self.ledger.node_names():
            # Equal facts would not be charged again, but what they are charged may have changed.
            self.ledger.forget_node(name)

    def tick(self) -> None:
        """Do what only time brings: handshakes, expiries, look-ups. Called every 15 s."""
        if self.is_leader:
            self.nodes.tick()
        self.cycles.tick()
        self._spawn(self.gangs.tick_in_slices())
        self.moves.end_overdue()
        self._spawn(self.binder.look_up_unconfirmed())
        if self._reads_claims:
            self.claims.tick()
            self._spawn(self.claims.writer.look_up_uncertain())
            self._spawn(self.claims.writer.protect_allocated())
        self.preemptor.end_overdue()

    async def wake_pods(self) -> None:
        """For ever: when capacity was freed, make kube-scheduler ask again for pods that fit now, gangs first."""
        room = self.unschedulable.room
        while True:
            await room.wait()
            room.clear()
            if self.missing():
                # The room stays; whether it helps is seen once decisions can be made again.
                self._wake_later()
                continue
            self._failed_rounds, self._has_failed = (self._failed_rounds + 1) * self._has_failed, False
            self.claims.retry_wakes()
            async for members in self.gangs.retry():
                await self._wake_all(members, self.gangs.on_wake_failed)
            for pod in self.preemptor.ready():
                await self._wake(pod, self.unschedulable.on_wake_failed)
            for pod in self._ready_after_moves():
                await self._wake(pod, self.unschedulable.on_wake_failed)
            async for pod in self.unschedulable.wake(self.selector):
                await self._wake(pod, self.unschedulable.on_wake_failed)

    async def wake_claimants(self) -> None:
        """For ever: make kube-scheduler ask again for pods whose claims exist now. That must not wait for others."""
        while True:
            await self.claims.has_ready.wait()
            await self._wake_all(self.claims.take_ready(), self.claims.on_wake_failed)

    async def _wake_all(self, pods: Sequence[PodRequest], on_failed: Callable[[str], None]) -> None:
        """Several at a time."""
        waking = iter(pods)
        await asyncio.gather(*[self._wake_each(waking, on_failed) for _ in range(min(AT_ONCE, len(pods)))])

    async def _wake_each(self, pods: Iterator[PodRequest], on_failed: Callable[[str], None]) -> None:
        for pod in pods:
            await self._wake(pod, on_failed)

    def _ready_after_moves(self) -> Iterator[PodRequest]:
        """Pods for which others were moved away, each once until it is refused again."""
        for uid in self.cycles.moves.ready():
            pod = self.unschedulable.get(uid)
            if pod is not None and not pod.is_woken:
                pod.is_woken = True
                yield pod.request

    async def _wake(self, pod: PodRequest, on_failed: Callable[[str], None]) -> None:
        if self.missing():
            on_failed(pod.uid)
            self.unschedulable.on_room()
            return
        self._wakes += 1
        # kube-scheduler may ask before the patch is answered.
        self._observer.on_woken(pod)
        try:
            # A value that no earlier process wrote: a patch that changes nothing would wake no pod.
            await self._api.annotate_pod(pod.namespace, pod.name, {keys.RETRY: f"{self._began}.{self._wakes}"})
        except KubeError as error:
            if is_not_found(error):
                self._forget_refused(pod.uid)
                return
            on_failed(pod.uid)
            # Perhaps nothing else ever happens: the room that is there must be enough to try again.
            self._has_failed = True
            self._wake_later(WAKE_PAUSES.ceiling(self._failed_rounds + 1))
            log.warning("pod not woken", pod=f"{pod.namespace}/{pod.name}", error=str(error))

    def _wake_later(self, seconds: float = WAKE_AGAIN_S) -> None:
        """One timer for all reasons: each of its own would start the next one, and they would only become more."""
        if self._wake_again is not None:
            self._wake_again.cancel()
        self._wake_again = asyncio.get_running_loop().call_later(seconds, self.unschedulable.room.set)

    async def look_up_groups(self) -> None:
        """For ever: read the sizes of gangs that are in an object, at a bounded rate. No wake-up waits for that."""
        sizes = self.gangs.registry.sizes
        while True:
            sizes.wanted.clear()
            found = sizes.next(self._clock.monotonic())
            if isinstance(found, float):
                seconds = found - self._clock.monotonic()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(sizes.wanted.wait(), None if math.isinf(seconds) else seconds)
            else:
                await self._look_up_group(found)
                await asyncio.sleep(EACH_S)

    async def _look_up_group(self, wanted: WantedGroup) -> None:
        namespace, group = wanted
        if self.missing() or group.where is None:
            return
        try:
            found = await self._api.get_pod_group(group.where, namespace, group.name)
        except KubeError as error:
            log.info("PodGroup not read", group=f"{namespace}/{group.name}", error=str(error))
            return
        if found.minimum is not None:
            self.gangs.registry.set_minimum(namespace, group.name, found.minimum)
            self.unschedulable.on_room()

    def _forget_refused(self, uid: str) -> None:
        cycle = self.cycles.get(uid)
        if cycle is not None and cycle.state in UNSCHEDULABLE:
            self.cycles.forget(cycle)

    async def _shake_hands(self, node: Node, annotations: Patch) -> None:
        """For this version of the node only: a stamp that arrives late makes a plugin that has reported look dead."""
        try:
            await self._api.annotate_node(node.name, annotations, resource_version=node.metadata.resource_version)
        except KubeError as error:
            if not is_conflict(error):  # The change is about to be shown.
                log.warning("handshake not written", node=node.name, error=str(error))


async def _completed(answer: bytes) -> bytes:
    return answer
