"""Gangs: the members of a group of pods are placed and bound together, or none is.

`coordinator` decides about them, `preemptor` lets other pods make way for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Sequence

import structlog

from tessera.core.grants import Placement
from tessera.core.misfits import Misfit
from tessera.core.requests import PodRequest
from tessera.core.selection import Refused
from tessera.kube.errors import KubeError
from tessera.scheduler.features.gangs.accounts import HoldAccounts
from tessera.scheduler.features.gangs.coordinator import GangCoordinator
from tessera.scheduler.features.gangs.gang import Alone, GangState
from tessera.scheduler.features.gangs.holds import GangHolds, NodeLabels
from tessera.scheduler.features.gangs.preemptor import GangPreemptor
from tessera.scheduler.features.gangs.registry import EACH_S, WantedGroup
from tessera.scheduler.features.gangs.turns import HeldNodes
from tessera.scheduler.framework import Attempt, Feature, Named, Pipeline, Place, Refusal, Work
from tessera.scheduler.identity_cache import IdentityCache
from tessera.scheduler.pod_cycle import PodCycle
from tessera.scheduler.pod_requests import PreparedRequest
from tessera.wire.objects import Node, Pod
from tessera.wire.pod_groups import read_pod_group

log = structlog.get_logger(__name__)

KEPT_REFUSALS = 32
"""a backlog is refused with the same few again and again"""


class Gangs(Feature):
    """All gangs."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        settings, ledger = pipeline.settings, pipeline.cycles.ledger
        self.labels = NodeLabels()
        accounts = HoldAccounts(
            pipeline.clock.monotonic, lambda: ledger.card_count, share=settings.gang_hold_percent / 100
        )
        self.coordinator = GangCoordinator(
            GangHolds(pipeline.selector, pipeline.cycles, self.labels, accounts),
            pipeline.cycles,
            pipeline.request_reader,
            book=pipeline.evictor.book,
            nominated_nodes=pipeline.nominated_nodes,
            settings=settings,
            observer=pipeline.observer,
        )
        self.registry = self.coordinator.registry
        self.turns = self.coordinator.turns
        self.preemptor = GangPreemptor(
            self.coordinator,
            pipeline.preemption,
            pipeline.evictor,
            settings=settings,
            is_ready=pipeline.may_preempt,
        )
        self._held_refusals = IdentityCache(_refuse_for_turn, most=KEPT_REFUSALS)

    # -- what the API shows

    def on_pod(self, pod: Pod) -> None:
        self.coordinator.observe(pod)

    def on_pod_gone(self, uid: str) -> None:
        self.coordinator.forget(uid)

    def on_node(self, node: Node) -> None:
        self.labels.put(node)

    def on_node_gone(self, name: str) -> None:
        self.labels.drop(name)

    def forget_vendors(self) -> None:
        self.coordinator.outlook.forget()

    # -- filter

    def concerns(self, attempt: Attempt) -> bool:
        """A member, one that was, or a pod that may come in the way of the gang whose turn it is."""
        is_member = read_pod_group(attempt.pod) is not None or self.registry.of(attempt.request.uid) is not None
        return is_member or self.turns.favoured is not None

    def takes_time(self, attempt: Attempt) -> bool:
        return self.coordinator.takes_time(attempt.pod)

    async def prepare(self, attempt: Attempt) -> bool:
        return await self.coordinator.prepare(attempt.pod, attempt.prepared, attempt.candidates)

    def place(self, attempt: Attempt) -> Place | Refusal | None:
        answer = self.coordinator.decide(attempt.pod, attempt.prepared, attempt.candidates)
        if isinstance(answer, Misfit):
            return Refusal(answer, *self.coordinator.note_refusal(attempt.request.uid, answer.text))
        return None if isinstance(answer, Alone) else Place(*answer)

    def post_filter(self, request: PodRequest, candidates: Named) -> bool:
        return self.turns.favoured is not None and self.turns.makes_way_for(request, candidates)

    def on_refused(self, attempt: Attempt, refused: Refused, *, by_feature: bool) -> Refused:
        """Says where the pod would fit without what is held for a gang."""
        if by_feature or self.turns.favoured is None:
            return refused
        held = self.turns.refusal_of(attempt.request, attempt.candidates)
        return refused if held is None else self._held_refusals.of(refused, held)

    def reserve(self, prepared: PreparedRequest) -> None:
        self.coordinator.holds.settle()

    def unreserve(self, request: PodRequest, placement: Placement | None) -> None:
        self.coordinator.holds.put_back(request, placement, self.registry.of(request.uid))

    # -- bind

    async def permit(self, uid: str) -> str:
        return await self.coordinator.lifecycle.enter_bind(uid)

    async def before_binding(self, cycle: PodCycle) -> str:
        return await self.coordinator.lifecycle.await_claims(cycle.uid)

    def post_bind(self, cycle: PodCycle, error: str) -> None:
        self.coordinator.lifecycle.leave_bind(cycle.uid)

    # -- preemption

    def preemption_nodes(self, request: PodRequest) -> frozenset[str] | None:
        """Where places are held for the gang, so that it stays whole: none if it has no plan, since room for one member
        alone is of no use to it."""
        gang = self.registry.of(request.uid)
        if gang is None or gang.state is GangState.WHOLE:
            return None
        return frozenset(hold.node for hold in self.coordinator.holds.alike(gang, request))

    def make_way(self, uid: str) -> None:
        self.coordinator.make_way(uid)

    def is_nominated(self, uid: str) -> bool:
        return self.coordinator.is_nominated(uid)

    # -- over time

    def missing(self) -> str:
        return self.coordinator.recovering

    def recover(self) -> None:
        self.coordinator.recover(self._pipeline.spawn)

    def tick(self) -> None:
        self._pipeline.spawn(self.coordinator.tick_in_slices())

    def wake(self) -> AsyncIterator[Sequence[PodRequest]]:
        return self.coordinator.retry()

    def on_wake_failed(self, uid: str) -> None:
        self.coordinator.on_wake_failed(uid)

    def work(self) -> Sequence[Work]:
        return self.preemptor.run, self._look_up_groups

    def end_term(self) -> None:
        self.coordinator.end_term()

    async def _look_up_groups(self) -> None:
        """For ever: read the sizes of gangs that are in an object, at a bounded rate. No wake-up waits for that."""
        sizes, clock = self.registry.sizes, self._pipeline.clock
        while True:
            sizes.wanted.clear()
            found = sizes.next(clock.monotonic())
            if isinstance(found, float):
                seconds = found - clock.monotonic()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(sizes.wanted.wait(), None if math.isinf(seconds) else seconds)
            else:
                await self._look_up_group(found)
                await asyncio.sleep(EACH_S)

    async def _look_up_group(self, wanted: WantedGroup) -> None:
        namespace, group = wanted
        if self._pipeline.missing() or group.where is None:
            return
        try:
            found = await self._pipeline.api.get_pod_group(group.where, namespace, group.name)
        except KubeError as error:
            log.info("PodGroup not read", group=f"{namespace}/{group.name}", error=str(error))
            return
        if found.minimum is not None:
            self.registry.set_minimum(namespace, group.name, found.minimum)
            self._pipeline.cycles.unschedulable.on_room()


def _refuse_for_turn(refused: Refused, held: HeldNodes) -> Refused:
    """The same, with the reason of the nodes where the pod would fit without what is held."""
    return Refused(dict(refused.misfits) | dict.fromkeys(held.nodes, held.misfit))
