"""Keeps the node's ResourceSlices up to date: one pool, named after the node.

    on every change of cards, cordon, pods without claims or the slices themselves:
        compare with what the API shows -> nothing, or all slices of the pool with the next generation

Consumers use a pool only when they have all slices of its latest generation, so a pool that is half written is used by
none. Slices stay when the agent ends: kubelet removes those of a driver that does not come back, and the apiserver
those of a node that is gone. A server that drops fields (a feature that is off) is not written to again and again. On a
server that drops taints, devices that only Tessera's scheduler may allocate are not published at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256
from typing import Any

import msgspec
import structlog

from tessera.host.cards import InventoryError
from tessera.kube.backoff import Backoff, retry_on_error
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError, KubeError, is_conflict, is_not_found
from tessera.kube.reflector import Reflector
from tessera.kube.resources import RESOURCE_SLICES
from tessera.node.dra.offers import SliceContent, Surrounding, nvlink_groups, offers, slice_contents
from tessera.node.fleet import Fleet
from tessera.node.handover.pod_cache import PodCache
from tessera.node.registration.devices import AskLinks
from tessera.node.settings import AgentSettings
from tessera.node.watched_value import WatchedValue, is_set_within
from tessera.wire.pod_devices import split_legacy_uuid
from tessera.wire.resource_api import API_VERSION, DRIVER, Pool, ResourceSlice, SliceDevice, SliceSpec

log = structlog.get_logger(__name__)

PAUSES = Backoff(initial=0.5, cap=15.0, floor=0.2)
LOOK_EVERY_S = 30.0
"""without a change, e.g. for links between cards that could not be read"""
MAX_NAME = 253
TRIAL = 9999
"""number of a slice that is never stored"""


class _SliceView:
    """Sink of this node's slices of this driver."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self.found: dict[str, ResourceSlice] = {}
        self.known = False

    def put(self, key: str, found: ResourceSlice) -> None:
        if self.found.get(key) != found:
            self.found[key] = found
            self._notify()

    def drop(self, key: str) -> None:
        if self.found.pop(key, None) is not None:
            self._notify()

    def synced(self) -> None:
        self.known = True
        self._notify()


class SlicePublisher:
    """Lives as long as the settings that it was built from."""

    def __init__(
        self,
        client: KubeClient,
        fleet: WatchedValue[Fleet],
        settings: AgentSettings,
        *,
        links: AskLinks,
        pods: PodCache,
    ) -> None:
        """`pods` knows the node, and the pods without ResourceClaims that hold slices of its cards."""
        self._client = client
        self._fleet = fleet
        self._settings = settings
        self._links = links
        self._pods = pods
        self._changed = asyncio.Event()
        self._node = pods.node_view
        self._slices = _SliceView(self._changed.set)
        self._groups: tuple[tuple[str, ...], Mapping[str, str]] | None = None
        """NVLink groups, with the cards that they were read for"""
        self._accepted: dict[str, tuple[SliceSpec, SliceSpec]] = {}
        """what was written and what the server made of it, by name, where the two differ"""
        self._keeps_taints = False
        """whether the server is known to store them"""
        self.published = asyncio.Event()
        """set when no other scheduler is offered what is this one's to allocate"""
        self.problem = "the node's ResourceSlices are not published yet"
        """empty if they are up to date"""

    async def run(self) -> None:
        """Runs until cancelled."""
        name = self._settings.node_name
        slices = Reflector(
            self._client,
            RESOURCE_SLICES.path(),
            ResourceSlice,
            self._slices,
            field_selector=f"spec.nodeName={name},spec.driver={DRIVER}",
            on_error=self._on_error,
        )
        with self._fleet.waking(self._changed), self._pods.version.waking(self._changed):
            async with asyncio.TaskGroup() as group:
                group.create_task(slices.run())
                group.create_task(self._publish_repeatedly())

    def _on_error(self, error: KubeError) -> None:
        text = str(error)
        if is_not_found(error):
            text = f"the apiserver does not serve {API_VERSION}: ResourceClaims need Kubernetes 1.34 or later"
        self._set_problem(f"ResourceSlices cannot be read: {text}")

    async def _publish_repeatedly(self) -> None:
        while True:
            await retry_on_error(self._publish, backoff=PAUSES, is_retriable=self._report, pause=self._pause)
            await self._pause(LOOK_EVERY_S)

    async def _pause(self, seconds: float) -> None:
        """Until something changes, at most so long."""
        await is_set_within(self._changed, seconds)

    async def _publish(self) -> None:
        """Compares and writes once. Raises KubeError."""
        self._changed.clear()
        fleet = self._fleet.value
        if not self._slices.known or not self._node.uid or (fleet.problem and not fleet.cards):
            # Nothing is known of the cards, or of what is published: what is there stays.
            return
        contents = await self._contents(fleet)
        problem = await self._find_lost_taints(contents) if self._settings.serves_both else ""
        await self._write(() if problem else contents)
        self._set_problem(problem)
        self.published.set()

    def _report(self, error: KubeError, _failures: int) -> bool:
        # After a conflict, with another agent of this node or because the watch is behind, the next look shows it.
        if not is_conflict(error):
            self._set_problem(f"ResourceSlices cannot be written: {error}")
        return True

    def _set_problem(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.warning("the node's devices are not published", problem=problem)
        self.problem = problem

    async def _contents(self, fleet: Fleet) -> tuple[SliceContent, ...]:
        found = offers(fleet, self._settings)
        around = Surrounding(
            cordoned=self._node.cordoned,
            # Pods without claims are no strangers to the scheduler that allocates both.
            held=() if self._settings.serves_both else self._held(fleet),
            managed=self._settings.serves_both,
            nvlink_groups=await self._nvlinks(tuple(card.facts.uuid for card in fleet)),
        )
        return slice_contents(found, around)

    def _held(self, fleet: Fleet) -> Collection[str]:
        """Cards of pods without claims; all cards while it is unknown what such a pod holds."""
        held = self._pods.live_assignments()
        if held is None:
            return {card.facts.uuid for card in fleet}
        return {split_legacy_uuid(each.uuid)[0] for assignment in held for each in assignment.slices}

    async def _nvlinks(self, uuids: tuple[str, ...]) -> Mapping[str, str]:
        if self._groups is None or self._groups[0] != uuids:
            try:
                links = await self._links(uuids)
            except InventoryError as error:
                log.warning("links between cards cannot be read", problem=str(error))
                return {}
            self._groups = uuids, nvlink_groups(uuids, links)
        return self._groups[1]

    # -- writing

    async def _find_lost_taints(self, contents: Sequence[SliceContent]) -> str:
        """Returns why the devices would be stored without their taints, found out by a dry run; empty if they are."""
        first = next((each.devices for each in contents if each.devices), None)
        if self._keeps_taints or first is None:
            return ""
        node = self._settings.node_name
        pool = Pool(name=node, generation=1, resource_slice_count=1)
        # Without the rest of the device, so that only taints are judged.
        device = SliceDevice(name=first[0].name, taints=first[0].taints)
        spec = SliceSpec(driver=DRIVER, pool=pool, node_name=node, devices=(device,))
        stored = await self._client.create_dry_run(
            RESOURCE_SLICES.path(), self._body(slice_name(node, TRIAL), spec), ResourceSlice
        )
        self._keeps_taints = stored.spec.devices == (device,)
        if self._keeps_taints:
            return ""
        return "the apiserver drops taints of devices, so kube-scheduler would allocate them: enable DRADeviceTaints"

    async def _write(self, contents: Sequence[SliceContent]) -> None:
        found = dict(self._slices.found)
        generations = {each.spec.pool.generation for each in found.values()}
        current = max(generations, default=0)
        wanted = self._specs(contents, current)
        same = all(name in found and self._is_same(name, spec, found[name].spec) for name, spec in wanted.items())
        if same and found.keys() == wanted.keys():
            return
        for name, spec in self._specs(contents, current + 1).items():
            await self._put(name, spec, found.get(name))
        for name in found.keys() - wanted.keys():
            await self._delete(name, found[name])
        log.info("devices published", slices=len(wanted), generation=current + 1)

    def _specs(self, contents: Sequence[SliceContent], generation: int) -> dict[str, SliceSpec]:
        node = self._settings.node_name
        pool = Pool(name=node, generation=generation, resource_slice_count=len(contents))
        return {
            slice_name(node, number): SliceSpec(
                driver=DRIVER, pool=pool, node_name=node, devices=each.devices, shared_counters=each.counters
            )
            for number, each in enumerate(contents)
        }

    def _is_same(self, name: str, wanted: SliceSpec, found: SliceSpec) -> bool:
        if wanted == found:
            return True
        written, stored = self._accepted.get(name, (None, None))
        return stored == found and written == wanted

    async def _put(self, name: str, spec: SliceSpec, found: ResourceSlice | None) -> None:
        body = self._body(name, spec)
        if found is None:
            stored = await self._client.create(RESOURCE_SLICES.path(), body, ResourceSlice)
        else:
            body["metadata"]["resourceVersion"] = found.metadata.resource_version
            stored = await self._client.replace(RESOURCE_SLICES.path(name=name), body, ResourceSlice)
        # The watch shows it later; until then this is what is known.
        self._slices.found[name] = stored
        self._accepted.pop(name, None)
        if stored.spec != spec:
            self._accepted[name] = spec, stored.spec
            log.warning(
                "the apiserver changed a ResourceSlice: a feature that it needs may be off",
                slice=name,
                differs=_difference(spec, stored.spec),
            )

    async def _delete(self, name: str, found: ResourceSlice) -> None:
        try:
            await self._client.delete(RESOURCE_SLICES.path(name=name), uid=found.metadata.uid)
        except ApiError as error:
            if not is_not_found(error):
                raise
        self._slices.found.pop(name, None)
        self._accepted.pop(name, None)

    def _body(self, name: str, spec: SliceSpec) -> dict[str, Any]:
        owner = {
            "apiVersion": "v1",
            "kind": "Node",
            "name": self._settings.node_name,
            "uid": self._node.uid,
            "controller": True,
        }
        metadata = {"name": name, "ownerReferences": [owner]}
        return {"apiVersion": API_VERSION, "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def slice_name(node: str, number: int) -> str:
    """The same for every agent of the node, so that a new one finds what an earlier one wrote."""
    name = f"{node}-{DRIVER}-{number}"
    return name if len(name) <= MAX_NAME else f"{sha256(node.encode()).hexdigest()}-{DRIVER}-{number}"


def _difference(wanted: SliceSpec, stored: SliceSpec) -> str:
    """The first field that differs, as a path."""

    def compare(one: Any, other: Any, path: str) -> str:
        if isinstance(one, dict) and isinstance(other, dict):
            for key in (*one, *(key for key in other if key not in one)):
                if one.get(key) != other.get(key):
                    return compare(one.get(key), other.get(key), f"{path}.{key}")
        if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
            for number, (mine, theirs) in enumerate(zip(one, other, strict=True)):
                if mine != theirs:
                    return compare(mine, theirs, f"{path}[{number}]")
        return path

    return compare(msgspec.to_builtins(wanted), msgspec.to_builtins(stored), "spec")
