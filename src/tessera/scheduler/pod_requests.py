"""From a pod of the API to the request that is placed, and what bind has to know about it.

Most pods have sisters that differ in name alone: everything that is read of a pod beside its name makes a key, and pods
of one key are prepared once. What the policy may look ahead to is not part of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

import msgspec

from tessera.core.requests import Constraint, PodRequest
from tessera.vendors.base import Vendor
from tessera.vendors.downward_api import enforcement_switches, read_references
from tessera.vendors.drafts import BadPod
from tessera.vendors.pod_reader import PodReader, PolicyDefaults
from tessera.wire.objects import Container, Pod

REMEMBERED = 1024
"""different pods; then all are read afresh"""

ADDED_LATER = "containers were added to the pod after Tessera's webhook; let the webhook run again"


class Prepared(msgspec.Struct, frozen=True):
    """A pod between filter and bind."""

    request: PodRequest
    uses_downward_api: bool
    """all its containers read their slices from the pod's own annotations"""
    disables_enforcement: bool = False
    """a container is to run without the enforcing library, so no other pod may get its Allocate response"""


class Preparing:
    """Prepares pods with the same vendors."""

    def __init__(self, vendors: Mapping[str, Vendor], defaults: PolicyDefaults) -> None:
        self._vendors = vendors
        self._switches = enforcement_switches(vendors)
        self._reader = PodReader(vendors, defaults)
        self._known: dict[Hashable, Prepared | BadPod] = {}

    def forget(self) -> None:
        """The vendors are others now."""
        self._switches = enforcement_switches(self._vendors)
        self._reader.forget()
        self._known.clear()

    def prepare(self, pod: Pod) -> Prepared | BadPod:
        """The pod's request as it will be placed, or what is wrong with it."""
        key = self._key(pod)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            known = self._known[key] = self._read(pod)
        if isinstance(known, BadPod):
            return known
        metadata = pod.metadata
        request = known.request.called(uid=metadata.uid, namespace=metadata.namespace, name=metadata.name)
        return Prepared(request, known.uses_downward_api, known.disables_enforcement)

    def _read(self, pod: Pod) -> Prepared | BadPod:
        request = self._reader.request(pod)
        if isinstance(request, BadPod):
            return request
        if not request.asks_for_devices:
            return Prepared(request, uses_downward_api=False)
        references = read_references(pod, self._vendors)
        if references.misplaced is not None:
            return BadPod(references.misplaced, ADDED_LATER)
        narrowed = _narrowed(request, self._vendors, has_references=references.has_any)
        if isinstance(narrowed, BadPod):
            return narrowed
        uses_downward_api = references.has_any and references.cover(request, self._vendors)
        return Prepared(narrowed, uses_downward_api, references.disables_enforcement)

    def _key(self, pod: Pod) -> Hashable:
        """All that `Preparing` reads of a pod, its name left out."""
        metadata, spec, switches = pod.metadata, pod.spec, self._switches
        return (
            tuple(metadata.annotations.items()) if metadata.annotations else (),
            tuple([_of_container(one, switches) for one in spec.init_containers]) if spec.init_containers else (),
            tuple([_of_container(one, switches) for one in spec.containers]) if spec.containers else (),
        )


def _narrowed(pod: PodRequest, vendors: Mapping[str, Vendor], *, has_references: bool) -> PodRequest | BadPod:
    """The same request, for cards only that its containers can use."""
    narrowed: dict[str, Constraint] = {}
    for key in pod.vendors:
        constraint = vendors[key].narrow(pod, has_references=has_references)
        if isinstance(constraint, BadPod):
            return constraint
        if constraint is not pod.constraint(key):
            narrowed[key] = constraint
    if not narrowed:
        return pod
    return replace(pod, constraints=tuple(sorted((dict(pod.constraints) | narrowed).items())))


def _of_container(container: Container, switches: frozenset[str]) -> Hashable:
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
