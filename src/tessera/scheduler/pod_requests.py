"""From a pod of the API to the request that is placed, and what bind has to know about it.

Most pods have sisters that differ in name alone: everything that is read of a pod beside its name makes a key, and pods
of one key are prepared once. What the policy may look ahead to is not part of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import msgspec

from tessera.core.requests import PodRequest
from tessera.scheduler.admission.identity import DISABLE_CONTROL, identity_of
from tessera.scheduler.card_modes import with_modes
from tessera.vendors.base import Vendor
from tessera.vendors.pod_reader import BadPod, PodReader, PolicyDefaults
from tessera.wire.objects import Container, Pod

REMEMBERED = 1024
"""different pods; then all are read afresh"""

ADDED_LATER = "containers were added to the pod after Tessera's webhook; let the webhook run again"


class Prepared(msgspec.Struct, frozen=True):
    """A pod between filter and bind."""

    request: PodRequest
    carries_identity: bool
    """its containers take their slices from the pod's own annotations"""
    uncontrolled: bool = False
    """a container is to be left without the enforcing library, so that no other pod may get its answer"""


class Preparing:
    """Prepares pods with the same vendors."""

    def __init__(self, vendors: Mapping[str, Vendor], defaults: PolicyDefaults) -> None:
        self._reader = PodReader(vendors, defaults)
        self._known: dict[Hashable, Prepared | BadPod] = {}

    def forget(self) -> None:
        """The vendors are others now."""
        self._reader.forget()
        self._known.clear()

    def prepare(self, pod: Pod) -> Prepared | BadPod:
        """The pod's request as it will be placed, or what is wrong with it."""
        key = _key(pod)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            known = self._known[key] = self._read(pod)
        if isinstance(known, BadPod):
            return known
        metadata = pod.metadata
        request = known.request.called(uid=metadata.uid, namespace=metadata.namespace, name=metadata.name)
        return Prepared(request, known.carries_identity, known.uncontrolled)

    def _read(self, pod: Pod) -> Prepared | BadPod:
        request = self._reader.request(pod)
        if isinstance(request, BadPod):
            return request
        if not request.asks_for_devices:
            return Prepared(request, carries_identity=False)
        identity = identity_of(pod)
        if identity.misplaced is not None:
            return BadPod(identity.misplaced, ADDED_LATER)
        narrowed = with_modes(request, by_reference=identity.refers)
        if isinstance(narrowed, BadPod):
            return narrowed
        return Prepared(narrowed, identity.refers and identity.carries(request), identity.uncontrolled)


def _key(pod: Pod) -> Hashable:
    """All that `Preparing` reads of a pod, its name left out."""
    metadata, spec = pod.metadata, pod.spec
    return (
        tuple(metadata.annotations.items()) if metadata.annotations else (),
        tuple([_of_container(one) for one in spec.init_containers]) if spec.init_containers else (),
        tuple([_of_container(one) for one in spec.containers]) if spec.containers else (),
    )


def _of_container(container: Container) -> Hashable:
    resources = container.resources
    return (
        container.name,
        container.restart_policy,
        tuple(resources.limits.items()) if resources.limits else (),
        tuple(resources.requests.items()) if resources.requests else (),
        tuple(
            [
                (one.name, one.value_from, one.value if one.name == DISABLE_CONTROL else not one.value)
                for one in container.env or ()
            ]
        ),
    )
