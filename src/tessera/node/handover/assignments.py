"""The slices of containers on this node, and a pod as handover sees it: what they are to get, and how far it is.

Pure. A pod whose annotations cannot be read gets a `problem`, so that it never hides another pod. What this agent has
answered but not yet written to the API is in `allocation_state`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tessera.core.model.grants import Span
from tessera.vendors.nvidia import Nvidia
from tessera.vendors.nvidia.downward_api import DISABLE_CONTROL, VISIBLE
from tessera.vendors.pod_reader import container_spans
from tessera.wire import keys
from tessera.wire.errors import WireError
from tessera.wire.golang import INT64_MAX, parse_bool, parse_integer
from tessera.wire.objects import Container, EnvVar, Pod
from tessera.wire.pod_devices import (
    DeviceEntry,
    MigAllocation,
    decode_mig_allocations,
    decode_pod_devices,
    salvage_pod_devices,
)

ContainerKey = tuple[str, int]
"""the uid of a pod and the position of one of its containers"""

TO_ALLOCATE, ALLOCATED = Nvidia.keys.to_allocate, Nvidia.keys.allocated
ANY_TO_ALLOCATE = "-devices-to-allocate"
"""the end of every vendor's key of this kind"""

FAILED = "Failed"
TERMINAL = frozenset({"Succeeded", FAILED})
STARTED = frozenset({"Running", "Succeeded"})
"""kubelet starts no container of a pod before every one of them has its devices"""
SIDECAR = "Always"
"""restart policy of an init container that keeps running beside the others"""

Entries = tuple[tuple[DeviceEntry, ...], ...]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundPod:
    """A pod of this node that a scheduler of devices has touched."""

    key: ObjectKey
    order: tuple[int, int, str, str]
    """sort key: the order of binding"""
    status: str
    """the pod's own phase"""
    phase: str
    """of its handover"""
    assigned: bool
    """whether a scheduler gave it to this node"""
    ours: bool = True
    """False for a pod that gets devices of other vendors only"""
    containers: tuple[str, ...] = ()
    """names, init containers first"""
    spans: tuple[Span, ...] = ()
    """when they run, in the same order"""
    unlisted: frozenset[int] = frozenset()
    """positions that kubelet's PodResources API never shows: init containers that are not sidecars"""
    entries: Entries = ()
    """what is left to hand out, by position; never longer than the pod's containers"""
    left: tuple[Assignment, ...] = ()
    """the same, as assignments"""
    assignments: tuple[Assignment, ...] = ()
    """all that the pod was given, handed out or not"""
    others_left: bool = False
    """whether another vendor's plugin has something to hand out to this pod"""
    problem: str = ""
    """why nothing can be handed out to it"""
    assignments_problem: str = ""
    """why it cannot be known what it holds"""
    version: str = field(default="", compare=False)
    """of the API object that this was read from; most changes of that are none of this"""

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def started(self) -> bool:
        return self.status in STARTED

    @property
    def in_handover(self) -> bool:
        """Whether kubelet may ask for its devices: until then the scheduler binds no pod that could be taken for it."""
        is_over = self.phase != keys.PHASE_ALLOCATING or self.started or self.terminal
        return self.ours and self.assigned and not is_over

    @property
    def uses_downward_api(self) -> bool:
        """Whether every container reads its slices from the pod; otherwise the pod depends on Allocate."""
        return all(assignment.uses_downward_api for assignment in self.all_assignments())

    def all_assignments(self) -> list[Assignment]:
        """What its containers are to get or have got, in the order in which kubelet asks."""
        found = {assignment.position: assignment for assignment in (*self.assignments, *self.left)}
        return [found[position] for position in sorted(found)]

    def position(self, container: str) -> int | None:
        return self.containers.index(container) if container in self.containers else None

    def assignment(self, position: int) -> Assignment | None:
        """What a container is to get or has got."""
        return next((each for each in self.all_assignments() if each.position == position), None)


def read_pod(pod: Pod, node: str) -> BoundPod | None:
    """None for a pod that no scheduler of devices has touched."""
    annotations = pod.annotations
    if not annotations.keys() & {TO_ALLOCATE, ALLOCATED, keys.ASSIGNED_NODE}:
        return None
    key = ObjectKey(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)
    others = [text for name, text in annotations.items() if name.endswith(ANY_TO_ALLOCATE) and name != TO_ALLOCATE]
    containers = [*pod.init_containers, *pod.app_containers]
    text = annotations.get(TO_ALLOCATE)
    entries: Entries = ()
    left: tuple[Assignment, ...] = ()
    assignments: tuple[Assignment, ...] = ()
    problem = assignments_problem = ""
    try:
        if text is None:
            raise WireError("device request not found")
        entries, left = _decoded(key, text, containers, annotations)
    except WireError as error:
        problem = str(error)
    try:
        _, assignments = _decoded(key, annotations.get(ALLOCATED, text or ""), containers, annotations)
    except WireError as error:
        assignments_problem = str(error)
    return BoundPod(
        key=key,
        order=(
            _seconds(annotations.get(keys.BIND_TIME)),
            _seconds(annotations.get(keys.ASSIGNED_TIME)),
            key.namespace,
            key.name,
        ),
        status=pod.status.phase,
        phase=annotations.get(keys.BIND_PHASE, ""),
        assigned=annotations.get(keys.ASSIGNED_NODE) == node,
        ours=bool(annotations.keys() & {TO_ALLOCATE, ALLOCATED}) or not others,
        containers=tuple(each.name for each in containers),
        spans=container_spans(pod),
        unlisted=frozenset(at for at, each in enumerate(pod.init_containers) if each.restart_policy != SIDECAR),
        entries=entries,
        left=left,
        assignments=assignments,
        others_left=any(_has_something(each) for each in others),
        problem=problem,
        assignments_problem=assignments_problem,
        version=pod.metadata.resource_version,
    )


def _decoded(
    key: ObjectKey, text: str, containers: Sequence[Container], annotations: dict[str, str]
) -> tuple[Entries, tuple[Assignment, ...]]:
    decoded = decode_pod_devices(text)
    reserved = decode_mig_allocations(annotations.get(keys.MIG_ALLOCATIONS, ""))
    if any(decoded[len(containers) :]):
        raise WireError(f"container index {len(decoded) - 1} is beyond the pod's {len(containers)} containers")
    # HAMi's plugins append empty entries; they are dropped here.
    entries = tuple(tuple(each) for each in decoded[: len(containers)])
    assignments = tuple(
        _assignment(key, position, containers[position], slices, reserved)
        for position, slices in enumerate(entries)
        if slices
    )
    return entries, assignments


def _assignment(
    key: ObjectKey,
    position: int,
    container: Container,
    slices: tuple[DeviceEntry, ...],
    reserved: Sequence[MigAllocation],
) -> Assignment:
    mig = sorted((each for each in reserved if each.container == position), key=lambda each: each.device)
    if mig and [each.device for each in mig] != list(range(len(slices))):
        raise WireError(f"container {container.name} has {len(slices)} devices, but other MIG reservations")
    env = {entry.name: entry for entry in container.env or ()}
    uncontrolled = _is_true(env.get(DISABLE_CONTROL))
    return Assignment(
        pod=key,
        position=position,
        container=container.name,
        slices=slices,
        mig=tuple(mig),
        # Without the library the answer differs, so such a container depends on it.
        uses_downward_api=_reads_own_annotation(env.get(VISIBLE), position) and not uncontrolled,
        uncontrolled=uncontrolled,
    )


def _reads_own_annotation(entry: EnvVar | None, position: int) -> bool:
    return entry is not None and entry.field_path == f"metadata.annotations['{keys.visible_devices(position)}']"


def _is_true(entry: EnvVar | None) -> bool:
    return entry is not None and entry.value_from is None and parse_bool(entry.value) is True


def _has_something(text: str) -> bool:
    containers, problems = salvage_pod_devices(text)
    return bool(problems) or any(containers)


def _seconds(text: str | None) -> int:
    """Pods without a readable time come last."""
    value = parse_integer(text) if text is not None else None
    return INT64_MAX if value is None else value
