"""Cards, nodes, pods, requests and forecasts as records of the journal have them.

Each value of the core whose JSON differs from it has a struct here with `of`, which makes it from the core's value, and
`value`, which gives an equal one back. Defaults are left out. Other values of the core stand in records as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar, get_type_hints

import msgspec

from tessera.core.fit.device_rules import Rules
from tessera.core.ledger.holdings import PodFacts
from tessera.core.model import demand_forecast as core_forecast
from tessera.core.model import devices as core_devices
from tessera.core.model import grants as core_grants
from tessera.core.model import requests as core_requests
from tessera.core.model.devices import Attribute, MigProfile
from tessera.core.model.requests import AttributeMatch, PodRequest, Role
from tessera.wire.cel import AllOf

T = TypeVar("T")


class Value(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """A value of the core in JSON."""


def _copy(kind: type[T], value: object, **other: object) -> T:
    """A `kind` with the fields of `value` of the same names, but for those that are given."""
    names: tuple[str, ...] = kind.__match_args__  # type: ignore[attr-defined]  # structs, dataclasses and tuples have it
    return kind(*[other[name] if name in other else getattr(value, name) for name in names])


# -- nodes


class MigSlot(Value, frozen=True):
    """One MIG instance."""

    profile: str
    start: int
    size: int

    @classmethod
    def of(cls, slot: core_devices.MigSlot) -> MigSlot:
        return cls(slot.profile, *slot.placement)

    def value(self) -> core_devices.MigSlot:
        return core_devices.MigSlot(self.profile, core_devices.MigPlacement(self.start, self.size))


MigSlots = tuple[tuple[str, MigSlot], ...]
"""each with the uuid of its card"""


def _slots_of(slots: Iterable[tuple[str, core_devices.MigSlot]]) -> MigSlots:
    return tuple([(uuid, MigSlot.of(slot)) for uuid, slot in slots])


def _slots_value(slots: MigSlots) -> tuple[tuple[str, core_devices.MigSlot], ...]:
    return tuple([(uuid, slot.value()) for uuid, slot in slots])


class Published(Value, frozen=True):
    """What selectors of claims see of a card, or of one MIG profile of it."""

    profile: str = ""
    common: tuple[Attribute, ...] = ()
    own: tuple[Attribute, ...] = ()
    capacity: tuple[tuple[str, int], ...] = ()
    shared: bool = False


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
        published = tuple([_copy(Published, found, profile=profile) for profile, found in device.published])
        return _copy(cls, device, links=dict(device.links), custom=dict(device.custom), published=published)

    def value(self) -> core_devices.Device:
        published = tuple([(found.profile, _copy(core_devices.Published, found)) for found in self.published])
        return _copy(core_devices.Device, self, published=published)


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
        devices = tuple([device.value() for device in self.devices])
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
        mig = None if grant.mig is None else MigSlot.of(grant.mig)
        return _copy(
            cls, grant, mig=mig, custom=dict(grant.custom), vendor="" if grant.vendor == vendor else grant.vendor
        )

    def value(self, vendor: str) -> core_grants.Grant:
        mig = None if self.mig is None else self.mig.value()
        return _copy(core_grants.Grant, self, mig=mig, vendor=self.vendor or vendor)


Grants = dict[str, tuple[tuple[Grant, ...], ...]]
"""by vendor, one entry per container"""


def grants_of(grants: Mapping[str, Iterable[Iterable[core_grants.Grant]]]) -> Grants:
    return {
        vendor: tuple([tuple([Grant.of(grant, vendor) for grant in container]) for container in containers])
        for vendor, containers in grants.items()
    }


def grants_value(grants: Grants) -> dict[str, tuple[core_grants.Grants, ...]]:
    return {
        vendor: tuple([tuple([grant.value(vendor) for grant in container]) for container in containers])
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
    stray_mig: MigSlots = ()
    settings: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    """of the vendors, by vendor"""
    problem: str = ""

    @classmethod
    def of(cls, facts: PodFacts) -> PodState:
        return _copy(
            cls,
            facts,
            spans=tuple([Span(*span) for span in facts.spans]),
            grants=grants_of(facts.grants),
            stray_mig=_slots_of(facts.stray_mig),
            settings={vendor: dict(settings) for vendor, settings in facts.settings},
        )

    def value(self, uid: str) -> PodFacts:
        return _copy(
            PodFacts,
            self,
            uid=uid,
            spans=tuple([_copy(core_grants.Span, span) for span in self.spans]),
            grants=grants_value(self.grants),
            stray_mig=_slots_value(self.stray_mig),
            settings=tuple([(vendor, tuple(settings.items())) for vendor, settings in self.settings.items()]),
        )


# -- what pods ask for


class Constraint(Value, frozen=True):
    """Which cards of one vendor a pod accepts."""

    use_models: tuple[str, ...] = ()
    avoid_models: tuple[str, ...] = ()
    use_uuids: tuple[str, ...] = ()
    avoid_uuids: tuple[str, ...] = ()
    mode: str | None = None
    extra: dict[str, str] = msgspec.field(default_factory=dict)
    driver: str = ""
    """set for claims, which accept published cards only"""
    selectors: tuple[str, ...] = ()
    """expressions in CEL"""
    instances: MigSlots = ()
    """set for pods that take what is held for them on cards in MIG mode"""

    @classmethod
    def of(cls, constraint: core_requests.Constraint) -> Constraint:
        chosen = constraint.filter
        driver, selectors = (chosen.driver, chosen.texts) if isinstance(chosen, AllOf) else ("", ())
        extra, instances = dict(constraint.extra), _slots_of(constraint.instances)
        return _copy(cls, constraint, extra=extra, driver=driver, selectors=selectors, instances=instances)

    def value(self) -> core_requests.Constraint:
        chosen = AllOf(self.driver, self.selectors) if self.driver else None
        extra, instances = tuple(self.extra.items()), _slots_value(self.instances)
        return _copy(core_requests.Constraint, self, extra=extra, filter=chosen, instances=instances)


class DeviceAsk(Value, frozen=True):
    """What one container asks of one vendor, per card."""

    vendor: str
    count: int
    memory: int = 0
    percent: int = 0
    cores: int = 0
    extra: dict[str, Any] = msgspec.field(default_factory=dict)
    """fields that only this vendor's requests have"""
    accepts: Constraint | None = None
    """set for claims"""

    @classmethod
    def of(cls, request: core_requests.Request) -> DeviceAsk:
        extra = {one.name: getattr(request, one.name) for one in fields(request) if one.name not in _REQUEST_FIELDS}
        accepts = None if request.accepts is None else Constraint.of(request.accepts)
        return _copy(cls, request, extra=extra, accepts=accepts)

    def value(self, rules: Mapping[str, Rules]) -> core_requests.Request:
        request_type = rules[self.vendor].request_type if self.vendor in rules else core_requests.Request
        accepts = None if self.accepts is None else self.accepts.value()
        return request_type(self.vendor, self.count, self.memory, self.percent, self.cores, accepts, **self.extra)


_REQUEST_FIELDS = frozenset(one.name for one in fields(core_requests.Request))


class ContainerAsk(Value, frozen=True):
    """One container and what it asks."""

    name: str
    role: Role = Role.APP
    requests: tuple[DeviceAsk, ...] = ()

    @classmethod
    def of(cls, container: core_requests.ContainerRequest) -> ContainerAsk:
        return cls(container.name, container.role, tuple(map(DeviceAsk.of, container.requests)))

    def value(self, rules: Mapping[str, Rules]) -> core_requests.ContainerRequest:
        requests = tuple([asked.value(rules) for asked in self.requests])
        return core_requests.ContainerRequest(self.name, self.role, requests)


class Weights(Value, frozen=True):
    """How much slots, cores and memory count in a device's score."""

    slot: int = 1
    core: int = 1
    memory: int = 1


class Host(Value, frozen=True):
    """What a pod asks of its host, or a host has free: thousandths of a core, and MiB."""

    cpu: int = 0
    memory: int = 0

    @classmethod
    def of(cls, host: core_requests.HostRequest | None) -> Host | None:
        return None if host is None else cls(host.cpu, host.memory)

    def value(self) -> core_requests.HostRequest:
        return core_requests.HostRequest(self.cpu, self.memory)


class PodRef(Value, frozen=True):
    """Which pod."""

    namespace: str = ""
    name: str = ""
    uid: str = ""


class PodAsk(Value, frozen=True):
    """What a pod asks for: a `PodRequest` without the pod's name."""

    containers: tuple[ContainerAsk, ...]
    node_policy: str
    device_policy: str
    constraints: dict[str, Constraint] = msgspec.field(default_factory=dict)
    """by vendor"""
    numa_bind: bool = False
    weights: Weights = Weights()
    matches: tuple[AttributeMatch, ...] = ()
    """of claims"""
    host: Host | None = None
    forecast: int | None = None
    """number of the `ForecastRecord` under which the pod is placed"""

    extra: dict[str, Any] = msgspec.field(default_factory=dict)
    """further fields of a `PodRequest`, as JSON has them"""

    @classmethod
    def of(cls, request: PodRequest, forecast: int | None = None) -> PodAsk:
        return _copy(
            cls,
            request,
            containers=tuple(map(ContainerAsk.of, request.containers)),
            constraints={vendor: Constraint.of(constraint) for vendor, constraint in request.constraints},
            weights=_copy(Weights, request.weights),
            host=Host.of(request.host),
            forecast=forecast,
            extra={
                one.name: msgspec.json.decode(msgspec.json.encode(value))
                for one in _EXTRA_FIELDS
                if (value := getattr(request, one.name)) != one.default
            },
        )

    def value(
        self, pod: PodRef, rules: Mapping[str, Rules], forecasts: Mapping[int, core_forecast.DemandForecast]
    ) -> PodRequest:
        """The request of this pod; `forecasts` are the journal's, by number."""
        return PodRequest(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            containers=tuple([container.value(rules) for container in self.containers]),
            constraints=tuple([(vendor, constraint.value()) for vendor, constraint in self.constraints.items()]),
            numa_bind=self.numa_bind,
            node_policy=self.node_policy,
            device_policy=self.device_policy,
            weights=_copy(core_requests.Weights, self.weights),
            matches=self.matches,
            host=None if self.host is None else self.host.value(),
            forecast=None if self.forecast is None else forecasts[self.forecast],
            **{name: msgspec.convert(value, _TYPES[name]) for name, value in self.extra.items() if name in _TYPES},
        )


_EXTRA_FIELDS = tuple(one for one in core_requests.ASKED_FIELDS if one.name not in PodAsk.__struct_fields__)
"""that `PodAsk` does not name: they have plain values"""
_TYPES = {one.name: get_type_hints(PodRequest)[one.name] for one in _EXTRA_FIELDS}


class Forecast(Value, frozen=True):
    """A `DemandForecast`. Numbers of JSON are exact: a double comes back as the same double."""

    slices: tuple[core_forecast.DemandSlice, ...] = ()
    loads: tuple[core_forecast.HostLoad, ...] = ()
    groups: tuple[tuple[int, float], ...] = ()
    """cards, part of the demand"""
    group_needs: tuple[tuple[float, int, int, tuple[str, ...]], ...] = ()
    """by group: need, CPU, memory, accepted models; older journals have none, and the part stood for the need"""
    pressure: dict[str, float] = msgspec.field(default_factory=dict)
    whole_need: float = 1.0
    host_need: float = 1.0
    turnover: float = 0.0
    memory_part: float = 0.5

    @classmethod
    def of(cls, forecast: core_forecast.DemandForecast) -> Forecast:
        return _copy(
            cls,
            forecast,
            groups=tuple([(one.cards, one.part) for one in forecast.groups]),
            group_needs=tuple([(one.need, one.cpu, one.memory, one.models) for one in forecast.groups]),
            pressure=dict(forecast.pressure),
        )

    def value(self) -> core_forecast.DemandForecast:
        values = msgspec.structs.asdict(self)
        needs = values.pop("group_needs") or [(part, 0, 0, ()) for _, part in self.groups]
        groups = [core_forecast.DemandGroup(*group, *need) for group, need in zip(self.groups, needs, strict=True)]
        return core_forecast.DemandForecast(**values | {"groups": tuple(groups)})
