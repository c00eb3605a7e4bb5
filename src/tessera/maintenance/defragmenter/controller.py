"""One round: read the cluster, find who waits and gains by moves, and make the moves that the budget allows.

    who waits? ──▶ plan ──▶ hold what is gained ──▶ move, step by step ──▶ the pod that waited takes what is held
                    └──▶ none helps: the next one

A round ends when none that waits gains, the budget is used up, or the cluster deviates from a plan. None begins while
places are held for moves, by any process: two plans never run into each other, and what an earlier process left is over
first. What is gained is held for the pod or gang that waits until it has it; of a gang, all its places are, those
included that need no move.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum

import structlog

from tessera.inspect.defragmentation import DefragmentationReport, PlannedMove, movable_pods, plan_for_waiting
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.kube.client import KubeClient
from tessera.kube.errors import KubeError, is_not_found
from tessera.kube.lease_election import LeaseLost
from tessera.kube.resources import PODS
from tessera.maintenance.defrag import ApplyOptions, MoveStage, PlanRun
from tessera.maintenance.defragmenter.demand import Demand, waiting_demand
from tessera.maintenance.defragmenter.eviction_budget import EvictionBudget
from tessera.maintenance.holds import POLL_S, AskedHold, Deviation, NodeHolds
from tessera.wire.moves import MoveHold
from tessera.wire.objects import Pod

log = structlog.get_logger(__name__)

MAX_PLANS = 20
"""kinds of waiting pods that are planned for in one round: each takes up to some seconds"""
LEFT_ALONE_S = 3600.0
"""after evictions that did not help a pod: no others are made for it"""


class Outcome(Enum):
    """Why a round ended."""

    IDLE = "idle"
    """nothing waits for long enough"""
    NO_GAIN = "no-gain"
    """no moves help, or too many for the budget"""
    BUSY = "busy"
    """other moves are under way"""
    MOVED = "moved"
    PLANNED = "planned"
    """with --dry-run"""
    STOPPED = "stopped"
    """the cluster deviated from a plan"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOptions:
    patience_s: float
    """that a pod waits before others are moved for it"""
    max_moves: int
    """for one pod or gang"""
    step_timeout_s: float
    dry_run: bool = False


@dataclass(slots=True)
class RoundFigures:
    """For metrics; totals since the start."""

    waiting: int = 0
    """pods and gangs that waited for long enough in the last round"""
    plans: int = 0
    moves: int = 0
    stops: int = 0


class Defragmenter:
    """Makes rounds; one at a time."""

    def __init__(
        self,
        client: KubeClient,
        look: Callable[[], Awaitable[OfflineCluster]],
        budget: EvictionBudget | None,
        options: RoundOptions,
        now: Callable[[], float],
    ) -> None:
        """`budget` is None with `dry_run`. `now` is the wall clock in unix seconds."""
        self.figures = RoundFigures()
        self._client = client
        self._look = look
        self._budget = budget
        self._options = options
        self._now = now
        self._holds = NodeHolds(client)
        self._in_vain: dict[str, float] = {}
        """names of demand, and until when it is left alone"""

    async def make_round(self) -> Outcome:
        """Raises KubeError if the cluster cannot be read."""
        outcome = Outcome.NO_GAIN
        while True:
            if await self._holds.is_any_held(self._now()):
                return Outcome.BUSY if outcome is Outcome.NO_GAIN else outcome
            cluster = await self._look()
            demand = waiting_demand(cluster, patience_s=self._options.patience_s)
            self.figures.waiting = len(demand)
            found = await self._plan_first(cluster, [who for who in demand if not self._is_left_alone(who)])
            if found is None:
                return Outcome.IDLE if not demand and outcome is Outcome.NO_GAIN else outcome
            self.figures.plans += 1
            who, plan = found
            log.info("plan", waiting=who.name, moves=[move.text for move in plan.moves])
            if self._options.dry_run:
                return Outcome.PLANNED
            left = self._left()
            if not await self._apply(cluster, who, plan):
                self.figures.stops += 1
                if self._left() < left:
                    self._in_vain[who.name] = self._now() + LEFT_ALONE_S
                return Outcome.STOPPED
            outcome = Outcome.MOVED

    async def _plan_first(
        self, cluster: OfflineCluster, demand: Sequence[Demand]
    ) -> tuple[Demand, DefragmentationReport] | None:
        """The first that gains by moves, and how."""
        tried: set[Hashable] = set()
        left = self._left()
        if not left or not demand:
            return None
        # On objects of this round alone, so that lease and listener are served meanwhile.
        movable = await asyncio.to_thread(movable_pods, cluster, with_bare=False)
        for who in demand:
            names, _ = cluster.candidates(cluster.documents[who.keys[0]])
            kind = (who.request.shape, who.request.namespace, tuple(names), len(who.keys), who.priority)
            if len(tried) == MAX_PLANS or kind in tried:
                continue
            tried.add(kind)
            plan = await asyncio.to_thread(
                plan_for_waiting,
                cluster,
                who.keys[0],
                names,
                count=len(who.keys),
                max_moves=min(left, self._options.max_moves),
                highest_priority=who.priority,
                movable=movable,
            )
            if plan is not None:
                return who, plan
        return None

    def _left(self) -> int:
        return self._options.max_moves if self._budget is None else self._budget.left()

    def _is_left_alone(self, who: Demand) -> bool:
        now = self._now()
        self._in_vain = {name: until for name, until in self._in_vain.items() if until > now}
        return who.name in self._in_vain

    # -- making a plan true

    async def _apply(self, cluster: OfflineCluster, who: Demand, plan: DefragmentationReport) -> bool:
        """Whether all moves were made."""
        places = self._places(cluster, who, plan)
        try:
            try:
                await self._holds.ask(places)
                return await self._make(cluster, who, plan.moves, places)
            finally:
                await self._holds.release(places)
        except (Deviation, KubeError) as error:
            log.warning("plan stopped", waiting=who.name, reason=str(error))
            return False

    async def _make(
        self, cluster: OfflineCluster, who: Demand, moves: Sequence[PlannedMove], places: Sequence[AskedHold]
    ) -> bool:
        async def permit(step: Sequence[PlannedMove]) -> None:
            for key in who.keys:
                if not await self._waits(key, cluster.pods[key].metadata.uid):
                    raise Deviation(f"{key} does not wait any more")
            await self._spend(len(step))
            await self._holds.extend(places, until=self._until())

        options = ApplyOptions(step_timeout_s=self._options.step_timeout_s)
        run = PlanRun(self._client, self._look, options, self._now, lambda line: log.info("move", what=line), permit)
        made = await run.run(moves)
        self.figures.moves += sum(each.stage is MoveStage.MOVED for each in made)
        if not all(each.stage is MoveStage.MOVED for each in made):
            return False
        await self._await_bound(cluster, who)
        log.info("moves made", waiting=who.name, moves=len(made))
        return True

    async def _spend(self, evictions: int) -> None:
        try:
            is_allowed = self._budget is not None and await self._budget.spend(evictions)
        except LeaseLost as error:
            raise Deviation("this process does not hold its Lease any more") from error
        if not is_allowed:
            raise Deviation("no evictions are left in this hour")

    async def _await_bound(self, cluster: OfflineCluster, who: Demand) -> None:
        """Until the pods that waited have a node, or are gone."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._options.step_timeout_s
        for key in who.keys:
            while await self._waits(key, cluster.pods[key].metadata.uid):
                if clock() >= deadline:
                    raise Deviation(f"{key} is not bound in time")
                await asyncio.sleep(POLL_S)

    async def _waits(self, key: str, uid: str) -> bool:
        try:
            pod = await self._client.get(PODS.path(*key.split("/")), Pod)
        except KubeError as error:
            if error.is_transient:
                return True
            if not is_not_found(error):
                raise
            return False
        return not pod.spec.node_name and pod.metadata.uid == uid

    def _places(self, cluster: OfflineCluster, who: Demand, plan: DefragmentationReport) -> list[AskedHold]:
        """A hold for each pod that waits, over the pods that have its place now. A place that needs no move is not to
        be taken before all moves are made: a gang takes all its places at once."""
        found = []
        for number, (key, place) in enumerate(zip(who.keys, (*plan.fitting_places, *plan.gained_places), strict=True)):
            pod, is_free = cluster.pods[key], number < len(plan.fitting_places)
            leaving = tuple(move.uid for move in plan.moves if is_free or move.source.node == place.node)
            hold = MoveHold(
                pod.metadata.namespace, "", pod.metadata.name, self._until(), place.held,
                pod=pod.metadata.uid, leaving=leaving,
            )  # fmt: skip
            found.append(AskedHold(pod.metadata.uid, place.node, hold))
        return found

    def _until(self) -> float:
        """Longer than a step may take: the next one asks again."""
        return self._now() + 2 * self._options.step_timeout_s
