"""The decision journal: JSON lines that record every change of the ledger and every decision, in their order.

A decision is a function of the ledger, the request and the set of candidates, so the records are all that a replay
needs. Each value of the core has a struct here with `of`, which makes it from the core's value, and `value`, which
gives an equal one back. Defaults are left out. A file, and each reading of a running scheduler, begins with `Start`,
the state at that moment and `SnapshotEnd`, so it can be replayed alone. A decision stands before the change of the
ledger that it causes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal

import msgspec

from tessera.core import demand_forecast as core_forecast
from tessera.core import devices as core_devices
from tessera.core import grants as core_grants
from tessera.core import requests as core_requests
from tessera.core.device_rules import Rules
from tessera.core.holdings import PodFacts
from tessera.core.quota import QuotaFacts
from tessera.core.requests import PodRequest, Role
from tessera.wire.cel import AllOf
from tessera.wire.errors import WireError

FORMAT = 2
"""of the records; a reader refuses a larger number, because a decision may depend on something that it does not know"""


class _Value(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """Base of the parts of a record."""


# -- cards and nodes


class MigSlot(_Value, frozen=True):
    """One MIG instance."""

    profile: str
    start: int
    size: int

    @classmethod
    def of(cls, slot: core_devices.MigSlot) -> MigSlot:
        return cls(slot.profile, slot.placement.start, slot.placement.size)

    def value(self) -> core_devices.MigSlot:
        return core_devices.MigSlot(self.profile, core_devices.MigPlacement(self.start, self.size))


class MigProfile(_Value, frozen=True):
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


class Published(_Value, frozen=True):
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


class Device(_Value, frozen=True):
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


class NodeState(_Value, frozen=True):
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


class Grant(_Value, frozen=True):
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


class Span(_Value, frozen=True):
    """When a container runs."""

    role: Role = Role.APP
    finished: bool = False


class PodState(_Value, frozen=True):
    """A pod that holds grants on a node."""

    namespace: str
    name: str
    node: str
    spans: tuple[Span, ...] = ()
    grants: Grants = {}
    stray_mig: tuple[tuple[str, MigSlot], ...] = ()
    settings: dict[str, dict[str, str]] = {}
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


# -- requests


class DeviceRequest(_Value, frozen=True):
    """What one container asks of one vendor, per card."""

    vendor: str
    count: int
    memory: int = 0
    percent: int = 0
    cores: int = 0
    extra: dict[str, Any] = {}
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


class Container(_Value, frozen=True):
    """One container and what it asks."""

    name: str
    role: Role = Role.APP
    requests: tuple[DeviceRequest, ...] = ()


class Constraint(_Value, frozen=True):
    """Which cards of one vendor a pod accepts."""

    use_models: tuple[str, ...] = ()
    avoid_models: tuple[str, ...] = ()
    use_uuids: tuple[str, ...] = ()
    avoid_uuids: tuple[str, ...] = ()
    mode: str | None = None
    extra: dict[str, str] = {}
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


class Weights(_Value, frozen=True):
    """How much slots, cores and memory count in a device's score."""

    slot: int = 1
    core: int = 1
    memory: int = 1


class Host(_Value, frozen=True):
    """Of a host: thousandths of a core, and MiB."""

    cpu: int = 0
    memory: int = 0


class PodRef(_Value, frozen=True):
    """Which pod."""

    namespace: str = ""
    name: str = ""
    uid: str = ""


class PodAsk(_Value, frozen=True):
    """What a pod asks for: a `PodRequest` without the pod's name."""

    containers: tuple[Container, ...]
    node_policy: str
    device_policy: str
    constraints: dict[str, Constraint] = {}
    """by vendor"""
    numa_bind: bool = False
    weights: Weights = Weights()
    matches: tuple[tuple[str, tuple[int, ...], bool], ...] = ()
    """of claims: attribute, positions of the requests, whether the values have to differ"""
    host: Host | None = None
    forecast: int | None = None
    """number of the `ForecastRecord` under which the pod is placed"""

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
        )


class Forecast(_Value, frozen=True):
    """A `DemandForecast`. Numbers of JSON are exact: a double comes back as the same double."""

    slices: tuple[tuple[int, int, float], ...] = ()
    """memory, cores, weight"""
    loads: tuple[tuple[float, float, float], ...] = ()
    """weight, CPU, memory"""
    groups: tuple[tuple[int, float], ...] = ()
    """cards, part of the demand"""
    group_needs: tuple[tuple[float, int, int, tuple[str, ...]], ...] = ()
    """by group: need, CPU, memory, accepted models; older journals have none, and the part stood for the need"""
    pressure: dict[str, float] = {}
    whole_need: float = 1.0
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
            memory_part=self.memory_part,
        )

    def _needs(self) -> tuple[tuple[float, int, int, tuple[str, ...]], ...]:
        return self.group_needs or tuple((part, 0, 0, ()) for _, part in self.groups)


# -- candidates


class CandidateMask(_Value, frozen=True):
    """The nodes that a decision could choose from, relative to the nodes that the ledger's arrays had then.

    A list of candidates is thousands of names, in every decision. Candidates without registered devices are only
    counted: none of them is ever chosen, whatever its name.
    """

    count: int = 0
    """candidates in all"""
    mask: bytes | None = None
    """one bit per node of `CardArrays.order`, free columns left out, the first node in the highest bit of the first
    byte; None = all nodes"""
    others: int = 0
    """candidates that are not among these nodes"""
    searched: bool = False
    """the list was only searched for the best nodes until one of them was found: `mask` leaves out those that it does
    not name, and has all other nodes. So the decision comes out the same; `count` is that of a list of this length"""

    def names(self, order: Sequence[str]) -> list[str]:
        """The candidates, given the names of the nodes in their order, with made-up names for the others.

        Raises ValueError if the mask belongs to another number of nodes.
        """
        others = [f"unregistered-{number}" for number in range(self.others)]
        if self.mask is None:
            return [*order, *others]
        if len(self.mask) != -(-len(order) // 8):
            raise ValueError(f"a mask of {8 * len(self.mask)} bits for {len(order)} nodes")
        bits = int.from_bytes(self.mask, "big") >> (-len(order) % 8)
        last = len(order) - 1
        return [*(name for place, name in enumerate(order) if bits >> (last - place) & 1), *others]


# -- records


class _Record(
    msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", tag_field="kind", kw_only=True, gc=False
):
    """Base of the records."""

    time: float
    """seconds since the epoch"""
    sequence: int
    """grows by one per record of a process; the state of a snapshot has the number of the change that it comes from"""


class Start(_Record, frozen=True, kw_only=True, tag="start"):
    """The process and the configuration that the vendors are built from; again when that is reloaded."""

    format: int
    """`FORMAT`"""
    version: str
    """of Tessera"""
    identity: str
    """of the process: sequence numbers of different processes have nothing to do with each other"""
    device_sections: dict[str, Any] | None
    """of device-config.yaml; None = the chart's values"""
    enable_ascend: bool = False
    enable_iluvatar: bool = False
    node_policy: str
    device_policy: str
    scheduler_name: str


class NodeRecord(_Record, frozen=True, kw_only=True, tag="node"):
    """A node's registration from now on."""

    name: str
    state: NodeState | None = None
    """None = gone"""


class PodRecord(_Record, frozen=True, kw_only=True, tag="pod"):
    """What a pod holds from now on."""

    uid: str
    state: PodState | None = None
    """None = it holds nothing any more"""
    grants: Literal["reserved", "bound"] = "bound"
    """values of `GrantState`"""
    observed: bool = False
    """the API shows the pod on its node"""


class NominationRecord(_Record, frozen=True, kw_only=True, tag="nomination"):
    """What a pod claims from now on, over pods that are about to leave."""

    uid: str
    state: PodState | None = None
    """None = its nomination has ended"""
    victims: tuple[str, ...] = ()
    """uids, sorted"""


class QuotaRecord(_Record, frozen=True, kw_only=True, tag="quota"):
    """A ResourceQuota from now on."""

    namespace: str
    name: str
    limits: dict[str, int] | None = None
    """by resource; None = gone"""

    def value(self) -> QuotaFacts | None:
        return None if self.limits is None else QuotaFacts(self.namespace, self.name, self.limits)


class HostRecord(_Record, frozen=True, kw_only=True, tag="host"):
    """What a node has free beside its cards; recorded only with a policy that looks ahead."""

    name: str
    free: Host | None = None
    """None = not known any more"""


class ForecastRecord(_Record, frozen=True, kw_only=True, tag="forecast"):
    """A forecast that requests refer to."""

    id: int
    forecast: Forecast


class SnapshotEnd(_Record, frozen=True, kw_only=True, tag="snapshot-end"):
    """All records since `Start` are the state at this moment; what follows is what happened."""


class _Decision(_Record, frozen=True, kw_only=True):
    """What is common to decisions."""

    pod: PodRef
    ask: PodAsk
    candidates: CandidateMask | None
    """None = not recorded, because they could not be read or were too large"""
    ledger_version: int
    """number of the last record that changed the state"""
    microseconds: int


class Placed(_Decision, frozen=True, kw_only=True, tag="placed"):
    """A node was chosen; the reservation is the `PodRecord` that follows."""

    node: str
    grants: Grants
    score: float = 0.0
    at_bind: bool = False
    """on one given node (`fit_pod`), not chosen among candidates: the node that a bind request named, or the one that
    is held for the member of a gang"""

    def placement(self) -> core_grants.Placement:
        return core_grants.Placement(self.node, grants_value(self.grants), self.score)


class Refused(_Decision, frozen=True, kw_only=True, tag="refused"):
    """No candidate fits."""

    reasons: dict[str, int]
    """`Misfit.text`, and how many candidates it was given for; see `selection.Refused.reason_counts`"""
    refusals: int = 1
    """how often this pod was refused so far, this time included: those that have no record were the same refusal, with
    the same candidates and reasons as the record before"""
    at_bind: bool = False
    of_gang: bool = False
    """the pod's gang waits as a whole: the reason is that of the gang, and nothing was selected for the pod alone"""

    @property
    def first(self) -> bool:
        return self.refusals == 1


class Unfinished(_Decision, frozen=True, kw_only=True, tag="unfinished"):
    """The decision took more work than one call may do and goes on."""


class Bind(_Record, frozen=True, kw_only=True, tag="bind"):
    """A bind request was answered."""

    pod: PodRef
    node: str
    error: str = ""


class Denied(_Record, frozen=True, kw_only=True, tag="denied"):
    """A pod was denied at admission."""

    namespace: str
    name: str
    """or its generateName"""
    message: str


class Woken(_Record, frozen=True, kw_only=True, tag="woken"):
    """A refused pod fits now, and kube-scheduler is made to ask again."""

    pod: PodRef


ReleaseReason = Literal["ended", "deleted", "expired", "given up"]


class Released(_Record, frozen=True, kw_only=True, tag="released"):
    """What a pod held is free."""

    pod: PodRef
    node: str
    why: ReleaseReason


class Evicted(_Record, frozen=True, kw_only=True, tag="evicted"):
    """A pod was evicted on purpose."""

    pod: PodRef
    node: str
    message: str = ""


class Gang(_Record, frozen=True, kw_only=True, tag="gang"):
    """A gang is in another state, or waits for another reason."""

    namespace: str
    name: str
    state: str
    text: str


class TookOver(_Record, frozen=True, kw_only=True, tag="took-over"):
    """This process decides from now on."""


class SteppedDown(_Record, frozen=True, kw_only=True, tag="stepped-down"):
    """This process decides no more."""


StateRecord = NodeRecord | PodRecord | NominationRecord | QuotaRecord | HostRecord | ForecastRecord
Decision = Placed | Refused | Unfinished
Record = (
    Start
    | NodeRecord
    | PodRecord
    | NominationRecord
    | QuotaRecord
    | HostRecord
    | ForecastRecord
    | SnapshotEnd
    | Placed
    | Refused
    | Unfinished
    | Bind
    | Denied
    | Woken
    | Released
    | Evicted
    | Gang
    | TookOver
    | SteppedDown
)

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def encode_record(record: Record) -> bytes:
    """One line, with its end."""
    return _encoder.encode(record) + b"\n"


def decode_record(line: bytes | str) -> Record:
    """Raises `WireError` for a line that is not a record, and for one of a newer format."""
    try:
        record = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WireError(f"not a journal record: {error}") from error
    if isinstance(record, Start) and record.format > FORMAT:
        raise WireError(f"journal format {record.format} is not supported; this tessera reads formats up to {FORMAT}")
    return record
