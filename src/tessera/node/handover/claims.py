"""What a container of a pod on this node is to get, as its pod's annotations say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tessera.wire.mig import MigAllocation
from tessera.wire.pod_devices import DeviceEntry


class PodKey(NamedTuple):
    """One pod; a later one of the same name has another uid."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Claim:
    """The slices of one container. Two claims with equal `what` may be exchanged and nobody would notice."""

    pod: PodKey
    position: int
    """of the container in its pod, init containers first"""
    container: str
    slices: tuple[DeviceEntry, ...]
    """never empty"""
    mig: tuple[MigAllocation, ...] = ()
    """reservations in order of devices, one for every slice or none"""
    carried: bool = False
    """whether the container finds its slices in its own pod's annotations, whatever Allocate answers"""
    uncontrolled: bool = False
    """whether the container asked for no enforcing library (CUDA_DISABLE_CONTROL)"""

    @property
    def what(self) -> tuple[object, ...]:
        """Everything that the answer of Allocate depends on."""
        return self.slices, tuple(each.slot for each in self.mig), self.uncontrolled
