"""ResourceClaims on a simulated node: what kubelet asks the driver, and what containers get of it.

A claim is prepared for the first pod that uses it, and unprepared after the last one. A pod starts only if its claims
are allocated and reserved for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tessera.kube.client import KubeClient
from tessera.kube.resources import RESOURCE_CLAIMS
from tessera.wire.resource_api import ResourceClaim
from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.nodes.allocation import AllocateError
from tessera_lab.sandbox.objects import namespace_of, uid_of

Environments = Mapping[str, Mapping[str, str]]
"""variables by request"""


class ClaimKey(NamedTuple):
    namespace: str
    name: str
    uid: str


class ClaimDriver(Protocol):
    """What kubelet calls for ResourceClaims. Both calls may be repeated, and raise AllocateError."""

    async def prepare(self, claim: ClaimKey) -> Environments: ...

    async def unprepare(self, claim: ClaimKey) -> None: ...


@dataclass(frozen=True, slots=True)
class PreparedPodClaims:
    """What was prepared for a pod, by its own names of its claims."""

    claims: Mapping[str, Environments] = field(default_factory=dict)

    def environment(self, container: Json) -> dict[str, str]:
        """What the claims of a container add to it."""
        found: dict[str, str] = {}
        for each in (container.get("resources") or {}).get("claims") or ():
            requests = self.claims.get(each["name"], {})
            for name, variables in requests.items():
                if each.get("request") in (None, "", name):
                    found |= variables
        return found


class NodeClaims:
    """The claims of the pods on one node."""

    def __init__(self, client: KubeClient, driver: ClaimDriver | None) -> None:
        self._client = client
        self._driver = driver
        self._used: dict[str, list[ClaimKey]] = {}
        """by pod"""

    async def prepare(self, pod: Json) -> PreparedPodClaims:
        """Raises AllocateError or KubeError; then the call is to be repeated."""
        found: dict[str, Environments] = {}
        for own, name in _claims_of(pod).items():
            if self._driver is None:
                raise AllocateError("no driver for ResourceClaims is registered on the node")
            claim = await self._client.get(RESOURCE_CLAIMS.path(namespace_of(pod), name), ResourceClaim)
            if uid_of(pod) not in {each.uid for each in claim.status.reserved_for or ()}:
                raise AllocateError(f"ResourceClaim {name} is not reserved for the pod")
            key = ClaimKey(claim.metadata.namespace, name, claim.metadata.uid)
            used = self._used.setdefault(uid_of(pod), [])
            if key not in used:
                used.append(key)
            found[own] = await self._driver.prepare(key)
        return PreparedPodClaims(found)

    async def unprepare(self, uid: str) -> None:
        """The pod has ended. Claims that other pods of the node use stay prepared. Raises AllocateError; then the call
        is to be repeated."""
        for key in self._used.get(uid, ()):
            users = [user for user, claims in self._used.items() if key in claims]
            if self._driver is not None and users == [uid]:
                await self._driver.unprepare(key)
        self._used.pop(uid, None)


def _claims_of(pod: Json) -> dict[str, str]:
    """The names of its ResourceClaims, by its own names for them."""
    every = [*(pod["spec"].get("resourceClaims") or ()), *(pod.get("status", {}).get("resourceClaimStatuses") or ())]
    return {each["name"]: each["resourceClaimName"] for each in every if each.get("resourceClaimName")}
