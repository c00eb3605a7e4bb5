"""What an adversary does to the model: storms of refusals, controllers that put back what is evicted, and pods of one
claim that end at the same moment.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from tessera.kube.decoder import MAX_RETRY_AFTER_S
from tessera.kube.errors import ApiError
from tests.model.apiserver import SimulatedApiserver
from tests.model.faults import Faults, Storm
from tests.model.tenants import PODS, Tenants

STATUSES = (410, 429, 429, 500, 503)
RETRY_AFTER = (None, 0.0, 1.0, 30.0, MAX_RETRY_AFTER_S)
"""seconds; the client cuts off what is absurd"""
LONGEST_STORM = 120.0
"""seconds"""


@dataclass
class Adversary:
    """Methods without arguments are events. They return a description, or None if nothing could happen."""

    api: SimulatedApiserver
    faults: Faults
    tenants: Tenants
    rng: random.Random
    time: Callable[[], float]
    _replaced: int = 0
    """evicted pods that have a successor"""

    def storm(self) -> str | None:
        """For a while the apiserver refuses reads, writes, or all of them."""
        status, wait = self.rng.choice(STATUSES), self.rng.choice(RETRY_AFTER)
        reads, share = self.rng.choice((None, True, False)), self.rng.choice((0.5, 0.9, 1.0))
        seconds = self.rng.uniform(0.0, LONGEST_STORM)
        error = ApiError(status=status, message="a storm", retry_after=wait)
        self.faults.storm = Storm(self.time() + seconds, share, error, reads)
        return f"{status} with {wait} to {share:.0%} of {'calls' if reads is None else 'reads' if reads else 'writes'}"

    def replace_evicted(self) -> str | None:
        """A controller makes a new pod for one that was evicted, while that one may still be leaving."""
        if len(self.api.pods.objects) >= PODS or self._replaced >= len(self.api.evicted):
            return None
        evicted = self.api.evicted[self._replaced]
        self._replaced += 1
        name = f"again{self._replaced}"
        template = self.api.templates[evicted.metadata.uid]
        self.api.create_pod(template, namespace=evicted.metadata.namespace, name=name)
        return f"{name} for {evicted.metadata.uid}"

    def settle(self) -> bool:
        """Put back all that was evicted; whether anything was."""
        busy = False
        while self.replace_evicted() is not None:
            busy = True
        return busy

    def end_sharers(self) -> str | None:
        """All pods that use one claim end at the same moment, each in its own way."""
        shared = [claim for claim in self.api.claims.objects.values() if len(claim.status.reserved_for or ()) > 1]
        if not shared:
            return None
        claim = self.rng.choice(shared)
        uids = {each.uid for each in claim.status.reserved_for or ()}
        users = [(key, pod) for key, pod in self.api.pods.objects.items() if pod.metadata.uid in uids]
        self.rng.shuffle(users)
        for key, pod in users:
            match self.rng.choice(("ends", "ends", "goes", "terminates")):
                case "ends" if pod.spec.node_name:
                    phase = self.rng.choice(("Succeeded", "Failed"))
                    self.api.mark_pod(key, {}, replace(pod.status, phase=phase))
                case "goes":
                    self.tenants.remove(key)
                case _:
                    self.api.delete_pod(key, at_once=False)
        return f"{claim.metadata.name}: {sorted(uids)}"

    def end_everything(self) -> None:
        """All pods go, at once or by and by, and no new ones are made."""
        self._replaced = len(self.api.evicted)
        for key, pod in list(self.api.pods.objects.items()):
            if self.rng.random() < 0.5:
                self.tenants.remove(key)
            elif not pod.metadata.deletion_timestamp:
                self.api.delete_pod(key, at_once=False)
