"""The slices that one container of a pod on this node is to get, and what a pod or ResourceClaim has of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tessera.core.model.grants import Span
from tessera.wire.mig import MigAllocation
from tessera.wire.pod_devices import DeviceEntry

ContainerKey = tuple[str, int]
"""the uid of a pod and the position of one of its containers"""


class ObjectKey(NamedTuple):
    """One pod or ResourceClaim; a later one of the same name has another uid."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Assignment:
    """The slices of one container."""

    pod: ObjectKey
    position: int
    """of the container in its pod, init containers first"""
    container: str
    slices: tuple[DeviceEntry, ...]
    """never empty"""
    mig: tuple[MigAllocation, ...] = ()
    """reservations in order of devices, one for every slice or none"""
    uses_downward_api: bool = False
    """whether the container reads its slices from its own pod's annotations, whatever Allocate answers"""
    uncontrolled: bool = False
    """whether the container asked for no enforcing library (CUDA_DISABLE_CONTROL)"""
    of_resource_claim: bool = False
    """whether `pod` names a ResourceClaim, and `container` one of its requests, which any container may use"""

    @property
    def key(self) -> ContainerKey:
        return self.pod.uid, self.position

    @property
    def what(self) -> tuple[object, ...]:
        """Everything that the answer to Allocate depends on, apart from whose it is."""
        return self.slices, tuple(each.slot for each in self.mig), self.uncontrolled


@dataclass(frozen=True, slots=True)
class Holding:
    """The slices of one pod or ResourceClaim."""

    key: ObjectKey
    assignments: tuple[Assignment, ...]
    spans: tuple[Span, ...] = ()
    """when the containers run; none if all run at once"""
    assumed: frozenset[int] = frozenset()
    """positions that count although no record shows that they were handed out"""
    problem: str = ""
    """why it is unknown what it holds"""
