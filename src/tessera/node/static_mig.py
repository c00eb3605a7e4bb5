"""Serves the MIG instances that an administrator made, one device plugin for each resource.

    single   all cards are divided into equal instances, which are counted as `nvidia.com/gpu`, as if they were cards
    mixed    each profile is a resource of its own, e.g. `nvidia.com/mig-1g.18gb`; undivided cards are shared

What does not fit the strategy is not served, and the reason is logged. An instance has the health of its card. The
hardware is only read, in one thread with deadlines, every READ_EVERY_S and when the fleet changes. A card that cannot
be read keeps its last known instances. Resources come and go with the instances. If instances use the same resource as
the shared cards, they replace its plugin, because kubelet knows one plugin per resource. Nothing is served before the
instances were read once. The device ids are the instances, so Allocate needs no pod and writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial

import structlog

from tessera.host.call_thread import CallThread, CallTimeout
from tessera.host.cards import InventoryError, MigHardware, MigInstance
from tessera.node.fleet import CardState, Fleet, Replica
from tessera.node.kubelet.plugin import Plugin
from tessera.node.modes.base import ContainerResponse, SharingMode
from tessera.node.modes.device_lists import DeviceLists
from tessera.node.settings import AgentSettings
from tessera.node.watched_value import WatchedValue, is_set_within
from tessera.wire.node_config import MigStrategy

log = structlog.get_logger(__name__)

SINGLE = "nvidia.com/gpu"
"""whatever resource whole cards have"""
MIXED_PREFIX = "nvidia.com/mig-"

READ_EVERY_S = 10.0
"""until a created or destroyed instance is noticed"""
READ_S = 10.0
"""for one card"""
STOP_S = 1.0


@dataclass(frozen=True, slots=True)
class InstanceResources:
    devices: Mapping[str, tuple[Replica, ...]] = field(default_factory=dict)
    """by resource, in order of cards and instances; a device id is the instance's uuid. No list is empty"""
    problems: tuple[str, ...] = ()
    """why something is not served"""


def resources_of(fleet: Fleet, instances: Iterable[MigInstance], *, strategy: MigStrategy) -> InstanceResources:
    """Sorts the instances of all cards in MIG mode into resources."""
    by_profile: dict[str, list[Replica]] = {}
    problems: list[str] = []
    placed = _placed(fleet, instances)
    for card, instance in placed:
        profile = _profile_name(card, instance)
        if instance.mig_uuid is None or instance.divided or profile is None:
            problems.append(
                f"GPU instance {instance.gpu_instance} of card {instance.uuid} is not served: {_why_not(instance)}"
            )
        else:
            by_profile.setdefault(profile, []).append(Replica(instance.mig_uuid, card.healthy, card.facts.numa))
    if strategy == "mixed":
        devices = {
            f"{MIXED_PREFIX}{profile.replace('+', '.')}": tuple(each) for profile, each in sorted(by_profile.items())
        }
        return InstanceResources(devices, tuple(problems))
    problems.extend(_why_not_single(fleet, by_profile, {instance.uuid for _, instance in placed}))
    if problems or not by_profile:
        return InstanceResources(problems=tuple(problems))
    (every,) = by_profile.values()
    return InstanceResources({SINGLE: tuple(every)})


def _placed(fleet: Fleet, instances: Iterable[MigInstance]) -> list[tuple[CardState, MigInstance]]:
    found = [(card, each) for each in instances if (card := fleet.card(each.uuid)) is not None]
    return sorted(found, key=lambda pair: (pair[0].facts.index, pair[1].gpu_instance))


def _profile_name(card: CardState, instance: MigInstance) -> str | None:
    profiles = card.facts.mig_profiles
    return next((each.name for each in profiles if each.profile_id == instance.profile_id), None)


def _why_not(instance: MigInstance) -> str:
    if instance.compute_instance is None:
        return "it has no compute instance"
    if instance.divided:
        return "its compute instances are smaller than it"
    return f"the driver does not report its uuid or profile (id {instance.profile_id})"


def _why_not_single(fleet: Fleet, by_profile: Collection[str], used: Collection[str]) -> list[str]:
    """Returns why the cards, of which those in `used` have instances, are not divided equally.

    If no card is in MIG mode, nothing is wrong.
    """
    divided = [card.facts for card in fleet if card.facts.mig_enabled]
    if not divided:
        return []
    problems = []
    if len(divided) < len(fleet.cards):
        problems.append("MIG strategy single: some cards are in MIG mode and some are not")
    if not by_profile:
        problems.append("MIG strategy single: no card has an instance")
    if len(by_profile) > 1:
        problems.append(f"MIG strategy single: the instances have different profiles: {', '.join(sorted(by_profile))}")
    empty = [facts.uuid for facts in divided if facts.uuid not in used]
    problems.extend(f"MIG strategy single: card {uuid} has no instance" for uuid in empty if by_profile)
    return problems


class InstanceWatch:
    """Reads the instances. Lives as long as its settings."""

    def __init__(self, hardware: MigHardware, fleet: WatchedValue[Fleet], *, strategy: MigStrategy) -> None:
        self._hardware = hardware
        self._fleet = fleet
        self._strategy = strategy
        self._calls = CallThread("static-mig")
        self._found: Mapping[str, tuple[MigInstance, ...]] = {}
        """by card"""
        self._problems: Mapping[str, str] = {}
        self._changed = asyncio.Event()
        self.resources: WatchedValue[InstanceResources | None] = WatchedValue(None)
        """None before the first read"""

    def instances(self) -> tuple[MigInstance, ...]:
        """Returns all known instances."""
        return tuple(each for found in self._found.values() for each in found)

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow_fleet())
                group.create_task(self._read_repeatedly())
        finally:
            await self._calls.close(patience=STOP_S)

    async def _follow_fleet(self) -> None:
        async with aclosing(self._fleet.changes()) as fleets:
            async for _ in fleets:
                if self.resources.value is not None:
                    # Publish health first: an unhealthy card may be slow to read.
                    self._publish()
                self._changed.set()

    async def _read_repeatedly(self) -> None:
        while True:
            self._changed.clear()
            await self._read(self._fleet.value)
            self._publish()
            await is_set_within(self._changed, READ_EVERY_S)

    async def _read(self, fleet: Fleet) -> None:
        found: dict[str, tuple[MigInstance, ...]] = {}
        problems: dict[str, str] = {}
        for uuid in (card.facts.uuid for card in fleet if card.facts.mig_enabled):
            try:
                instances = await self._calls.call(partial(self._hardware.instances, uuid), deadline=READ_S)
            except (InventoryError, CallTimeout) as error:
                problems[uuid] = str(error)
                found[uuid] = self._found.get(uuid, ())
                if self._problems.get(uuid) != problems[uuid]:
                    log.warning("MIG instances of a card cannot be read", card=uuid, problem=problems[uuid])
            else:
                found[uuid] = tuple(instances)
        self._found, self._problems = found, problems

    def _publish(self) -> None:
        before = self.resources.value
        now = resources_of(self._fleet.value, self.instances(), strategy=self._strategy)
        for problem in now.problems:
            if before is None or problem not in before.problems:
                log.warning("MIG instances are not served", problem=problem)
        self.resources.set(now)


@dataclass(frozen=True, slots=True)
class _Served:
    plugin: Plugin
    task: asyncio.Task[None]
    devices: WatchedValue[tuple[Replica, ...]]
    """empty for shared cards, which their own plugin counts"""


class StaticMig:
    """The plugins, and the `Allocator` of those for instances. Also runs `shared`, the plugin of the shared cards."""

    def __init__(
        self,
        settings: AgentSettings,
        watch: InstanceWatch,
        *,
        fleet: WatchedValue[Fleet],
        shared: Plugin,
        mode: SharingMode,
    ) -> None:
        """`mode` keeps the CDI specs, if there are any."""
        self._settings = settings
        self._watch = watch
        self._fleet = fleet
        self._shared = shared
        self._mode = mode
        self._lists = DeviceLists(settings, cdi=mode.cdi)
        self._served: dict[str, _Served] = {}
        """by resource"""

    @property
    def problem(self) -> str:
        """Why kubelet cannot use one of the plugins; empty if it can use all."""
        if not self._served:
            return "the MIG instances have not been read yet"
        return next((each.plugin.problem for each in self._served.values() if each.plugin.problem), "")

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch.run())
                group.create_task(self._follow(group))
        finally:
            self._served.clear()

    async def allocate(self, containers: Sequence[Sequence[str]]) -> list[ContainerResponse]:
        fleet, instances = self._fleet.value, self._watch.instances()
        return [self._lists.response(ids, fleet, instances) for ids in containers]

    def prefer(self, available: Sequence[str], must_include: Sequence[str], count: int) -> Sequence[str]:
        """Returns no preference: the instances of a resource are equal."""
        return ()

    async def _follow(self, group: asyncio.TaskGroup) -> None:
        async with aclosing(self._watch.resources.changes()) as changes:
            async for resources in changes:
                if resources is not None:
                    await self._mode.refresh()
                    await self._serve(resources, group)

    async def _serve(self, resources: InstanceResources, group: asyncio.TaskGroup) -> None:
        own, instances = self._settings.resource, resources.devices
        wanted = instances if own in instances else {own: (), **instances}
        for resource, served in list(self._served.items()):
            is_replaced = resource == own and (own in instances) == (served.plugin is self._shared)
            if resource not in wanted or is_replaced:
                del self._served[resource]
                served.task.cancel()
                await asyncio.wait([served.task])
        for resource, devices in wanted.items():
            known = self._served.get(resource)
            if known is not None:
                known.devices.set(devices)
                continue
            listed = WatchedValue(devices)
            plugin = self._plugin(resource, listed) if resource in instances else self._shared
            self._served[resource] = _Served(plugin, group.create_task(plugin.run()), listed)

    def _plugin(self, resource: str, devices: WatchedValue[tuple[Replica, ...]]) -> Plugin:
        node = replace(self._settings.node, preferred_allocation=False)
        return Plugin(replace(self._settings, resource=resource, node=node), devices, self)
