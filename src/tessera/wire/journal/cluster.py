"""Cards, nodes and pods that hold devices, as records of the journal have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tessera.core import devices as core_devices
from tessera.core import grants as core_grants
from tessera.core.holdings import PodFacts
from tessera.core.requests import Role
from tessera.wire.journal.value import Value


class MigSlot(Value, frozen=True):
    """One MIG instance."""

    profile: str
    start: int
    size: int

    @classmethod
    def of(cls, slot: core_devices.MigSlot) -> MigSlot:
        return cls(slot.profile, slot.placement.start, slot.placement.size)

    def value(self) -> core_devices.MigSlot:
        return core_devices.MigSlot(self.profile, core_devices.MigPlacement(self.start, self.size))


class MigProfile(Value, frozen=True):
    """A kind of MIG instance that a card offers."""

    name: str
    memory: int
    cores: int
    slices: int
    placements: tuple[tuple[int, int], ...]
    """start and size"""

    @classmethod
    def of(cls, profile: core_devices.MigProfile) -> MigProfile:
        places = tuple([(place.start, place.size) for place in profile.placements])
        return cls(profile.name, profile.memory, profile.cores, profile.slices, places)

    def value(self) -> core_devices.MigProfile:
        places = tuple(core_devices.MigPlacement(*place) for place in self.placements)
        return core_devices.MigProfile(self.name, self.memory, self.cores, self.slices, places)


Attributes = tuple[tuple[str, str, str | int | bool], ...]
"""name, kind and value of each"""


class Published(Value, frozen=True):
    """What selectors of claims see of a card, or of one MIG profile of it."""

    profile: str = ""
    common: Attributes = ()
    own: Attributes = ()
    capacity: tuple[tuple[str, int], ...] = ()
    shared: bool = False

    @classmethod
    def of(cls, profile: str, found: core_devices.Published) -> Published:
        return cls(profile, found.common, found.own, found.capacity, found.shared)

    def value(self) -> tuple[str, core_devices.Published]:
        common, own = (tuple(core_devices.Attribute(*one) for one in part) for part in (self.common, self.own))
        return self.profile, core_devices.Published(common, own, self.capacity, self.shared)


class Device(Value, frozen=True):
    """One card as its node registered it."""

    uuid: str
    vendor: str
    index: int = 0
    slots: int = 1
    memory: int = 0
    cores: int = 100
    model: str = ""
    numa: int = 0
    mode: str = ""
    healthy: bool = True
    mig_profiles: tuple[MigProfile, ...] = ()
    links: Mapping[str, int] = {}
    custom: Mapping[str, Any] = {}
    published: tuple[Published, ...] = ()

    @classmethod
    def of(cls, device: core_devices.Device) -> Device:
        return cls(
            uuid=device.uuid,
            vendor=device.vendor,
            index=device.index,
            slots=device.slots,
            memory=device.memory,
            cores=device.cores,
            model=device.model,
            numa=device.numa,
            mode=device.mode,
            healthy=device.healthy,
            mig_profiles=tuple(map(MigProfile.of, device.mig_profiles)),
            links=dict(device.links),
            custom=dict(device.custom),
            published=tuple(Published.of(*one) for one in device.published),
        )

    def value(self) -> core_devices.Device:
        return core_devices.Device(
            uuid=self.uuid,
            vendor=self.vendor,
            index=self.index,
            slots=self.slots,
            memory=self.memory,
            cores=self.cores,
            model=self.model,
            numa=self.numa,
            mode=self.mode,
            healthy=self.healthy,
            mig_profiles=tuple(profile.value() for profile in self.mig_profiles),
            links=self.links,
            custom=self.custom,
            published=tuple(one.value() for one in self.published),
        )


class NodeState(Value, frozen=True):
    """A node's registration."""

    devices: tuple[Device, ...] = ()
    cordoned: tuple[str, ...] = ()
    traits: Mapping[str, str] = {}
    problem: str = ""

    @classmethod
    def of(cls, facts: core_devices.NodeFacts) -> NodeState:
        devices = tuple(map(Device.of, facts.devices))
        return cls(devices, tuple(sorted(facts.cordoned)), dict(facts.traits), facts.problem)

    def value(self, name: str) -> core_devices.NodeFacts:
        devices = tuple(device.value() for device in self.devices)
        return core_devices.NodeFacts(name, devices, frozenset(self.cordoned), self.traits, self.problem)


# -- pods that hold devices


class Grant(Value, frozen=True):
    """One card's slice given to one container."""

    uuid: str
    memory: int = 0
    cores: int = 0
    index: int = 0
    word: str = ""
    slots: int = 1
    mig: MigSlot | None = None
    custom: Mapping[str, str] = {}
    vendor: str = ""
    """empty: the vendor under which the grant stands"""

    @classmethod
    def of(cls, grant: core_grants.Grant, vendor: str) -> Grant:
        return cls(
            uuid=grant.uuid,
            memory=grant.memory,
            cores=grant.cores,
            index=grant.index,
            word=grant.word,
            slots=grant.slots,
            mig=None if grant.mig is None else MigSlot.of(grant.mig),
            custom=dict(grant.custom),
            vendor="" if grant.vendor == vendor else grant.vendor,
        )

    def value(self, vendor: str) -> core_grants.Grant:
        return core_grants.Grant(
            uuid=self.uuid,
            vendor=self.vendor or vendor,
            memory=self.memory,
            cores=self.cores,
            index=self.index,
            word=self.word,
            slots=self.slots,
            mig=None if self.mig is None else self.mig.value(),
            custom=self.custom,
        )


Grants = dict[str, tuple[tuple[Grant, ...], ...]]
"""by vendor, one entry per container"""


def grants_of(grants: Mapping[str, Iterable[Iterable[core_grants.Grant]]]) -> Grants:
    return {
        vendor: tuple([tuple([Grant.of(grant, vendor) for grant in container]) for container in containers])
        for vendor, containers in grants.items()
    }


def grants_value(grants: Grants) -> dict[str, tuple[core_grants.Grants, ...]]:
    return {
        vendor: tuple(tuple(grant.value(vendor) for grant in container) for container in containers)
        for vendor, containers in grants.items()
    }


class Span(Value, frozen=True):
    """When a container runs."""

    role: Role = Role.APP
    finished: bool = False


class PodState(Value, frozen=True):
    """A pod that holds grants on a node."""

    namespace: str
    name: str
    node: str
    spans: tuple[Span, ...] = ()
    grants: Grants = msgspec.field(default_factory=dict)
    stray_mig: tuple[tuple[str, MigSlot], ...] = ()
    settings: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    """of the vendors, by vendor"""
    problem: str = ""

    @classmethod
    def of(cls, facts: PodFacts) -> PodState:
        return cls(
            namespace=facts.namespace,
            name=facts.name,
            node=facts.node,
            spans=tuple([Span(span.role, span.finished) for span in facts.spans]),
            grants=grants_of(facts.grants),
            stray_mig=tuple([(uuid, MigSlot.of(slot)) for uuid, slot in facts.stray_mig]),
            settings={vendor: dict(settings) for vendor, settings in facts.settings},
            problem=facts.problem,
        )

    def value(self, uid: str) -> PodFacts:
        return PodFacts(
            uid=uid,
            namespace=self.namespace,
            name=self.name,
            node=self.node,
            spans=tuple(core_grants.Span(span.role, span.finished) for span in self.spans),
            grants=grants_value(self.grants),
            stray_mig=tuple((uuid, slot.value()) for uuid, slot in self.stray_mig),
            settings=tuple((vendor, tuple(settings.items())) for vendor, settings in self.settings.items()),
            problem=self.problem,
        )
