"""What pods ask for, and the demand that a decision expected, as records of the journal have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

import msgspec

from tessera.core import demand_forecast as core_forecast
from tessera.core import requests as core_requests
from tessera.core.device_rules import Rules
from tessera.core.requests import PodRequest, Role
from tessera.wire.cel import AllOf
from tessera.wire.journal.cluster import MigSlot
from tessera.wire.journal.value import Value


class DeviceRequest(Value, frozen=True):
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
    def of(cls, request: core_requests.Request) -> DeviceRequest:
        extra = {}
        if type(request) is not core_requests.Request:
            extra = {one.name: getattr(request, one.name) for one in fields(request) if one.name not in _REQUEST_FIELDS}
        accepts = None if request.accepts is None else Constraint.of(request.accepts)
        return cls(request.vendor, request.count, request.memory, request.percent, request.cores, extra, accepts)

    def value(self, rules: Mapping[str, Rules]) -> core_requests.Request:
        request_type = rules[self.vendor].request_type if self.vendor in rules else core_requests.Request
        accepts = None if self.accepts is None else self.accepts.value()
        return request_type(self.vendor, self.count, self.memory, self.percent, self.cores, accepts, **self.extra)


_REQUEST_FIELDS = frozenset(one.name for one in fields(core_requests.Request))


class Container(Value, frozen=True):
    """One container and what it asks."""

    name: str
    role: Role = Role.APP
    requests: tuple[DeviceRequest, ...] = ()


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
    instances: tuple[tuple[str, MigSlot], ...] = ()
    """set for pods that take what is held for them on cards in MIG mode"""

    @classmethod
    def of(cls, constraint: core_requests.Constraint) -> Constraint:
        return cls(
            constraint.use_models,
            constraint.avoid_models,
            constraint.use_uuids,
            constraint.avoid_uuids,
            constraint.mode,
            dict(constraint.extra),
            *(
                (constraint.filter.driver, constraint.filter.texts)
                if isinstance(constraint.filter, AllOf)
                else ("", ())
            ),
            tuple((uuid, MigSlot.of(slot)) for uuid, slot in constraint.instances),
        )

    def value(self) -> core_requests.Constraint:
        return core_requests.Constraint(
            self.use_models,
            self.avoid_models,
            self.use_uuids,
            self.avoid_uuids,
            self.mode,
            tuple(self.extra.items()),
            AllOf(self.driver, self.selectors) if self.driver else None,
            tuple((uuid, slot.value()) for uuid, slot in self.instances),
        )


class Weights(Value, frozen=True):
    """How much slots, cores and memory count in a device's score."""

    slot: int = 1
    core: int = 1
    memory: int = 1


class Host(Value, frozen=True):
    """What a pod asks of its host: thousandths of a core, and MiB."""

    cpu: int = 0
    memory: int = 0


class PodRef(Value, frozen=True):
    """Which pod."""

    namespace: str = ""
    name: str = ""
    uid: str = ""


class PodAsk(Value, frozen=True):
    """What a pod asks for: a `PodRequest` without the pod's name."""

    containers: tuple[Container, ...]
    node_policy: str
    device_policy: str
    constraints: dict[str, Constraint] = msgspec.field(default_factory=dict)
    """by vendor"""
    numa_bind: bool = False
    weights: Weights = Weights()
    matches: tuple[tuple[str, tuple[int, ...], bool], ...] = ()
    """of claims: attribute, positions of the requests, whether the values have to differ"""
    host: Host | None = None
    forecast: int | None = None
    """number of the `ForecastRecord` under which the pod is placed"""

    extra: dict[str, Any] = msgspec.field(default_factory=dict)
    """further fields of a `PodRequest`, as JSON has them"""

    @classmethod
    def of(cls, request: PodRequest, forecast: int | None = None) -> PodAsk:
        host, weights = request.host, request.weights
        return cls(
            containers=tuple(
                [
                    Container(one.name, one.role, tuple([DeviceRequest.of(asked) for asked in one.requests]))
                    for one in request.containers
                ]
            ),
            node_policy=request.node_policy,
            device_policy=request.device_policy,
            constraints={vendor: Constraint.of(constraint) for vendor, constraint in request.constraints},
            numa_bind=request.numa_bind,
            weights=Weights(weights.slot, weights.core, weights.memory),
            matches=tuple([(one.attribute, one.positions, one.distinct) for one in request.matches]),
            host=None if host is None else Host(host.cpu, host.memory),
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
        host, weights = self.host, self.weights
        return PodRequest(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            containers=tuple(
                core_requests.ContainerRequest(one.name, one.role, tuple(asked.value(rules) for asked in one.requests))
                for one in self.containers
            ),
            constraints=tuple((vendor, constraint.value()) for vendor, constraint in self.constraints.items()),
            numa_bind=self.numa_bind,
            node_policy=self.node_policy,
            device_policy=self.device_policy,
            weights=core_requests.Weights(weights.slot, weights.core, weights.memory),
            matches=tuple(core_requests.AttributeMatch(*one) for one in self.matches),
            host=None if host is None else core_requests.HostRequest(host.cpu, host.memory),
            forecast=None if self.forecast is None else forecasts[self.forecast],
            **{name: msgspec.convert(value, _TYPES[name]) for name, value in self.extra.items() if name in _TYPES},
        )


_EXTRA_FIELDS = tuple(one for one in core_requests.ASKED_FIELDS if one.name not in PodAsk.__struct_fields__)
"""that `PodAsk` does not name: they have plain values"""
_TYPES = {one.name: get_type_hints(PodRequest)[one.name] for one in _EXTRA_FIELDS}


class Forecast(Value, frozen=True):
    """A `DemandForecast`. Numbers of JSON are exact: a double comes back as the same double."""

    slices: tuple[tuple[int, int, float], ...] = ()
    """memory, cores, weight"""
    loads: tuple[tuple[float, float, float], ...] = ()
    """weight, CPU, memory"""
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
        return cls(
            slices=tuple((one.memory, one.cores, one.weight) for one in forecast.slices),
            loads=tuple((one.weight, one.cpu, one.memory) for one in forecast.loads),
            groups=tuple((one.cards, one.part) for one in forecast.groups),
            group_needs=tuple((one.need, one.cpu, one.memory, one.models) for one in forecast.groups),
            pressure=dict(forecast.pressure),
            whole_need=forecast.whole_need,
            host_need=forecast.host_need,
            turnover=forecast.turnover,
            memory_part=forecast.memory_part,
        )

    def value(self) -> core_forecast.DemandForecast:
        return core_forecast.DemandForecast(
            slices=tuple(core_forecast.DemandSlice(*one) for one in self.slices),
            loads=tuple(core_forecast.HostLoad(*one) for one in self.loads),
            groups=tuple(
                core_forecast.DemandGroup(cards, part, *needs)
                for (cards, part), needs in zip(self.groups, self._needs(), strict=True)
            ),
            pressure=self.pressure,
            whole_need=self.whole_need,
            host_need=self.host_need,
            turnover=self.turnover,
            memory_part=self.memory_part,
        )

    def _needs(self) -> tuple[tuple[float, int, int, tuple[str, ...]], ...]:
        return self.group_needs or tuple((part, 0, 0, ()) for _, part in self.groups)
