"""The pods of this node, reduced to what the monitor needs, and what they use through ResourceClaims.

A pod that cannot be decoded is still known to exist, so that nothing of it is removed. All containers that use one
request of a claim share one region, because its limits hold for them together; it is shown for the first of them. A pod
on a node keeps its claims, so each pod is looked up once, and only while there are directories of claims that no known
pod explains. What was found holds until the pod is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from tessera.host.writable_dirs import claim_dir_name
from tessera.kube.client import KubeClient
from tessera.kube.errors import KubeError
from tessera.kube.reflector import UnreadableObjectError, log_error
from tessera.kube.resources import PODS, RESOURCE_CLAIMS
from tessera.monitor.container_dirs import Owner
from tessera.vendors.nvidia import Nvidia
from tessera.wire.errors import WireError
from tessera.wire.keys import MIG_ALLOCATIONS
from tessera.wire.objects import Pod, Workload
from tessera.wire.pod_devices import decode_pod_devices
from tessera.wire.resource_api import DRIVER, ClaimingPod, ResourceClaim

Cards = frozenset[str]
"""uuids"""
UNKNOWN = Workload("")


@dataclass(frozen=True, slots=True)
class SeenPod:
    uid: str
    namespace: str
    name: str
    containers: tuple[str, ...]
    """init containers first, as allocations are numbered"""
    mig: str = ""
    """its MIG reservations, undecoded"""
    cards: tuple[Cards, ...] | None = None
    """of each container; empty if the annotation cannot be read, None if there is none"""
    workload: Workload = UNKNOWN
    has_claims: bool = False
    """whether it names ResourceClaims"""

    @property
    def owners(self) -> tuple[Owner, ...]:
        return tuple(Owner(self.uid, container) for container in self.containers)

    @property
    def granted(self) -> dict[Owner, Cards | None]:
        """The cards that each container was given; None if they are unknown."""
        if self.cards is None:
            return dict.fromkeys(self.owners)
        given = (*self.cards, *[Cards()] * len(self.containers))
        return dict(zip(self.owners, given, strict=False))


class Pods:
    """Used from the event loop only."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        """set once all pods are known"""
        self._pods: dict[str, SeenPod] = {}
        self._unreadable: set[str] = set()
        """uids; never forgotten, because the end of such a pod is not reported"""

    def put(self, key: str, pod: Pod) -> None:
        containers = (*(pod.spec.init_containers or ()), *(pod.spec.containers or ()))
        self._pods[key] = SeenPod(
            uid=pod.metadata.uid,
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            containers=tuple(each.name for each in containers),
            mig=pod.annotations.get(MIG_ALLOCATIONS, ""),
            cards=_cards(pod.annotations.get(Nvidia.keys.allocated)),
            workload=pod.workload,
            has_claims=bool(pod.spec.resource_claims),
        )

    def drop(self, key: str) -> None:
        self._pods.pop(key, None)

    def synced(self) -> None:
        self.ready.set()

    def on_error(self, error: KubeError) -> None:
        """Takes an error of the reflector."""
        if isinstance(error, UnreadableObjectError) and error.found.uid:
            self._unreadable.add(error.found.uid)
        log_error(error)

    def all(self) -> tuple[SeenPod, ...]:
        """Returns all pods in order of namespace and name."""
        return tuple(sorted(self._pods.values(), key=lambda pod: (pod.namespace, pod.name)))

    def uids(self) -> frozenset[str]:
        """Returns the uids of all pods that may exist."""
        return frozenset(pod.uid for pod in self._pods.values()) | self._unreadable


def _cards(text: str | None) -> tuple[Cards, ...] | None:
    if text is None:
        return None
    try:
        return tuple(Cards(entry.uuid for entry in container) for container in decode_pod_devices(text))
    except WireError:
        # The agent reports it.
        return ()


READ_S = 10.0
"""for one object"""

T = TypeVar("T")


class ClaimUser(NamedTuple):
    """A container that uses one request of a claim."""

    folder: str
    owner: Owner
    devices: frozenset[str]
    """names of the allocated ones: uuids of cards in lower case"""


class ClaimUsers:
    """Used from the event loop only."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._users: dict[str, tuple[ClaimUser, ...]] = {}
        """by uid of the pod"""

    async def look_up(self, pods: Sequence[SeenPod], folders: Collection[str]) -> str:
        """Finds out to which of the pods these directories belong. Returns why that is not complete, or nothing."""
        live = {pod.uid for pod in pods}
        self._users = {uid: users for uid, users in self._users.items() if uid in live}
        if self._by_folder().keys() >= set(folders):
            return ""
        problem = ""
        for pod in pods:
            if pod.has_claims and pod.uid not in self._users:
                try:
                    users = await self._read(pod)
                except (KubeError, TimeoutError) as error:
                    problem = f"claims of pod {pod.namespace}/{pod.name}: {str(error) or 'no answer'}"
                    continue
                if users is not None:
                    self._users[pod.uid] = users
        return problem

    def owners(self) -> dict[str, Owner]:
        """The owners of the directories, by name."""
        return {folder: user.owner for folder, user in self._by_folder().items()}

    def granted(self, pods: Iterable[SeenPod], cards: Collection[str]) -> dict[Owner, Cards | None]:
        """The cards that each container was given; None if they are unknown. `cards` are the uuids of the node's."""
        found = {owner: given for pod in pods for owner, given in pod.granted.items()}
        for user in self._by_folder().values():
            if user.owner in found:
                mine = Cards(uuid for uuid in cards if uuid.lower() in user.devices)
                # A driver that does not answer takes nothing away.
                found[user.owner] = mine if cards else None
        return found

    def _by_folder(self) -> dict[str, ClaimUser]:
        """The first user of each directory."""
        found: dict[str, ClaimUser] = {}
        for users in self._users.values():
            for user in users:
                found.setdefault(user.folder, user)
        return found

    async def _read(self, pod: SeenPod) -> tuple[ClaimUser, ...] | None:
        """None if it cannot be said yet. Raises KubeError or TimeoutError."""
        found = await self._find(PODS.path(pod.namespace, pod.name), ClaimingPod)
        if found is None or found.metadata.uid != pod.uid:
            return None
        claims: dict[str, ResourceClaim] = {}
        for name in found.claim_names.values():
            claim = await self._find(RESOURCE_CLAIMS.path(pod.namespace, name), ResourceClaim)
            if claim is None or pod.uid not in {each.uid for each in claim.status.reserved_for or ()}:
                return None
            claims[name] = claim
        return tuple(claim_users(found, claims))

    async def _find(self, path: str, kind: type[T]) -> T | None:
        async with asyncio.timeout(READ_S):
            return await self._client.find(path, kind)


def claim_users(pod: ClaimingPod, claims: Mapping[str, ResourceClaim]) -> Iterable[ClaimUser]:
    """The containers of a pod that use devices of ours, and what for; `claims` are its claims by name."""
    names = pod.claim_names
    for container in pod.all_containers:
        owner = Owner(pod.metadata.uid, container.name)
        for used in container.resources.claims or ():
            claim = claims.get(names.get(used.name, ""))
            devices: dict[str, set[str]] = {}
            for each in () if claim is None else claim.devices_of(DRIVER):
                devices.setdefault(each.request_name, set()).add(each.device)
            for request in filter(used.names, devices):
                if claim is not None:
                    yield ClaimUser(claim_dir_name(claim.metadata.uid, request), owner, frozenset(devices[request]))
