"""Tenants that create, delete and recreate pods and gangs, more than fit at once, some of them with a high priority.

Some pods pass the webhook and get their devices through the downward API; others do not, and depend on Allocate. Some
fit no node at all. Answers that are lost or refused are recorded and not repeated: the next step is another one.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any

from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.resources import PODS
from tests.robustness.etcd_recorder import EtcdRecorder
from tests.robustness.history import ClientActed, History
from tests.support.product import container, gpu_pod, pod

Json = dict[str, Any]

CREATED, DELETED = 201, 200
NAMES = 4
"""pods per client and namespace: few, so that names are used again, and more than fit at once"""
PAUSE_S = 1.0
"""between two steps of a client, on average"""
PATIENCE = 0.85
"""the share of deletions that spare a pod which waits for room: a late write needs a pod that is still there"""
TOO_MUCH = 90_000
"""MiB: more than any card has"""
GANGS = 0.2
"""the share of steps that are about a gang"""
PRIORITIES = {"robust-high": 100, "robust-higher": 200}
"""PriorityClasses"""


@dataclass(frozen=True)
class Namespaces:
    admitted: str
    """its pods pass the webhook"""
    dependent: str
    """its pods name the scheduler themselves"""


def manifest(name: str, namespace: str, rng: random.Random) -> Json:
    """A pod of a random shape; whole cards are frequent, because two pods on one of them are a fault at once."""
    memory = rng.randint(1, 40) * 1000
    shapes: list[tuple[int, Json]] = [
        (6, gpu_pod(name, gpu=1, mem=memory, cores=100)),
        (4, gpu_pod(name, gpu=1)),
        (4, gpu_pod(name, gpu=1, mem=memory, cores=rng.choice((10, 30, 60)))),
        (2, gpu_pod(name, gpu=1, mem=memory)),
        (2, gpu_pod(name, gpu=2, mem=memory, cores=50)),
        (2, pod(name, container("a", gpu=1, mem=memory), container("b", gpu=1, mem=2 * memory, cores=20))),
        (1, pod(name, container("a", gpu=1, mem=memory), init=[container("i", gpu=1, mem=memory, cores=100)])),
        (1, gpu_pod(name, gpu=1, mem=TOO_MUCH)),
        (1, gpu_pod(name, gpu=3, mem=1000)),
    ]
    (chosen,) = rng.choices([shape for _, shape in shapes], weights=[weight for weight, _ in shapes])
    chosen["metadata"]["namespace"] = namespace
    if rng.random() < 0.25:
        chosen["spec"]["priorityClassName"] = rng.choice(list(PRIORITIES))
    chosen["spec"]["terminationGracePeriodSeconds"] = 1
    return chosen


def gang_manifests(name: str, namespace: str, rng: random.Random) -> list[Json]:
    """Members that need a card each, alone or half of it; some gangs can do with fewer than all."""
    size = rng.randint(2, 4)
    said = {"tessera.io/gang": name, "tessera.io/gang-size": str(size)}
    if rng.random() < 0.25:
        said["tessera.io/gang-min"] = str(size - 1)
    cores, priority = rng.choice((100, 50)), rng.choice(("", "", *PRIORITIES))
    members = [gpu_pod(f"{name}-{number}", annotations=said, gpu=1, mem=20_000, cores=cores) for number in range(size)]
    for member in members:
        member["metadata"]["namespace"] = namespace
        member["spec"]["terminationGracePeriodSeconds"] = 1
        if priority:
            member["spec"]["priorityClassName"] = priority
    return members


class Client:
    """One tenant, with names of its own."""

    def __init__(
        self, name: str, api: KubeClient, history: History, *, recorder: EtcdRecorder, spaces: Namespaces, seed: str
    ) -> None:
        self._name = name
        self._api = api
        self._history = history
        self._recorder = recorder
        self._spaces = spaces
        self._rng = random.Random(seed)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / PAUSE_S))
            await (self._step_of_gang() if self._rng.random() < GANGS else self._step())

    async def _step_of_gang(self) -> None:
        """A gang is created whole, but for a member now and then, and mostly deleted whole."""
        namespace = self._rng.choice((self._spaces.admitted, self._spaces.dependent))
        name = f"{self._name}-gang"
        present = [key for key in sorted(self._recorder.pods) if key.startswith(f"{namespace}/{name}-")]
        if not present:
            for member in gang_manifests(name, namespace, self._rng):
                if self._rng.random() < 0.97:
                    await self._post(f"{namespace}/{member['metadata']['name']}", member)
        elif not any(self._recorder.pods[key].node for key in present) and self._rng.random() < PATIENCE:
            return
        else:
            for key in present if self._rng.random() < 0.8 else present[:1]:
                await self.delete(key)

    async def _step(self) -> None:
        namespace = self._rng.choice((self._spaces.admitted, self._spaces.dependent))
        key = f"{namespace}/{self._name}-{self._rng.randrange(NAMES)}"
        if key not in self._recorder.pods:
            await self._create(key)
        elif not self._recorder.pods[key].node and self._rng.random() < PATIENCE:
            return
        elif self._rng.random() < 0.3:
            # At once again, under the same name.
            await self.delete(key, grace_s=0)
            await self._create(key)
        else:
            await self.delete(key)

    async def _create(self, key: str) -> None:
        namespace, _, name = key.partition("/")
        await self._post(key, manifest(name, namespace, self._rng))

    async def _post(self, key: str, body: Json) -> None:
        namespace = body["metadata"]["namespace"]
        if namespace == self._spaces.dependent:
            body["spec"]["schedulerName"] = "hami-scheduler"
        await self._act("create", key, self._api.create(PODS.path(namespace), body), CREATED)

    async def delete(self, key: str, *, grace_s: int | None = None) -> None:
        path = PODS.path(*key.split("/"))
        deleting = self._api.delete(path) if grace_s is None else self._api.delete(path, grace_s=grace_s)
        await self._act("delete", key, deleting, DELETED)

    async def _act(self, action: str, key: str, work: Any, status: int) -> None:
        try:
            await work
        except ApiError as error:
            status = error.status
        except KubeError:
            status = 0
        at = self._history.now
        self._history.add(ClientActed(at=at, client=self._name, action=action, key=key, status=status))
