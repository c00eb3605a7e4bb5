"""This node's pods as a watch shows them: the sink of a reflector, reduced to what the monitor needs of them.

A pod that cannot be read is still known to exist, so that nothing of it is removed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tessera.kube.errors import KubeError
from tessera.kube.reflector import UnreadableObjectError, log_error
from tessera.monitor.container_dirs import Owner
from tessera.node.handover.bound_pod import ALLOCATED
from tessera.wire.errors import WireError
from tessera.wire.keys import MIG_ALLOCATIONS
from tessera.wire.objects import Pod
from tessera.wire.pod_devices import decode_pod_devices

Cards = frozenset[str]
"""uuids"""


@dataclass(frozen=True, slots=True)
class SeenPod:
    uid: str
    namespace: str
    name: str
    containers: tuple[str, ...]
    """init containers first, as allocations number them"""
    mig: str = ""
    """its MIG reservations as they are written"""
    cards: tuple[Cards, ...] | None = None
    """that the scheduler gave to each container, none where that cannot be read; None where it says nothing"""

    @property
    def owners(self) -> tuple[Owner, ...]:
        return tuple(Owner(self.uid, container) for container in self.containers)

    @property
    def granted(self) -> dict[Owner, Cards | None]:
        """The cards that each container may speak of; None where nobody knows."""
        if self.cards is None:
            return dict.fromkeys(self.owners)
        given = (*self.cards, *[Cards()] * len(self.containers))
        return dict(zip(self.owners, given, strict=False))


class Pods:
    """Used from the event loop only."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        """set when all pods are known"""
        self._pods: dict[str, SeenPod] = {}
        self._unreadable: set[str] = set()
        """uids; not forgotten, because nobody says when such a pod is gone"""

    def put(self, key: str, pod: Pod) -> None:
        containers = (*(pod.spec.init_containers or ()), *(pod.spec.containers or ()))
        self._pods[key] = SeenPod(
            uid=pod.metadata.uid,
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            containers=tuple(each.name for each in containers),
            mig=pod.annotations.get(MIG_ALLOCATIONS, ""),
            cards=_cards(pod.annotations.get(ALLOCATED)),
        )

    def drop(self, key: str) -> None:
        self._pods.pop(key, None)

    def synced(self) -> None:
        self.ready.set()

    def hear(self, error: KubeError) -> None:
        """Of the reflector."""
        if isinstance(error, UnreadableObjectError) and error.found.uid:
            self._unreadable.add(error.found.uid)
        log_error(error)

    def all(self) -> tuple[SeenPod, ...]:
        """In order of namespace and name."""
        return tuple(sorted(self._pods.values(), key=lambda pod: (pod.namespace, pod.name)))

    def uids(self) -> frozenset[str]:
        """Of every pod that may exist."""
        return frozenset(pod.uid for pod in self._pods.values()) | self._unreadable


def _cards(text: str | None) -> tuple[Cards, ...] | None:
    if text is None:
        return None
    try:
        return tuple(Cards(entry.uuid for entry in container) for container in decode_pod_devices(text))
    except WireError:
        # The agent, which acts on it, reports it.
        return ()
