"""The pods of this node, reduced to what the monitor needs. The sink of a reflector.

A pod that cannot be decoded is still known to exist, so that nothing of it is removed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tessera.kube.errors import KubeError
from tessera.kube.reflector import UnreadableObjectError, log_error
from tessera.monitor.container_dirs import Owner
from tessera.vendors.nvidia import Nvidia
from tessera.wire.errors import WireError
from tessera.wire.keys import MIG_ALLOCATIONS
from tessera.wire.objects import Pod, Workload
from tessera.wire.pod_devices import decode_pod_devices

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
