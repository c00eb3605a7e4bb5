"""Moves: pods that defragmentation evicts find the places that are held for their successors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from tessera.core.relocation import take_moved
from tessera.core.requests import PodRequest
from tessera.scheduler.features.moves.holds import MoveHolds
from tessera.scheduler.framework import Attempt, Feature, Pipeline, Place
from tessera.wire.objects import Node


class Moves(Feature):
    """All places that are held for moves."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self._ledger, self._unschedulable = pipeline.cycles.ledger, pipeline.cycles.unschedulable
        self._holds = MoveHolds(
            pipeline.cycles,
            pipeline.api,
            spawn=pipeline.spawn,
            is_ready=lambda: not pipeline.missing(),
            make_way=pipeline.make_way,
        )

    def on_node(self, node: Node) -> None:
        self._holds.put_node(node)

    def on_node_gone(self, name: str) -> None:
        self._holds.drop_node(name)

    def concerns(self, attempt: Attempt) -> bool:
        return self._ledger.holds.has_moves

    def place(self, attempt: Attempt) -> Place | None:
        found = take_moved(self._ledger, attempt.request, attempt.pod.workload, attempt.candidates)
        return None if found is None else Place(*found)

    def recover(self) -> None:
        self._holds.recover()

    def tick(self) -> None:
        self._holds.tick()

    async def wake(self) -> AsyncIterator[Sequence[PodRequest]]:
        """Pods for which others were moved away, each once until it is refused again."""
        for holder in self._ledger.holds.of_moves():
            pod = self._unschedulable.get(str(holder.meant_for))
            if pod is not None and not pod.is_woken and self._ledger.is_free(holder):
                pod.is_woken = True
                yield [pod.request]

    def end_term(self) -> None:
        self._holds.end_term()
