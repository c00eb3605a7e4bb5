"""Makes the moves of a plan, one step at a time: hold the target, evict the pod, wait for its successor.

    CHECKED ──▶ HELD ──▶ EVICTED ──▶ MOVED
       └────────┴──────────┴──▶ stopped: the cluster is not as the plan has it, or the time is over

The plan is compared with the cluster before each step, and the scheduler itself holds the target (`wire.moves`). A plan
that was stopped can be applied again: steps whose pod is gone are done. Stopping at any moment leaves at most one hold,
which ends by itself. Steps of several pods (gangs) and cards in MIG mode are not made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from tessera.core.devices import MIG
from tessera.inspect.defragmentation import DefragmentationReport, PlannedMove
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.state import InspectionError, yaml_documents
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.resources import NODES
from tessera.wire import keys
from tessera.wire.moves import HeldCard, HoldState, MoveHold, decode_move_hold, encode_move_hold
from tessera.wire.objects import Node, Pod, Workload

POLL_S = 1.0
ANSWER_S = 30.0
"""for the scheduler to answer that it holds the target"""
RETRY_S = 5.0
"""before an eviction is tried again that a budget refused"""
TOO_MANY_REQUESTS = 429
GONE = frozenset({404, 409})
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


class Deviation(Exception):
    """The cluster is not as the plan has it, or does not become so in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOptions:
    interval_s: float = 0.0
    """between the end of a move and the next eviction"""
    step_timeout_s: float = 600.0
    """for one move; the target is held as long"""


def read_plan(text: str, *, file: str) -> DefragmentationReport:
    """What `tessera defrag plan -o json` or `-o yaml` printed. Raises InspectionError."""
    documents = yaml_documents(text, file)
    document = documents[0] if len(documents) == 1 and isinstance(documents[0], dict) else {}
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

    async def rehearse(self, moves: Sequence[PlannedMove]) -> list[MoveProgress]:
        """Compares each move with the cluster and asks the apiserver about each eviction. Changes nothing."""
        cluster = await self.look()
        found = [MoveProgress(move) for move in moves]
        for progress in found:
            move = progress.move
            try:
                if _is_done(cluster, move):
                    self._set(progress, MoveStage.MOVED, "it is gone already")
                    continue
                _check_source(cluster, move, moves)
                await self.client.evict(move.namespace, move.name, uid=move.uid, dry_run=True)
            except (Deviation, KubeError) as error:
                self._set(progress, MoveStage.STOPPED, str(error))
            else:
                self._set(progress, MoveStage.WAITING, f"would move to {move.target.text}")
        return found

    async def run(self, moves: Sequence[PlannedMove]) -> list[MoveProgress]:
        """Until all are made, or the cluster deviates."""
        found = [MoveProgress(move) for move in moves]
        for number, progress in enumerate(found):
            try:
                await self._make(progress, moves)
            except (Deviation, KubeError) as error:
                self._set(progress, MoveStage.STOPPED, str(error))
                break
            if number + 1 < len(found) and self.options.interval_s:
                await asyncio.sleep(self.options.interval_s)
        return found

    async def _make(self, progress: MoveProgress, moves: Sequence[PlannedMove]) -> None:
        move = progress.move
        cluster = await self.look()
        if _is_done(cluster, move):
            self._set(progress, MoveStage.MOVED, "it is gone already")
            return
        workload = _check_source(cluster, move, moves)
        deadline = asyncio.get_running_loop().time() + self.options.step_timeout_s
        siblings = {pod.metadata.uid for pod in cluster.pods.values()}
        try:
            await self._hold(_hold_of(cluster, move, workload, until=self.now() + self.options.step_timeout_s), move)
            self._set(progress, MoveStage.HELD)
            await self._evict(move, deadline)
            self._set(progress, MoveStage.EVICTED)
            await self._await_successor(move, workload, siblings, deadline)
        finally:
            await self._annotate(move, None)
        self._set(progress, MoveStage.MOVED)

    async def _hold(self, hold: MoveHold, move: PlannedMove) -> None:
        """Ask the scheduler, and wait for its answer."""
        await self._annotate(move, encode_move_hold(hold))
        clock = asyncio.get_running_loop().time
        deadline = clock() + ANSWER_S
        while clock() < deadline:
            node = await self.client.get(NODES.path(name=move.target.node), Node)
            text = node.annotations.get(keys.MOVE_PREFIX + move.uid)
            answer = decode_move_hold(text) if text is not None else hold
            if answer.state is HoldState.HELD:
                return
            if answer.state is HoldState.REFUSED:
                raise Deviation(f"the scheduler does not hold {move.target.text}: {answer.reason}")
            await asyncio.sleep(POLL_S)
        raise Deviation(f"the scheduler does not answer; is it running, and does it know node {move.target.node}?")

    async def _evict(self, move: PlannedMove, deadline: float) -> None:
        """Again and again while a disruption budget does not allow it."""
        clock = asyncio.get_running_loop().time
        while True:
            try:
                await self.client.evict(move.namespace, move.name, uid=move.uid)
            except ApiError as error:
                if error.status in GONE:
                    return
                if error.status != TOO_MANY_REQUESTS or clock() + RETRY_S > deadline:
                    raise Deviation("; ".join(error.causes) or error.message) from error
                await asyncio.sleep(max(RETRY_S, error.retry_after or 0.0))
            else:
                return

    async def _await_successor(
        self, move: PlannedMove, workload: Workload, siblings: Collection[str], deadline: float
    ) -> None:
        clock = asyncio.get_running_loop().time
        while clock() < deadline:
            cluster = await self.look()
            for pod in _pods_of(cluster, workload):
                if pod.metadata.uid in siblings or not pod.spec.node_name:
                    continue
                if pod.spec.node_name == move.target.node:
                    return
                raise Deviation(f"its successor {pod.metadata.name} went to {pod.spec.node_name}")
            await asyncio.sleep(POLL_S)
        raise Deviation(f"no pod of {move.controller} has come to {move.target.node} in time")

    async def _annotate(self, move: PlannedMove, text: str | None) -> None:
        body = {"metadata": {"annotations": {keys.MOVE_PREFIX + move.uid: text}}}
        await self.client.patch(NODES.path(name=move.target.node), body)

    def _set(self, progress: MoveProgress, stage: MoveStage, reason: str = "") -> None:
        progress.stage, progress.reason = stage, reason
        self.report(f"{progress.move.namespace}/{progress.move.name}: {reason or stage.value}")


def _pods_of(cluster: OfflineCluster, workload: Workload) -> Iterator[Pod]:
    return (pod for _, pod in sorted(cluster.pods.items()) if pod.workload == workload)


def _is_done(cluster: OfflineCluster, move: PlannedMove) -> bool:
    """Whether the pod itself is gone: another one of its name is its successor."""
    pod = cluster.pods.get(f"{move.namespace}/{move.name}")
    return pod is None or pod.metadata.uid != move.uid


def _check_source(cluster: OfflineCluster, move: PlannedMove, moves: Sequence[PlannedMove]) -> Workload:
    """The pod's workload. Raises Deviation if the move cannot be made as planned."""
    entry = cluster.ledger.pod(move.uid)
    if sum(other.step == move.step for other in moves) > 1:
        raise Deviation("it belongs to a gang: gangs are planned, but not moved yet")
    if entry is None or entry.facts.node != move.source.node or sorted(entry.holdings) != sorted(move.source.cards):
        raise Deviation(f"it does not hold {move.source.text} any more")
    workload = cluster.pods[f"{move.namespace}/{move.name}"].workload
    if not workload.kind:
        raise Deviation("nothing creates it again: it is a bare pod")
    devices = cluster.ledger.devices(move.target.node)
    if any(uuid not in devices or devices[uuid].mode == MIG for uuid in move.target.cards):
        raise Deviation(f"{move.target.text} is gone, or in MIG mode")
    return workload


def _hold_of(cluster: OfflineCluster, move: PlannedMove, workload: Workload, *, until: float) -> MoveHold:
    """What the pod holds now, on the cards of the target."""
    entry = cluster.ledger.pod(move.uid)
    assert entry is not None  # checked before
    held = sorted(entry.holdings.values(), key=lambda each: each.use, reverse=True)
    cards = tuple(
        HeldCard(uuid, each.vendor, each.use.slots, each.use.memory, each.use.cores)
        for uuid, each in zip(move.target.cards, held, strict=True)
    )
    return MoveHold(workload.namespace, workload.kind, workload.name, until, cards)
