"""Whose the claims of a new pod are: Tessera's, if every device that they may get is one of its driver.

Pods whose claims are all ours go to Tessera. Pods that also claim devices of other drivers stay where they are, because
Tessera allocates none of those. A pod of ours with selectors that will never be evaluated is refused. What claims ask
for comes from the informers, and from the API what they do not show yet: a pod, its template and its class are often
created together. Nothing is remembered here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar

import msgspec
import structlog

from tessera.kube.client import KubeClient
from tessera.kube.errors import BadName, KubeError, is_not_found
from tessera.kube.resources import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from tessera.scheduler.admission.claim_templates import ClaimTemplates
from tessera.scheduler.features.claims.book import ClaimBook
from tessera.vendors.claims.asks import ClaimSelectors, is_our_class, selector_fault
from tessera.wire.admission import Review
from tessera.wire.objects import PodClaim
from tessera.wire.resource_api import ClaimingPod, ClaimSpec, DeviceClass, ResourceClaim, ResourceClaimTemplate


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


log = structlog.get_logger(__name__)

READ_S = 3.0
"""for all objects of a pod, while the apiserver waits for the webhook"""
MAX_READS = 8
"""objects of one pod that are read from the API"""

T = TypeVar("T")


class ClaimLookup:
    """What the webhook asks about claims."""

    def __init__(self, client: KubeClient, book: ClaimBook, templates: ClaimTemplates) -> None:
        self._client = client
        self._book = book
        self.templates = templates

    async def find_owner(self, asked: Review) -> ClaimOwner:
        """Whose the claims of the pod are."""
        try:
            pod = msgspec.json.decode(asked.object, type=ClaimingPod) if asked.object else ClaimingPod()
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            # Not a pod: the webhook says so.
            return NO_CLAIMS
        known = _Sources(self._book, self.templates)
        owner = find_owner(pod, asked.namespace, known)
        for _ in range(MAX_READS):
            missing = known.missing
            if owner.owner is not Owner.UNKNOWN or missing is None:
                break
            await self._read(known, missing)
            owner = find_owner(pod, asked.namespace, known)
        return owner

    async def _read(self, known: _Sources, missing: tuple[str, str, str]) -> None:
        kind, namespace, name = missing
        known.missing, known.read[missing] = None, None
        try:
            async with asyncio.timeout(READ_S):
                match kind:
                    case "class":
                        known.read[missing] = await self._client.get(DEVICE_CLASSES.path(name=name), DeviceClass)
                    case "claim":
                        claim = await self._client.get(RESOURCE_CLAIMS.path(namespace, name), ResourceClaim)
                        known.read[missing] = claim.spec
                    case _:
                        path = RESOURCE_CLAIM_TEMPLATES.path(namespace, name)
                        known.read[missing] = (await self._client.get(path, ResourceClaimTemplate)).spec.spec
        except (KubeError, BadName, TimeoutError) as error:
            if not is_not_found(error):
                log.warning("a claim of a new pod cannot be read", kind=kind, name=name, error=str(error) or "timeout")


class _Sources:
    """Informers first, then what was read for this pod."""

    def __init__(self, book: ClaimBook, templates: ClaimTemplates) -> None:
        self._book = book
        self._templates = templates
        self.read: dict[tuple[str, str, str], ClaimSpec | DeviceClass | None] = {}
        """by kind, namespace and name; None where there is no such object"""
        self.missing: tuple[str, str, str] | None = None
        """the last one that is not known and was not read"""

    def claim(self, namespace: str, name: str) -> ClaimSpec | None:
        record = self._book.get(f"{namespace}/{name}")
        return record.claim.spec if record is not None else self._other("claim", namespace, name, ClaimSpec)

    def template(self, namespace: str, name: str) -> ClaimSpec | None:
        return self._templates.get(namespace, name) or self._other("template", namespace, name, ClaimSpec)

    def device_class(self, name: str) -> DeviceClass | None:
        return self._book.classes.get(name) or self._other("class", "", name, DeviceClass)

    def _other(self, kind: str, namespace: str, name: str, expected: type[T]) -> T | None:
        key = kind, namespace, name
        if key not in self.read:
            self.missing = key
            return None
        found = self.read[key]
        return found if isinstance(found, expected) else None
