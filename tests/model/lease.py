"""The lease of the kube-schedulers in the model, and what each replica believes about it.

The holder renews it until its machine pauses or its kube-scheduler ends. A replica that was paused, or has not seen yet
that the lease was given away or stolen, believes in it for as long as the product would: never beyond `VALID_S` after a
renewal. The one that has it by theft waits for that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

DURATION_S = 15.0
"""after the last renewal another replica may take it"""
VALID_S = 10.0
"""after the last renewal the holder stops deciding"""


@dataclass
class ModelLease:
    """Names are those of replicas."""

    time: Callable[[], float]
    holder: str = ""
    number: int = 0
    """of acquisitions"""
    last_renewal: float | None = None
    """None while it is being renewed"""
    beliefs: dict[str, tuple[int, float]] = field(default_factory=dict)
    """replicas that have not seen a release: the number, and until when"""
    stolen_until: float = 0.0
    """until then the last holder may believe in it"""

    @property
    def is_free(self) -> bool:
        return not self.holder or (self.last_renewal is not None and self.time() >= self.last_renewal + DURATION_S)

    def tenure(self, name: str) -> int | None:
        """What the replica believes."""
        number, until = self.beliefs.get(name, (0, 0.0))
        if self.time() < until:
            return number
        is_valid = self.last_renewal is None or self.time() < self.last_renewal + VALID_S
        return self.number if self.holder == name and is_valid and self.time() >= self.stolen_until else None

    def acquire(self, name: str) -> None:
        self.holder, self.last_renewal = name, None
        self.number += 1
        self.beliefs.pop(name, None)

    def release(self, *, unseen_s: float) -> None:
        """The holder's kube-scheduler ends; its replica hears of it after a while."""
        if self.last_renewal is None:
            self.beliefs[self.holder] = (self.number, self.time() + min(unseen_s, VALID_S))
        self.holder, self.last_renewal = "", None

    def steal(self, name: str, *, unseen_s: float) -> None:
        """Another program writes a replica's name into it; the holder hears of it after a while."""
        if self.holder and self.last_renewal is None:
            self.stolen_until = self.time() + VALID_S
        self.release(unseen_s=unseen_s)
        self.acquire(name)

    def stop_renewing(self, since: float) -> None:
        if self.last_renewal is None:
            self.last_renewal = since

    def renew(self) -> None:
        """The holder is back: if it is still in time, and no other one has taken it."""
        if self.last_renewal is not None and self.time() < self.last_renewal + VALID_S:
            self.last_renewal = None
