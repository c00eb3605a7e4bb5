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
from typing import Any

import msgspec

from tessera.inspect import sanitize
from tessera.inspect.collector import (
    CLAIM_RESOURCES,
    NODES_UNSEEN,
    NOT_SERVED,
    PODS_UNSEEN,
    QUOTAS_UNSEEN,
    SOME_CLAIMS_UNSEEN,
    SOME_QUOTAS_UNSEEN,
)
from tessera.inspect.dashboard.journal import PageJournal
from tessera.inspect.dashboard.source import FixedSource
from tessera.inspect.installation import FORBIDDEN, NOT_FOUND, find_installation
from tessera.inspect.node_filters import NodeTraits, node_traits
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.scheduler_settings import build_offline_settings
from tessera.inspect.state import HOW_TO_READ, ClusterState, Json, ListForbidden, Setup
from tessera.inspect.utilization import MeasuredUse, read_use
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.reflector import Accessor, Reflector, Sink
from tessera.kube.resources import (
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    Resource,
)
from tessera.scheduler.service import TICK
from tessera.wire.keys import DRA_DRIVER
from tessera.wire.objects import Pod

MEASURE_SECONDS = 10.0
"""between two rounds over the monitors"""
UNWATCHED_SECONDS = 60.0
"""without a viewer after which monitors are not asked"""
READY_SECONDS = 60.0
"""for the first lists"""
LOST_SECONDS = 5.0
"""without an answer after which the page says that the connection is lost"""

DOCUMENT: Accessor[Json] = Accessor(
    key=lambda obj: "/".join(filter(None, (obj["metadata"].get("namespace"), obj["metadata"]["name"]))),
    uid=lambda obj: str(obj["metadata"].get("uid", "")),
    version=lambda obj: str(obj["metadata"].get("resourceVersion", "")),
)
"""of objects as plain JSON"""


class LiveSource(FixedSource):
    """One cluster. Use `follow_cluster` to make and run it."""

    def __init__(
        self, client: KubeClient, cluster: OfflineCluster, *, release: str, journal: PageJournal | None = None
    ) -> None:
        """`release` is the namespace of the installation, if it is known."""
        super().__init__(cluster, kind="cluster", journal=journal)
        self._client = client
        self._release = release
        self._traits: dict[str, NodeTraits] = {}
        self._kept = sanitize.deciding_domains(cluster.vendors)
        self._managed = sanitize.managed_resources(cluster.vendors)
        self._allocated = frozenset(one.keys.allocated for one in cluster.vendors.values() if one.keys.allocated)
        self._reflectors: dict[str, Reflector[Json]] = {}
        self._failures: dict[str, tuple[float, str]] = {}
        """by resource, when an attempt failed last, and why"""
        self._unwatched: set[str] = set()
        self._measured_anew: set[str] = set()
        self._has_templates = False
        self._asked_at = float("-inf")
        self._clock = asyncio.get_running_loop().time

    # -- what the page asks

    def describe(self) -> Json:
        return {**super().describe(), "live": True}

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
        sinks: dict[Resource, Sink[Json]] = {
            NODES: _DocumentSink(self._put_node, self._drop_node, self.engine.nodes.synced),
            PODS: _DocumentSink(self._put_pod, self._drop_pod, self.engine.pods.synced),
            RESOURCE_QUOTAS: _DocumentSink(self._put_quota, self.cluster.drop_quota, self.engine.quotas.synced),
            **self._claim_sinks(),
        }
        async with asyncio.TaskGroup() as group:
            for resource, namespace in namespaces.items():
                name = resource.plural
                reflector = self._reflectors[name] = Reflector(
                    self._client,
                    resource.path(namespace) if resource.namespaced else resource.path(),
                    dict[str, Any],
                    sinks[resource],
                    accessor=DOCUMENT,
                    on_error=self._error_handler(name),
                )
                group.create_task(reflector.run())
            group.create_task(self._tick())
            group.create_task(self._measure())

    def missing(self, resources: Iterable[Resource]) -> list[str]:
        """Which of these first lists are not complete."""
        engine = self.engine
        done = {
            PODS: engine.pods.has_synced,
            NODES: engine.nodes.has_synced,
            RESOURCE_QUOTAS: engine.quotas.has_synced,
            RESOURCE_SLICES: engine.claims.pools.has_synced,
            DEVICE_CLASSES: engine.claims.classes.has_synced,
            RESOURCE_CLAIMS: engine.claims.claims.has_synced,
            RESOURCE_CLAIM_TEMPLATES: self._has_templates,
        }
        return [one.plural for one in resources if not done[one]]

    def last_failure(self) -> str:
        return next((why for _, why in self._failures.values()), "no answer in time")

    async def _tick(self) -> None:
        """Plugins that do not answer a handshake in time are gone, though no object changes."""
        while True:
            await asyncio.sleep(TICK)
            self.engine.nodes.tick()

    async def _measure(self) -> None:
        while True:
            if self._clock() - self._asked_at < UNWATCHED_SECONDS:
                before, names = self.measurements, self.engine.ledger.node_names()
                use = await read_use(self._client, self.cluster.pods, nodes=names, namespace=self._release)
                self.measurements = use
                self._measured_anew |= self._nodes_that_differ(before, use)
            await asyncio.sleep(MEASURE_SECONDS)

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
            if isinstance(error, ApiError) and error.status == FORBIDDEN and self._reflectors[name].age < LOST_SECONDS:
                self._unwatched.add(name)  # It was listed a moment ago.
            elif not isinstance(error, ApiError) or error.status != FORBIDDEN:
                self._failures[name] = self._clock(), str(error)

        return on_error

    def _is_lost(self, name: str) -> bool:
        """Whether nothing was heard since the last attempt that failed, nor for a while."""
        failed_at, _ = self._failures[name]
        age = self._reflectors[name].age
        return age > LOST_SECONDS and self._clock() - age < failed_at

    # -- objects

    def _put_node(self, key: str, document: Json) -> None:
        node = sanitize.sanitize_node(document, self._kept)
        self.cluster.put_node(node)
        traits = node_traits(node)
        if self._traits.get(key) != traits:
            self._traits[key] = traits
            self.pending.on_nodes()

    def _drop_node(self, key: str) -> None:
        self.cluster.drop_node(key)
        self._traits.pop(key, None)
        self.pending.on_nodes()

    def _put_pod(self, key: str, document: Json) -> None:
        reads_claims = self.cluster.settings.dra
        if not sanitize.concerns_devices(document, self._managed, self._allocated, claims=reads_claims):
            # It counts only for policies that look at hosts.
            self.engine.pods.put(key, msgspec.convert(document, Pod))
            return
        self.cluster.put_pod(sanitize.sanitize_pod(document, self._kept))
        self._keys[self.cluster.pods[key].metadata.uid] = key
        self.pending.put(key)

    def _drop_pod(self, key: str) -> None:
        pod = self.cluster.pods.get(key)
        if pod is not None and self._keys.get(pod.metadata.uid) == key:
            del self._keys[pod.metadata.uid]
        self.pending.drop(key)
        self.cluster.drop_pod(key)

    def _claim_sinks(self) -> dict[Resource, Sink[Json]]:
        cluster, claims = self.cluster, self.engine.claims
        return {
            RESOURCE_SLICES: _DocumentSink(self._put_slice, cluster.drop_slice, claims.pools.synced),
            DEVICE_CLASSES: _DocumentSink(self._put_class, self._drop_class, claims.classes.synced),
            RESOURCE_CLAIMS: _DocumentSink(self._put_claim, self._drop_claim, claims.claims.synced),
            RESOURCE_CLAIM_TEMPLATES: _DocumentSink(
                lambda _key, found: cluster.put_template(sanitize.sanitize_template(found)),
                cluster.drop_template,
                self._on_templates,
            ),
        }

    def _put_slice(self, key: str, document: Json) -> None:
        if document["spec"].get("driver") == DRA_DRIVER:
            self.cluster.put_slice(sanitize.sanitize_slice(document))

    def _put_class(self, key: str, document: Json) -> None:
        self.cluster.put_class(sanitize.sanitize_class(document))
        self.pending.on_claims()

    def _drop_class(self, key: str) -> None:
        self.cluster.drop_class(key)
        self.pending.on_claims()

    def _put_claim(self, key: str, document: Json) -> None:
        self.cluster.put_claim(sanitize.sanitize_claim(document))
        self._on_claim(key)

    def _drop_claim(self, key: str) -> None:
        self._on_claim(key)
        self.cluster.drop_claim(key)

    def _on_claim(self, key: str) -> None:
        """Which pods use a claim is shown on its node, though it holds the same as before."""
        record = self.engine.claims.book.get(key)
        if record is not None and record.facts is not None:
            self._measured_anew.add(record.facts.node)
        self.pending.on_claims()

    def _on_templates(self) -> None:
        self._has_templates = True

    def _put_quota(self, key: str, document: Json) -> None:
        self.cluster.put_quota(sanitize.sanitize_quota(document))


class _DocumentSink:
    """Where a reflector puts plain JSON."""

    def __init__(
        self, put: Callable[[str, Json], None], drop: Callable[[str], None], synced: Callable[[], None]
    ) -> None:
        self.put = put
        self.drop = drop
        self.synced = synced


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
    readable, unseen = await _readable(client, namespace)
    setup = override(installation.setup)
    if build_offline_settings(setup).dra:
        unseen += await _readable_claims(client, namespace, readable, is_certain=setup.flags is not None)
    state = ClusterState(
        name,
        time.time(),
        setup=setup,
        unseen=(*unseen, *installation.unseen),
        nodes_seen=NODES in readable,
        all_pods_seen=readable[PODS] is None,
    )
    source = LiveSource(client, OfflineCluster(state, now=time.time), release=installation.namespace, journal=journal)
    following = asyncio.create_task(source.run(readable))
    try:
        await _wait_for_lists(source, following, readable)
        yield source
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


async def _wait_for_lists(source: LiveSource, following: asyncio.Task[None], resources: Iterable[Resource]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(READY_SECONDS):
            while source.missing(resources) and not following.done():
                await asyncio.sleep(0.05)
    if following.done():
        following.result()
    missing = source.missing(resources)
    if missing:
        raise KubeError(f"the first list of {', '.join(missing)} is not complete: {source.last_failure()}")


async def _readable(client: KubeClient, namespace: str) -> tuple[dict[Resource, str | None], list[str]]:
    """What the user may list, and where; and what that leaves out."""
    found: dict[Resource, str | None] = {}
    unseen: list[str] = []
    if await _may_list(client, NODES.path()):
        found[NODES] = None
    else:
        unseen.append(NODES_UNSEEN)
    if await _may_list(client, PODS.path()):
        found[PODS] = None
    elif await _may_list(client, PODS.path(namespace)):
        found[PODS] = namespace
        unseen.append(PODS_UNSEEN.format(namespace))
    else:
        raise ListForbidden(f"you may not list pods, neither all nor those of namespace {namespace}.\n{HOW_TO_READ}")
    if await _may_list(client, RESOURCE_QUOTAS.path()):
        found[RESOURCE_QUOTAS] = None
    elif await _may_list(client, RESOURCE_QUOTAS.path(namespace)):
        found[RESOURCE_QUOTAS] = namespace
        unseen.append(SOME_QUOTAS_UNSEEN.format(namespace))
    else:
        unseen.append(QUOTAS_UNSEEN)
    return found, unseen


async def _readable_claims(
    client: KubeClient, namespace: str, found: dict[Resource, str | None], *, is_certain: bool
) -> list[str]:
    """Adds what may be listed of claims; what that leaves out. `is_certain`: the scheduler certainly reads them."""
    unseen: list[str] = []
    try:
        for resource, forbidden in CLAIM_RESOURCES.items():
            if await _may_list(client, resource.path()):
                found[resource] = None
            elif resource is RESOURCE_CLAIMS and await _may_list(client, resource.path(namespace)):
                found[resource] = namespace
                unseen.append(SOME_CLAIMS_UNSEEN.format(namespace))
            else:
                unseen.append(forbidden)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        return [NOT_SERVED] if is_certain else []
    return unseen


async def _may_list(client: KubeClient, path: str) -> bool:
    try:
        async with aclosing(client.pages(path, dict[str, Any], page_size=1)) as pages:
            await anext(pages)
    except ApiError as error:
        if error.status == FORBIDDEN:
            return False
        raise
    return True
