"""From a pod of the API to the request that filter places.

Most pods have siblings that differ in name alone. Everything that is read of a pod besides its name makes a key, and
pods with the same key are read once. What a policy may look ahead to is not part of the key.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import msgspec

from tessera.core import policies
from tessera.core.model.grants import Placement
from tessera.core.model.requests import MAX_ANNOTATION, MAX_REQUESTS, Constraint, PodRequest
from tessera.scheduler.requests.demand_tracker import DemandTracker
from tessera.scheduler.requests.host_resources import host_ask
from tessera.scheduler.requests.pod_claims import PodClaims
from tessera.vendors.base import Vendor
from tessera.vendors.downward_api import enforcement_switches, read_references
from tessera.vendors.drafts import BadPod
from tessera.vendors.pod_reader import PodReader, PolicyDefaults
from tessera.wire import keys
from tessera.wire.objects import Container, Pod
from tessera.wire.pod_groups import GROUP_KEYS, BadPodGroup, PodGroup, read_pod_group

REMEMBERED = 1024
"""different pods; then all are read afresh"""

MAX_REMEMBERED = 512
"""variables and amounts of all containers; a larger pod is read every time, so that no pod fills the memory"""

NOT_READ = GROUP_KEYS | {keys.RETRY}
"""annotations that say nothing about what a pod asks for. A gang's name must not make its pods differ from others: what
is read of each would be an object of its own, and the collector looks at all of them"""

NEVER_PREEMPTS = "Never"
"""preemptionPolicy of a PriorityClass"""

ADDED_LATER = "containers were added to the pod after Tessera's webhook; let the webhook run again"


class PodJoin(Protocol):
    """What a feature adds to the requests of pods."""

    def __call__(self, pod: Pod, prepared: PreparedRequest, /) -> PreparedRequest | BadPod:
        """The request with it, or why the pod cannot be placed now."""
        ...


class PreparedRequest(msgspec.Struct, frozen=True):
    """A pod's request as filter places it, and what bind has to know beside it."""

    request: PodRequest
    uses_downward_api: bool
    """all its containers read their slices from the pod's own annotations, so Allocate's response does not matter"""
    version: str = ""
    """of the pod that was read; a Binding is valid for this one only"""
    fence: str = ""
    """of the pod that was read"""
    claims: PodClaims | None = None
    """None if the pod has none, or if they are left to another scheduler"""
    group: PodGroup | BadPodGroup | None = None
    """its gang"""

    @property
    def needs_placement(self) -> bool:
        """Whether filter has a say: the pod asks for devices, or has claims that may be allocated already."""
        return self.claims is not None or self.request.asks_for_devices

    @property
    def variants(self) -> tuple[PodRequest, ...]:
        """The request, or all alternatives of it, the preferred ones first."""
        return (self.request,) if self.claims is None else self.claims.variants

    @property
    def claim_uids(self) -> tuple[str, ...]:
        return () if self.claims is None else self.claims.uids

    @property
    def shared_claim(self) -> str:
        """Key of a claim that is not allocated, and that other pods may use too; empty if there is none."""
        return "" if self.claims is None else self.claims.shared

    @property
    def classic(self) -> PodRequest:
        """The request without the claims."""
        return self.request if self.claims is None else self.claims.classic

    def classic_part(self, placement: Placement) -> Placement:
        """The part of a placement that is the pod's own, and not of its claims."""
        return placement if self.claims is None else self.claims.classic_part(placement)

    def asks_the_same(self, other: PreparedRequest) -> bool:
        """Whether what was found for one may be given to the other."""
        return (self.classic.demand, self.uses_downward_api, self.claim_uids) == (
            other.classic.demand,
            other.uses_downward_api,
            other.claim_uids,
        )


class RequestReader:
    """Reads pods with the same vendors."""

    def __init__(self, vendors: Mapping[str, Vendor], defaults: PolicyDefaults, demand: DemandTracker) -> None:
        self.vendors = vendors
        self.joins: Sequence[PodJoin] = ()
        self._demand = demand
        self._switches = enforcement_switches(vendors)
        self._reader = PodReader(vendors, defaults)
        self._known: dict[Hashable, PreparedRequest | BadPod] = {}

    def forget(self) -> None:
        """The vendors have changed."""
        self._switches = enforcement_switches(self.vendors)
        self._reader.forget()
        self._known.clear()

    def read(self, pod: Pod, *, with_claims: bool = True) -> PreparedRequest | BadPod:
        """The pod's request as it will be placed, or what is wrong with it."""
        known = self._known.get(key) if (key := self._key(pod)) is not None else self._read(pod)
        if known is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            known = self._known[key] = self._read(pod)
        if isinstance(known, BadPod):
            return known
        metadata, group = pod.metadata, read_pod_group(pod)
        request = known.request.called(
            uid=metadata.uid,
            namespace=metadata.namespace,
            name=metadata.name,
            preempts_below=None if pod.spec.preemption_policy == NEVER_PREEMPTS else pod.spec.priority or 0,
            priority=pod.spec.priority or 0,
            group=f"{metadata.namespace}/{group.name}" if group is not None and group.name else "",
        )
        has_claims = with_claims and bool(pod.spec.resource_claims)
        asks = request.asks_for_devices or has_claims
        if asks and policies.uses_forecast(request.node_policy, request.device_policy):
            request = replace(request, host=host_ask(pod), forecast=self._demand.forecast())
        fence = (metadata.annotations or {}).get(keys.FENCE) or (metadata.labels or {}).get(keys.FENCE, "")
        prepared = PreparedRequest(request, known.uses_downward_api, metadata.resource_version, fence, group=group)
        for join in self.joins if has_claims else ():
            joined = join(pod, prepared)
            if isinstance(joined, BadPod):
                return joined
            prepared = joined
        return prepared

    def _read(self, pod: Pod) -> PreparedRequest | BadPod:
        request = self._reader.request(pod)
        if isinstance(request, BadPod):
            return request
        if not request.asks_for_devices:
            return PreparedRequest(request, uses_downward_api=False)
        references = read_references(pod, self.vendors)
        if references.misplaced is not None:
            return BadPod(references.misplaced, ADDED_LATER)
        narrowed = _narrowed(request, self.vendors)
        if isinstance(narrowed, BadPod):
            return narrowed
        uses_downward_api = references.has_any and references.cover(request, self.vendors)
        return PreparedRequest(narrowed, uses_downward_api)

    def _key(self, pod: Pod) -> Hashable | None:
        """All that is read of a pod, without its name. None if the pod is too large to be remembered."""
        metadata, spec, switches = pod.metadata, pod.spec, self._switches
        if not _is_small(pod):
            return None
        return (
            tuple([item for item in metadata.annotations.items() if item[0] not in NOT_READ])
            if metadata.annotations
            else (),
            tuple([_container_key(one, switches) for one in spec.init_containers]) if spec.init_containers else (),
            tuple([_container_key(one, switches) for one in spec.containers]) if spec.containers else (),
        )


def _is_small(pod: Pod) -> bool:
    annotations, spec = pod.metadata.annotations or {}, pod.spec
    containers = (*(spec.init_containers or ()), *(spec.containers or ()))
    return (
        len(containers) <= MAX_REQUESTS
        and sum(map(len, annotations.values())) <= MAX_ANNOTATION
        and sum(map(_entries, containers)) <= MAX_REMEMBERED
    )


def _entries(container: Container) -> int:
    resources = container.resources
    return len(container.env or ()) + len(resources.limits or ()) + len(resources.requests or ())


def _narrowed(pod: PodRequest, vendors: Mapping[str, Vendor]) -> PodRequest | BadPod:
    """The same request, for cards only that its containers can use."""
    narrowed: dict[str, Constraint] = {}
    for key in pod.vendors:
        constraint = vendors[key].narrow(pod)
        if isinstance(constraint, BadPod):
            return constraint
        if constraint is not pod.constraint(key):
            narrowed[key] = constraint
    if not narrowed:
        return pod
    return replace(pod, constraints=tuple(sorted((dict(pod.constraints) | narrowed).items())))


def _container_key(container: Container, switches: frozenset[str]) -> Hashable:
    resources = container.resources
    return (
        container.name,
        container.restart_policy,
        tuple(resources.limits.items()) if resources.limits else (),
        tuple(resources.requests.items()) if resources.requests else (),
        tuple(
            [
                (one.name, one.value_from, one.value if one.name in switches else not one.value)
                for one in container.env or ()
            ]
        ),
    )
