"""A live cluster, followed with the rights of the user's kubeconfig. It lists and watches, and never writes.

Reflectors feed the engine of an `OfflineCluster`. What the user may not read is left out, and `problem` says so:
without nodes there are no cards; with the pods of one namespace, cards that others hold look free; without the right to
watch, lists are repeated. While the apiserver cannot be reached, the page shows what was known last, and says that too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from typing import Any

import msgspec

from tessera.inspect.collector import Reach
from tessera.inspect.dashboard.journal import PageJournal
from tessera.inspect.dashboard.source import FixedSource
from tessera.inspect.installation import build_offline_settings, find_installation
from tessera.inspect.offline_cluster import OfflineCluster, node_traits
from tessera.inspect.sanitize import Sanitizer, is_foreign
from tessera.inspect.state import ClusterState, Json, Setup
from tessera.inspect.utilization import MeasuredUse, read_use
from tessera.kube.client import KubeClient
from tessera.kube.errors import KubeError, is_forbidden
from tessera.kube.reflector import Accessor, Reflector
from tessera.kube.resources import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_QUOTAS, Resource
from tessera.scheduler.node_filters import NodeTraits
from tessera.scheduler.service import TICK
from tessera.wire.objects import Pod

MEASURE_S = 10.0
"""between two rounds over the monitors"""
UNWATCHED_S = 60.0
"""without a viewer after which monitors are not asked"""
READY_S = 60.0
"""for the first lists"""
LOST_S = 5.0
"""without an answer after which the page says that the connection is lost"""

DOCUMENT: Accessor[Json] = Accessor(
    key=lambda obj: "/".join(filter(None, (obj["metadata"].get("namespace"), obj["metadata"]["name"]))),
    uid=lambda obj: str(obj["metadata"].get("uid", "")),
    version=lambda obj: str(obj["metadata"].get("resourceVersion", "")),
)
"""of objects as plain JSON"""


class LiveSource(FixedSource):
    """One cluster. Use `follow_cluster` to make and run it."""

    kind = "cluster"
    is_live = True

    def __init__(
        self, client: KubeClient, cluster: OfflineCluster, *, release: str, journal: PageJournal | None = None
    ) -> None:
        """`release` is the namespace of the installation, if it is known."""
        super().__init__(cluster, journal)
        self._client = client
        self._release = release
        self._traits: dict[str, NodeTraits] = {}
        self._sanitizer = Sanitizer(cluster.vendors, claims=cluster.settings.dra)
        self._reflectors: dict[str, Reflector[Json]] = {}
        self._failures: dict[str, tuple[float, str]] = {}
        """by resource, when an attempt failed last, and why"""
        self._unwatched: set[str] = set()
        self._measured_anew: set[str] = set()
        self._asked_at = float("-inf")
        self._clock = asyncio.get_running_loop().time

    # -- what the page asks

    @property
    def problem(self) -> str:
        parts = [super().problem] if super().problem else []
        if self._unwatched:
            parts.append(f"you may not watch {', '.join(sorted(self._unwatched))}: changes are seen late")
        lost = {name: why for name, (_, why) in self._failures.items() if self._is_lost(name)}
        if lost:
            why = next(iter(lost.values()))
            parts.append(f"the connection to the apiserver is lost, so this is the cluster as it was: {why}")
        if "you may not" in self.measurements.note:
            parts.append(self.measurements.note)
        return "; ".join(parts)

    def measured_anew(self) -> Iterable[str]:
        self._asked_at = self._clock()
        changed, self._measured_anew = self._measured_anew, set()
        return changed

    # -- following

    async def run(self, namespaces: dict[Resource, str | None]) -> None:
        """Until cancelled. `namespaces`: the resources that may be read, and where; None is everywhere."""
        async with asyncio.TaskGroup() as group:
            for resource, namespace in namespaces.items():
                name = resource.plural
                reflector = self._reflectors[name] = Reflector(
                    self._client,
                    resource.path(namespace),
                    dict[str, Any],
                    _DocumentSink(self, resource),
                    accessor=DOCUMENT,
                    on_error=self._error_handler(name),
                )
                group.create_task(reflector.run())
            group.create_task(self._tick())
            group.create_task(self._measure())

    def missing(self, resources: Iterable[Resource]) -> list[str]:
        """Which of these first lists are not complete."""
        return [one.plural for one in resources if not self.cluster.handlers[one][1].has_synced]

    def last_failure(self) -> str:
        return next((why for _, why in self._failures.values()), "no answer in time")

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self.cluster.tick()

    async def _measure(self) -> None:
        while True:
            if self._clock() - self._asked_at < UNWATCHED_S:
                before, names = self.measurements, self.view.ledger.node_names()
                use = await read_use(self._client, self.cluster.pods, nodes=names, namespace=self._release)
                self.measurements = use
                self._measured_anew |= self._nodes_that_differ(before, use)
            await asyncio.sleep(MEASURE_S)

    def _nodes_that_differ(self, before: MeasuredUse, after: MeasuredUse) -> set[str]:
        found = {
            key[0] for key in before.cards.keys() | after.cards.keys() if before.cards.get(key) != after.cards.get(key)
        }
        for key in before.pods.keys() | after.pods.keys():
            pod = self._keys.get(key[0])
            if pod is not None and before.pods.get(key) != after.pods.get(key):
                found.add(self.cluster.pods[pod].spec.node_name)
        return found - {""}

    def _error_handler(self, name: str) -> Callable[[KubeError], None]:
        def on_error(error: KubeError) -> None:
            if is_forbidden(error) and self._reflectors[name].age < LOST_S:
                self._unwatched.add(name)  # It was listed a moment ago.
            elif not is_forbidden(error):
                self._failures[name] = self._clock(), str(error)

        return on_error

    def _is_lost(self, name: str) -> bool:
        """Whether nothing was heard since the last attempt that failed, nor for a while."""
        failed_at, _ = self._failures[name]
        age = self._reflectors[name].age
        return age > LOST_S and self._clock() - age < failed_at

    # -- objects

    def put(self, resource: Resource, key: str, document: Json) -> None:
        if is_foreign(resource, document):
            return
        if resource is PODS and not self._sanitizer.concerns_devices(document):
            # It counts only for policies that look at hosts.
            self.cluster.count_host(key, msgspec.convert(document, Pod))
            return
        reduced = self._sanitizer.sanitize(resource, document)
        self.cluster.put(resource, reduced)
        if resource is NODES:
            traits = node_traits(reduced)
            if self._traits.get(key) != traits:
                self._traits[key] = traits
                self.pending.on_nodes()
        elif resource is PODS:
            self._keys[self.cluster.pods[key].metadata.uid] = key
            self.pending.put(key)
        else:
            self._on_claims(resource, key)

    def drop(self, resource: Resource, key: str) -> None:
        if resource is PODS:
            pod = self.cluster.pods.get(key)
            if pod is not None and self._keys.get(pod.metadata.uid) == key:
                del self._keys[pod.metadata.uid]
            self.pending.drop(key)
        self._on_claims(resource, key)
        self.cluster.drop(resource, key)
        if resource is NODES:
            self._traits.pop(key, None)
            self.pending.on_nodes()

    def _on_claims(self, resource: Resource, key: str) -> None:
        """A claim or a class is there or goes."""
        if resource is RESOURCE_CLAIMS:
            # Which pods use a claim is shown on its node, though it holds the same as before.
            found = self.view.claim(key)
            if found is not None and found.facts is not None:
                self._measured_anew.add(found.facts.node)
        if resource in (RESOURCE_CLAIMS, DEVICE_CLASSES):
            self.pending.on_claims()


class _DocumentSink:
    """Where a reflector puts the plain JSON of one resource."""

    def __init__(self, source: LiveSource, resource: Resource) -> None:
        self._source = source
        self._resource = resource

    def put(self, key: str, document: Json) -> None:
        self._source.put(self._resource, key, document)

    def drop(self, key: str) -> None:
        self._source.drop(self._resource, key)

    def synced(self) -> None:
        self._source.cluster.handlers[self._resource][1].synced()


@asynccontextmanager
async def follow_cluster(
    client: KubeClient,
    *,
    name: str,
    namespace: str,
    override: Callable[[Setup], Setup],
    journal: PageJournal | None = None,
) -> AsyncIterator[LiveSource]:
    """The cluster from its first lists on. `namespace` is the one to make do with if the user may not read all.

    Raises ListForbidden if pods can be read nowhere, and KubeError if the apiserver does not answer."""
    installation = await find_installation(client)
    setup = override(installation.setup)
    reach = Reach(partial(_list_one, client), namespace)
    await reach.add(NODES)
    await reach.add(PODS, is_required=True)
    await reach.add(RESOURCE_QUOTAS)
    if build_offline_settings(setup).dra:
        await reach.add_claims(is_certain=setup.flags is not None)
    state = ClusterState(
        name,
        time.time(),
        setup=setup,
        unseen=(*reach.unseen, *installation.unseen),
        nodes_seen=NODES in reach.within,
        all_pods_seen=reach.within[PODS] is None,
    )
    source = LiveSource(client, OfflineCluster(state, now=time.time), release=installation.namespace, journal=journal)
    following = asyncio.create_task(source.run(reach.within))
    try:
        await _wait_for_lists(source, following, reach.within)
        yield source
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


async def _wait_for_lists(source: LiveSource, following: asyncio.Task[None], resources: Iterable[Resource]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(READY_S):
            while source.missing(resources) and not following.done():
                await asyncio.sleep(0.05)
    if following.done():
        following.result()
    missing = source.missing(resources)
    if missing:
        raise KubeError(f"the first list of {', '.join(missing)} is not complete: {source.last_failure()}")


async def _list_one(client: KubeClient, path: str) -> None:
    """Finds out whether the user may list."""
    async with aclosing(client.pages(path, dict[str, Any], page_size=1)) as pages:
        await anext(pages)
