"""How calls to the simulated apiserver go wrong: slow, refused, never sent, or lost before or after their effect."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tessera.kube.errors import ApiError, KubeError, Unreachable

LATEST_EFFECT = 60.0
"""seconds after which an apiserver has given up whatever it was asked"""


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of one call. Times are seconds."""

    before: float = 0.0
    """until it takes effect"""
    after: float = 0.0
    """from there to the answer"""
    late: float = 0.0
    """how much later than the answer could have come the effect happens"""
    error: KubeError | None = None
    works: bool = True
    """whether it takes effect although it fails"""


@dataclass
class Faults:
    """Draws a plan for every call."""

    rng: random.Random
    rate: float
    """share of calls that go wrong; 0 = none, and all are quick"""

    def plan(self, verb: str) -> Plan:
        rng = self.rng
        if self.rate == 0.0:
            return Plan()
        before, after = self._pause(), self._pause()
        if rng.random() >= self.rate:
            return Plan(before, after)
        kind = rng.randrange(9)
        if kind == 0:
            return Plan(before, error=Unreachable("connection refused", maybe_done=False), works=False)
        if kind == 1:
            return Plan(before, error=Unreachable("no answer within 30 s", maybe_done=True), works=False)
        if kind == 2:
            return Plan(before, after, error=Unreachable("no answer within 30 s", maybe_done=True))
        if kind == 3:
            late = rng.uniform(0.0, LATEST_EFFECT)
            return Plan(before, after, late=late, error=Unreachable("no answer within 30 s", maybe_done=True))
        if kind == 4:
            wait = rng.choice((None, 1.0, 30.0))
            return Plan(before, error=ApiError(status=429, message="slow down", retry_after=wait), works=False)
        if kind == 5:
            return Plan(before, error=ApiError(status=409, reason="Conflict", message="modified"), works=False)
        if kind == 6:
            return Plan(before, after, error=ApiError(status=504, reason="Timeout", message="too slow"))
        if kind == 7:
            return Plan(rng.uniform(1.0, 25.0), after)
        status = rng.choice((500, 500, 503))
        return Plan(before, error=ApiError(status=status, message="etcd is unwell"), works=False)

    def _pause(self) -> float:
        return 0.0 if self.rng.random() < 0.5 else self.rng.expovariate(20.0)
