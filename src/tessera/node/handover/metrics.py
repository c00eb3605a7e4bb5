"""Figures of handover, in a registry that is passed in; nothing is global."""

from __future__ import annotations

from enum import Enum

from prometheus_client import CollectorRegistry, Counter


class Result(Enum):
    """How an Allocate ended, for one container; the value is the metric's label."""

    HANDED_OVER = "handed_over"
    UNCERTAIN = "uncertain"
    """the slice of a container that depends on it, though another may have asked"""
    WELCOMED = "welcomed"
    """the container carries its slice"""
    AMBIGUOUS = "ambiguous"
    NOBODY = "nobody"
    REFUSED = "refused"


class Repair(Enum):
    """What the janitor put right; the value is the metric's label."""

    HANDOVER = "handover"
    LOCK = "lock"


class HandoverMetrics:
    """Counters of one agent."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._allocations = Counter(
            "tessera_agent_allocations", "Containers that kubelet asked devices for", ["result"], registry=registry
        )
        self._mismatches = Counter(
            "tessera_agent_slice_mismatches", "Containers that hold something else than was meant", registry=registry
        )
        self._swaps = Counter(
            "tessera_agent_slice_swaps", "Containers that took the equal slice of another", registry=registry
        )
        self._repairs = Counter(
            "tessera_agent_repairs", "What was left behind and put right", ["what"], registry=registry
        )
        for result in Result:
            self._allocations.labels(result.value)
        for repair in Repair:
            self._repairs.labels(repair.value)

    def allocated(self, result: Result) -> None:
        self._allocations.labels(result.value).inc()

    def mismatched(self) -> None:
        self._mismatches.inc()

    def swapped(self) -> None:
        self._swaps.inc()

    def repaired(self, repair: Repair) -> None:
        self._repairs.labels(repair.value).inc()
