"""Makes the moves of a plan, one step at a time: hold the targets, evict the pods, wait for their successors.

    CHECKED ──▶ HELD ──▶ EVICTED ──▶ MOVED
       └────────┴──────────┴──▶ stopped: the cluster is not as the plan has it, or the time is over

A step is one pod, or a gang. The plan is compared with the cluster before each step, and the scheduler itself holds the
targets (`holds`). A plan that was stopped can be applied again: moves whose pod is gone are done. Stopping at any
moment leaves at most the holds of one step, which end by themselves.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby

import msgspec

from tessera.inspect.defragmentation import DefragmentationReport, PlannedMove
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.state import InspectionError, documents
from tessera.kube.backoff import Backoff
from tessera.kube.client import KubeClient
from tessera.kube.errors import KubeError
from tessera.kube.eviction import EvictionResult, evict_pod
from tessera.kube.resources import PODS
from tessera.kube.retry import retry_on_error
from tessera.maintenance.holds import POLL_S, AskedHold, Deviation, NodeHolds
from tessera.wire.moves import MoveHold
from tessera.wire.objects import Pod, Workload

LOOKS, LOOK_PAUSES = 3, Backoff(initial=5.0, cap=10.0, floor=2.0)
"""at the cluster before a step, if the apiserver cannot be reached"""
GONE_ALREADY = "it is gone already, or leaves"
KIND = "DefragmentationPlan"


class MoveStage(Enum):
    """How far a move is."""

    WAITING = "waiting"
    HELD = "held"
    EVICTED = "evicted"
    MOVED = "moved"
    STOPPED = "stopped"


@dataclass(slots=True)
class MoveProgress:
    move: PlannedMove
    stage: MoveStage = MoveStage.WAITING
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOptions:
    interval_s: float = 0.0
    """between the end of a step and the next eviction"""
    step_timeout_s: float = 600.0
    """for one step; the targets are held as long"""


def read_plan(text: str, *, file: str) -> DefragmentationReport:
    """What `tessera defrag plan -o json` or `-o yaml` printed. Raises InspectionError."""
    found = documents(text, file)
    document = found[0] if len(found) == 1 and isinstance(found[0], dict) else {}
    if document.get("kind") != KIND:
        raise InspectionError(f"{file}: not a plan; make one with tessera defrag plan -o json")
    try:
        return msgspec.convert(_snake(document), DefragmentationReport)
    except msgspec.ValidationError as error:
        raise InspectionError(f"{file}: not a plan that this tessera reads: {error}") from error


def _snake(value: object) -> object:
    """Names in camelCase back to those of the fields."""
    if isinstance(value, dict):
        return {"".join(f"_{c.lower()}" if c.isupper() else c for c in str(k)): _snake(v) for k, v in value.items()}
    return [_snake(each) for each in value] if isinstance(value, list) else value


async def permit_all(_moves: Sequence[PlannedMove]) -> None:
    """No limit but those of the cluster."""


@dataclass(slots=True)
class PlanRun:
    """One plan on its way."""

    client: KubeClient
    look: Callable[[], Awaitable[OfflineCluster]]
    """the cluster as it is now"""
    options: ApplyOptions
    now: Callable[[], float]
    """unix time"""
    report: Callable[[str], None]
    """told of every change, one line each"""
    permit: Callable[[Sequence[PlannedMove]], Awaitable[None]] = permit_all
    """asked before the pods of a step are evicted; raises Deviation if they must not be"""
    holds: NodeHolds = field(init=False)

    def __post_init__(self) -> None:
        self.holds = NodeHolds(self.client)

    async def rehearse(self, moves: Sequence[PlannedMove]) -> list[MoveProgress]:
        """Compares each move with the cluster and asks the apiserver about each eviction. Changes nothing."""
        cluster = await self.look()
        found = [MoveProgress(move) for move in moves]
        for progress in found:
            move = progress.move
            try:
                if _is_done(cluster, move):
                    self._set(progress, MoveStage.MOVED, GONE_ALREADY)
                    continue
                _check_source(cluster, move)
            except Deviation as error:
                self._set(progress, MoveStage.STOPPED, str(error))
                continue
            answer = await evict_pod(self.client, move.namespace, move.name, uid=move.uid, dry_run=True)
            match answer.result:
                case EvictionResult.EVICTED:
                    self._set(progress, MoveStage.WAITING, f"would move to {move.target.text}")
                case EvictionResult.GONE:
                    self._set(progress, MoveStage.MOVED, GONE_ALREADY)
                case _:
                    self._set(progress, MoveStage.STOPPED, answer.reason)
        return found

    async def run(self, moves: Sequence[PlannedMove]) -> list[MoveProgress]:
        """Until all are made, or the cluster deviates."""
        found = [MoveProgress(move) for move in moves]
        steps = [list(step) for _, step in groupby(found, key=lambda progress: progress.move.step)]
        for number, step in enumerate(steps):
            try:
                await self._make(step)
            except (Deviation, KubeError) as error:
                for progress in step:
                    if progress.stage is not MoveStage.MOVED:
                        self._set(progress, MoveStage.STOPPED, str(error))
                break
            if number + 1 < len(steps) and self.options.interval_s:
                await asyncio.sleep(self.options.interval_s)
        return found

    async def _make(self, step: Sequence[MoveProgress]) -> None:
        cluster = await self._look()
        left: dict[str, tuple[MoveProgress, Workload]] = {}
        for progress in step:
            if _is_done(cluster, progress.move):
                self._set(progress, MoveStage.MOVED, GONE_ALREADY)
            else:
                left[progress.move.uid] = progress, _check_source(cluster, progress.move)
        if not left:
            return
        if len({workload for _, workload in left.values()}) > 1:
            raise Deviation("the pods of its gang have several controllers")
        deadline = asyncio.get_running_loop().time() + self.options.step_timeout_s
        until = self.now() + self.options.step_timeout_s
        asked = [_hold_of(progress.move, workload, until=until) for progress, workload in left.values()]
        known = {pod.metadata.uid for pod in cluster.pods.values()}
        try:
            await self.holds.ask(asked)
            self._set_all(left.values(), MoveStage.HELD)
            await self.permit([progress.move for progress, _ in left.values()])
            for progress, _ in left.values():
                await self._evict(progress.move, deadline)
            self._set_all(left.values(), MoveStage.EVICTED)
            [workload] = {workload for _, workload in left.values()}
            await self._await_successors([progress.move for progress, _ in left.values()], workload, known, deadline)
        finally:
            await self.holds.release(asked)
        self._set_all(left.values(), MoveStage.MOVED)

    async def _evict(self, move: PlannedMove, deadline: float) -> None:
        """Again and again while a disruption budget does not allow it."""
        clock = asyncio.get_running_loop().time
        while True:
            answer = await evict_pod(self.client, move.namespace, move.name, uid=move.uid)
            if answer.result in (EvictionResult.EVICTED, EvictionResult.GONE):
                return
            if answer.is_final or clock() + answer.retry_s > deadline:
                raise Deviation(answer.reason)
            await asyncio.sleep(answer.retry_s)

    async def _await_successors(
        self, moves: Sequence[PlannedMove], workload: Workload, known: Collection[str], deadline: float
    ) -> None:
        """Until as many new pods of the workload are on each target as were moved there."""
        clock = asyncio.get_running_loop().time
        wanted = Counter(move.target.node for move in moves)
        while clock() < deadline:
            pods = await self._pods(workload.namespace)
            new = [pod for pod in pods if pod.workload == workload and pod.metadata.uid not in known]
            bound = [pod for pod in new if pod.spec.node_name]
            if wanted <= Counter(pod.spec.node_name for pod in bound):
                return
            astray = [pod for pod in bound if pod.spec.node_name not in wanted]
            if astray and len(bound) >= len(moves):
                raise Deviation(f"its successor {astray[0].metadata.name} went to {astray[0].spec.node_name}")
            await asyncio.sleep(POLL_S)
        raise Deviation(f"no pod of {moves[0].controller} has come to {moves[0].target.node} in time")

    async def _pods(self, namespace: str) -> Sequence[Pod]:
        """Empty while the apiserver cannot be reached."""
        try:
            return (await self.client.list(PODS.path(namespace), Pod)).items
        except KubeError as error:
            if not error.is_transient:
                raise
            return ()

    async def _look(self) -> OfflineCluster:
        return await retry_on_error(
            self.look, backoff=LOOK_PAUSES, is_retriable=lambda error, failures: error.is_transient and failures < LOOKS
        )

    def _set_all(self, step: Collection[tuple[MoveProgress, Workload]], stage: MoveStage) -> None:
        for progress, _ in step:
            self._set(progress, stage)

    def _set(self, progress: MoveProgress, stage: MoveStage, reason: str = "") -> None:
        progress.stage, progress.reason = stage, reason
        self.report(f"{progress.move.namespace}/{progress.move.name}: {reason or stage.value}")


def _is_done(cluster: OfflineCluster, move: PlannedMove) -> bool:
    """Whether the pod itself is gone, or leaves because it is evicted already: another one of its name is its
    successor."""
    pod = cluster.pods.get(f"{move.namespace}/{move.name}")
    return pod is None or pod.metadata.uid != move.uid or pod.metadata.deletion_timestamp is not None


def _check_source(cluster: OfflineCluster, move: PlannedMove) -> Workload:
    """The pod's workload. Raises Deviation if the move cannot be made as planned."""
    entry = cluster.ledger.pod(move.uid)
    if entry is None or entry.facts.node != move.source.node or sorted(entry.holdings) != sorted(move.source.cards):
        raise Deviation(f"it does not hold {move.source.text} any more")
    workload = cluster.pods[f"{move.namespace}/{move.name}"].workload
    if not workload.kind:
        raise Deviation("nothing creates it again: it is a bare pod")
    if not move.target.held:
        raise Deviation("the plan does not say what to hold: make it again with this tessera")
    devices = cluster.ledger.devices(move.target.node)
    if any(uuid not in devices for uuid in move.target.cards):
        raise Deviation(f"{move.target.text} is gone")
    return workload


def _hold_of(move: PlannedMove, workload: Workload, *, until: float) -> AskedHold:
    hold = MoveHold(workload.namespace, workload.kind, workload.name, until, move.target.held)
    return AskedHold(move.uid, move.target.node, hold)
