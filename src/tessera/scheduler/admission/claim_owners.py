"""Whose the claims of a new pod are: Tessera's, if every device that they may get is one of its driver.

Pods whose claims are all ours go to Tessera. Pods that also claim devices of other drivers stay where they are, because
Tessera allocates none of those. Pure: what claims ask for comes from `ClaimSources`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tessera.wire.claim_spec import ClaimSpec
from tessera.wire.objects import PodClaim
from tessera.wire.resource_api import ClaimingPod


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


NO_CLAIMS = ClaimOwner()


class ClaimSources(Protocol):
    """What the API knows of claims."""

    def claim(self, namespace: str, name: str) -> ClaimSpec | None: ...

    def template(self, namespace: str, name: str) -> ClaimSpec | None: ...

    def serves_class(self, name: str) -> bool | None:
        """Whether all devices of a class are ours; None if there is no such class."""
        ...


def find_owner(pod: ClaimingPod, namespace: str, sources: ClaimSources) -> ClaimOwner:
    """Claims of others count more than unknown ones: the pod cannot be ours whatever these ask for."""
    claims = pod.spec.resource_claims or ()
    judged = [_judge(each, namespace, sources) for each in claims]
    if not judged:
        return NO_CLAIMS
    for owner in (Owner.OTHERS, Owner.UNKNOWN):
        for each in judged:
            if each.owner is owner:
                return each
    return ClaimOwner(Owner.OURS)


def _judge(claim: PodClaim, namespace: str, sources: ClaimSources) -> ClaimOwner:
    if claim.resource_claim_name:
        what, spec = f"ResourceClaim {claim.resource_claim_name}", sources.claim(namespace, claim.resource_claim_name)
    else:
        name = claim.resource_claim_template_name or ""
        what, spec = f"ResourceClaimTemplate {name}", sources.template(namespace, name)
    if spec is None:
        return ClaimOwner(Owner.UNKNOWN, f"{what} does not exist")
    classes = list(dict.fromkeys(_classes(spec)))
    if not classes:
        return ClaimOwner(Owner.OTHERS, f"{what} asks for no device of a class")
    for each in classes:
        if sources.serves_class(each) is False:
            return ClaimOwner(Owner.OTHERS, f"{what} asks for devices of class {each}, which are not Tessera's alone")
    missing = [each for each in classes if sources.serves_class(each) is None]
    if missing:
        return ClaimOwner(Owner.UNKNOWN, f"{what} asks for class {missing[0]}, which does not exist")
    return ClaimOwner(Owner.OURS)


def _classes(spec: ClaimSpec) -> Iterator[str]:
    for request in spec.devices.requests or ():
        for each in ((request.exactly,) if request.exactly is not None else ()) + (request.first_available or ()):
            yield each.device_class_name
