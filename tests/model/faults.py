"""Faults of calls to the simulated apiserver: slow, refused, never sent, or lost before or after their effect."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum

from tessera.kube.errors import ApiError, KubeError, Unreachable

LATEST_EFFECT = 60.0
"""seconds after which an apiserver has given up any request"""


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of one call. Times are seconds."""

    before: float = 0.0
    """until it takes effect"""
    after: float = 0.0
    """from there to the response"""
    late: float = 0.0
    """how much later than the latest possible response the effect happens"""
    error: KubeError | None = None
    works: bool = True
    """whether it takes effect although it fails"""


@dataclass(frozen=True, slots=True)
class Storm:
    """The server refuses calls for a while."""

    until: float
    share: float
    """of the calls"""
    error: KubeError
    reads: bool | None
    """None: reads and writes"""


class Fault(Enum):
    """What can happen to a call."""

    NEVER_SENT = "never sent"
    LOST = "lost on the way there"
    UNHEARD = "lost on the way back"
    LATE = "no answer, and the effect comes afterwards"
    TOO_MANY = "refused for now"
    CONFLICT = "another client was faster"
    TIMED_OUT = "done, but the server says it took too long"
    SLOW = "done, after many seconds"
    UNWELL = "the server has a problem"


@dataclass
class Faults:
    """Draws a plan for every call."""

    rng: random.Random
    rate: float
    """share of calls that fail; 0 = none, and all are quick"""
    kinds: tuple[Fault, ...] = tuple(Fault)
    storm: Storm | None = None

    def plan(self, share: float = 1.0, *, now: float = 0.0, reads: bool = False) -> Plan:
        """`share`: how much less often than others a call fails."""
        rng, storm = self.rng, self.storm
        if self.rate == 0.0:
            return Plan()
        if storm is not None and now < storm.until and storm.reads in (None, reads) and rng.random() < storm.share:
            return Plan(self._pause(), error=storm.error, works=False)
        before, after = self._pause(), self._pause()
        if rng.random() >= self.rate * share:
            return Plan(before, after)
        match rng.choice(self.kinds):
            case Fault.NEVER_SENT:
                return Plan(before, error=Unreachable("connection refused", maybe_done=False), works=False)
            case Fault.LOST:
                return Plan(before, error=_no_answer(), works=False)
            case Fault.UNHEARD:
                return Plan(before, after, error=_no_answer())
            case Fault.LATE:
                return Plan(before, after, late=rng.uniform(0.0, LATEST_EFFECT), error=_no_answer())
            case Fault.TOO_MANY:
                wait = rng.choice((None, 1.0, 30.0))
                return Plan(before, error=ApiError(status=429, message="slow down", retry_after=wait), works=False)
            case Fault.CONFLICT:
                return Plan(before, error=ApiError(status=409, reason="Conflict", message="modified"), works=False)
            case Fault.TIMED_OUT:
                return Plan(before, after, error=ApiError(status=504, reason="Timeout", message="too slow"))
            case Fault.SLOW:
                return Plan(rng.uniform(1.0, 25.0), after)
            case Fault.UNWELL:
                return Plan(before, error=ApiError(status=500, message="etcd is unwell"), works=False)

    def _pause(self) -> float:
        return 0.0 if self.rng.random() < 0.5 else self.rng.expovariate(20.0)


def _no_answer() -> Unreachable:
    return Unreachable("no answer within 30 s", maybe_done=True)
