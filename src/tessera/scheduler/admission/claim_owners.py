"""Whose the claims of a new pod are: Tessera's, if every device that they may get is one of its driver.

Pods whose claims are all ours go to Tessera. Pods that also claim devices of other drivers stay where they are, because
Tessera allocates none of those. A pod of ours with selectors that will never be evaluated is refused. Pure: what claims
ask for comes from `ClaimSources`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tessera.vendors.claims import ClaimSelectors, is_our_class, selector_fault
from tessera.wire.objects import PodClaim
from tessera.wire.resource_api import ClaimingPod, ClaimSpec, DeviceClass


class Owner(Enum):
    NONE = "none"
    """the pod has no claims"""
    OURS = "ours"
    OTHERS = "others"
    """all, or some of them"""
    UNKNOWN = "unknown"
    """what one of them asks for is not known"""


@dataclass(frozen=True, slots=True)
class ClaimOwner:
    owner: Owner = Owner.NONE
    text: str = ""
    """which claim is not ours, or not known, and why"""
    fault: str = ""
    """why a claim of ours will never be served"""


NO_CLAIMS = ClaimOwner()


class ClaimSources(Protocol):
    """What the API knows of claims."""

    def claim(self, namespace: str, name: str) -> ClaimSpec | None: ...

    def template(self, namespace: str, name: str) -> ClaimSpec | None: ...

    def device_class(self, name: str) -> DeviceClass | None: ...


def find_owner(pod: ClaimingPod, namespace: str, sources: ClaimSources) -> ClaimOwner:
    """Claims of others count more than unknown ones: the pod cannot be ours whatever these ask for."""
    claims = pod.spec.resource_claims or ()
    reading = ClaimSelectors()
    judged = [_judge(each, namespace, sources, reading) for each in claims]
    if not judged:
        return NO_CLAIMS
    for owner in (Owner.OTHERS, Owner.UNKNOWN):
        for each in judged:
            if each.owner is owner:
                return each
    return next((each for each in judged if each.fault), ClaimOwner(Owner.OURS))


def _judge(claim: PodClaim, namespace: str, sources: ClaimSources, reading: ClaimSelectors) -> ClaimOwner:
    if claim.resource_claim_name:
        what, spec = f"ResourceClaim {claim.resource_claim_name}", sources.claim(namespace, claim.resource_claim_name)
    else:
        name = claim.resource_claim_template_name or ""
        what, spec = f"ResourceClaimTemplate {name}", sources.template(namespace, name)
    if spec is None:
        return ClaimOwner(Owner.UNKNOWN, f"{what} does not exist")
    classes = {name: sources.device_class(name) for name in _classes(spec)}
    if not classes:
        return ClaimOwner(Owner.OTHERS, f"{what} asks for no device of a class")
    known = {name: found for name, found in classes.items() if found is not None}
    for name, found in known.items():
        if not is_our_class(found):
            return ClaimOwner(Owner.OTHERS, f"{what} asks for devices of class {name}, which are not Tessera's alone")
    for name in classes:
        if name not in known:
            return ClaimOwner(Owner.UNKNOWN, f"{what} asks for class {name}, which does not exist")
    fault = selector_fault(spec, known, reading)
    return ClaimOwner(Owner.OURS, fault=f"{what}: {fault}" if fault else "")


def _classes(spec: ClaimSpec) -> Iterator[str]:
    for request in spec.devices.requests or ():
        for each in ((request.exactly,) if request.exactly is not None else ()) + (request.first_available or ()):
            yield each.device_class_name
