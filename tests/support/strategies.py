"""Random clusters, pods and quotas for property tests, for every vendor that exists.

Pods are drawn as API objects and read through the border, so that a property holds for what users can write. Amounts
come from few round values: collisions (a full card, an equal score, a quota used up) are where rules differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import assume, settings
from hypothesis import strategies as st

from tessera.core.fit.card_rules import SETTINGS
from tessera.core.fit.quota import QuotaFacts
from tessera.core.ledger.holdings import PodFacts
from tessera.core.model.devices import HAMI_CORE, MIG, Device, MigPlacement, MigProfile, MigSlot, NodeFacts
from tessera.core.model.grants import Grant, Span
from tessera.core.model.requests import PodRequest, Role
from tessera.vendors.base import Switches, Vendor
from tessera.vendors.pod_reader import pod_request
from tessera.vendors.registry import build_vendors
from tessera.wire import keys
from tessera.wire.objects import Container, Metadata, Pod, PodSpec, ResourceRequirements

LEAST = 6
"""examples, however few the profile has"""


def examples(times: float, **others: Any) -> settings:
    """Settings with so many times the examples of the profile, cheap ones more and long lives fewer."""
    return settings(max_examples=max(round(settings().max_examples * times), LEAST), **others)


VENDORS: Mapping[str, Vendor] = build_vendors(None, Switches(ascend=True, iluvatar=True))

NAMESPACES = ("team-a", "team-b")
NODES = tuple(f"node-{i}" for i in range(6))
MAX_CARDS = 9
"""cards of a drawn node: more than the arrays start with"""

# -- cards

SLICE = 5 * 1024
"""MiB of one of the eight memory slices of a MIG card"""


def _profile(name: str, *, slices: int, cores: int, starts: Sequence[int]) -> MigProfile:
    places = tuple(MigPlacement(start, slices) for start in starts)
    return MigProfile(name, memory=slices * SLICE, cores=cores, slices=slices, placements=places)


MIG_PROFILES = (
    _profile("1g.5gb", slices=1, cores=14, starts=range(7)),
    _profile("2g.10gb", slices=2, cores=28, starts=(0, 2, 4)),
    _profile("3g.20gb", slices=4, cores=42, starts=(0, 4)),
    _profile("7g.40gb", slices=8, cores=100, starts=(0,)),
)


Custom = st.SearchStrategy[Mapping[str, Any]]
NOTHING_MORE: Custom = st.just({})


@dataclass(frozen=True, slots=True)
class Make:
    """The cards of one vendor, and what pods request of them."""

    memory: tuple[int, ...] = (8192, 16384)
    """MiB"""
    cores: tuple[int, ...] = (100,)
    slots: tuple[int, ...] = (1, 2, 10)
    model: tuple[str, ...] = ()
    """empty = the vendor's key"""
    custom: Custom = NOTHING_MORE
    asked_memory: tuple[int, ...] = (0, 1024, 4096, 8192, 20000)
    """MiB"""
    asked_cores: tuple[int, ...] = (0, 10, 50, 100)
    asked_count: tuple[int, ...] = (1, 1, 2, 3)


_PARTITIONS = {f"{size}g.{size * 8}gb": str(size) for size in (1, 2, 4)}

_NETWORKS: Custom = st.builds(lambda network: {"NetworkID": network}, st.integers(0, 1)) | NOTHING_MORE

_ASCEND = Make(
    memory=(32768, 65536),
    slots=(4,),
    custom=_NETWORKS,
    asked_memory=(0, 2184, 8192, 16384, 65536),
    asked_count=(1, 1, 2, 4),
)

_MAKES: Mapping[str, Make] = {
    "NVIDIA": Make(
        cores=(100, 100, 100, 50, 0),
        model=("NVIDIA A100-SXM4-40GB", "Tesla T4"),
        asked_cores=(0, 10, 50, 60, 100, 150),
    ),
    "AMD": Make(cores=(64, 304), model=("MI210", "MI300X"), asked_cores=(1, 25, 50, 100)),
    "AWSNeuron": Make(memory=(0,), cores=(1, 3, 15), asked_cores=(0, 1, 2, 4, 8)),
    "Biren": Make(asked_memory=(0,), asked_cores=(0,)),
    "Enflame": Make(
        memory=(32768,),
        slots=(4, 8),
        custom=st.builds(
            lambda index: {"profiles": _PARTITIONS, "index": str(index), "minor": str(index)}, st.integers(0, 7)
        ),
        asked_memory=(0, 8, 20, 9000),
        asked_cores=(0, 20, 30, 100),
        asked_count=(0, 0, 1, 2, 4, 3),
    ),
    "GCU": Make(memory=(100,), slots=(1,)),
    "Metax-GPU": Make(memory=(65536,), slots=(1,)),
    "Metax-SGPU": Make(
        custom=st.builds(
            lambda qos, zone: {"QosPolicy": qos, "LinkZone": zone},
            st.sampled_from(("", "best-effort", "fixed-share")),
            st.integers(0, 2),
        ),
    ),
    "Mthreads": Make(memory=(49152,), cores=(16,), slots=(100,), asked_cores=(0, 4, 16, 20)),
    "Vastai": Make(
        custom=st.builds(lambda aic: {"DeviceStrategy": "die", "AIC": aic}, st.integers(0, 1)) | NOTHING_MORE,
        asked_memory=(0,),
        asked_cores=(0,),
    ),
    "XPU": Make(memory=(98304,), cores=(100, 0), slots=(4, 0), asked_memory=(0, 24576, 49152, 98304)),
    "kunlun": Make(memory=(98304,), slots=(100,), asked_count=(1, 2, 4, 8, 3)),
}


def make_of(vendor: str) -> Make:
    return _MAKES.get(vendor, _ASCEND if vendor.startswith("Ascend") else Make())


@st.composite
def cards(draw: st.DrawFn, vendor: str, uuid: str, index: int) -> Device:
    """One card. NVIDIA's may be in MIG mode."""
    make = make_of(vendor)
    cores = draw(st.sampled_from(make.cores))
    device = Device(
        uuid=uuid,
        vendor=vendor,
        index=index,
        slots=cores.bit_count() if vendor == "AWSNeuron" else draw(st.sampled_from(make.slots)),
        memory=draw(st.sampled_from(make.memory)),
        cores=cores,
        model=draw(st.sampled_from(make.model or (vendor,))),
        numa=draw(st.integers(0, 1)),
        healthy=draw(st.integers(0, 9)) > 0,
        custom=draw(make.custom),
    )
    if vendor != "NVIDIA":
        return device
    mode = draw(st.sampled_from((HAMI_CORE, HAMI_CORE, "", MIG)))
    if mode != MIG:
        return replace(device, mode=mode)
    return replace(device, mode=MIG, slots=7, memory=8 * SLICE, cores=100, mig_profiles=MIG_PROFILES)


def uuid_of(node: str, vendor: str, index: int) -> str:
    return f"{node}-{vendor}-{index}"


@st.composite
def nodes(draw: st.DrawFn, name: str, vendors: Sequence[str]) -> NodeFacts:
    """A node with cards of one or two vendors; sometimes without cards, partly cordoned, or with a problem."""
    devices: list[Device] = []
    for vendor in draw(st.lists(st.sampled_from(vendors), min_size=1, max_size=2, unique=True)):
        count = draw(st.sampled_from((0, 1, 2, 2, 4, 8) if vendor == "kunlun" else (0, 1, 2, 2, 3, 4)))
        devices.extend(draw(cards(vendor, uuid_of(name, vendor, i), i)) for i in range(count))
    devices = devices[:MAX_CARDS]
    if draw(st.booleans()):
        devices = _linked(devices, draw(st.lists(st.integers(0, 3), min_size=1, max_size=4)))
    cordoned = draw(st.sets(st.sampled_from([d.uuid for d in devices]), max_size=1)) if devices else set()
    return NodeFacts(
        name=name,
        devices=tuple(devices),
        cordoned=frozenset(cordoned),
        traits=draw(traits()),
        problem="its registration cannot be read" if draw(st.integers(0, 14)) == 0 else "",
    )


def _linked(devices: Sequence[Device], scores: Sequence[int]) -> list[Device]:
    """Pair scores, the same in both directions."""
    linked = []
    for i, device in enumerate(devices):
        links = {other.uuid: scores[(i + j) % len(scores)] for j, other in enumerate(devices) if i != j}
        linked.append(replace(device, links=links))
    return linked


@st.composite
def traits(draw: st.DrawFn) -> Mapping[str, str]:
    """Node annotations that some vendor reads."""
    found = {}
    if draw(st.booleans()):
        found["hami-vnpu-core"] = draw(st.sampled_from(("true", "false")))
    if draw(st.booleans()):
        found["metax-tech.com/gpu.topology.losses"] = draw(st.sampled_from(('{"1":3,"2":500}', "not json")))
        found["metax-tech.com/gpu.topology.scores"] = '{"1":30,"2":5}'
    return found


@st.composite
def clusters(draw: st.DrawFn, vendors: Sequence[str], *, least: int = 1) -> tuple[NodeFacts, ...]:
    count = draw(st.integers(least, len(NODES)))
    return tuple(draw(nodes(name, vendors)) for name in NODES[:count])


POOLS = (
    ("NVIDIA",),
    ("NVIDIA", "Biren"),
    ("NVIDIA", "AMD", "Vastai"),
    ("DCU", "NVIDIA", "Metax-SGPU"),
    ("Metax-GPU", "Metax-SGPU"),
    ("MLU", "Mthreads"),
    ("XPU", "kunlun"),
    ("AWSNeuron", "Enflame"),
    ("Ascend910B2", "Ascend910C"),
    ("Ascend310P", "BI-V100", "GCU"),
)
"""vendors that occur together: small pools, so that pods find cards of the vendor that they request"""

pools = st.sampled_from(POOLS)

# -- pods

NODE_POLICIES = ("binpack", "spread", "nonsense")
DEVICE_POLICIES = (
    "binpack", "spread", "mutex", "numa", "topology-aware", "nonsense",
    "binpack,numa", "numa,binpack", "spread , mutex", "numa,topology-aware", "mutex,topology-aware,binpack",
)  # fmt: skip
WEIGHTS = ("slot=1,core=1,memory=3", "slot=0,core=0,memory=1")

_SETTINGS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "NVIDIA": (
        ("nvidia.com/use-gputype", "A100"),
        ("nvidia.com/use-gputype", "t4,V100"),
        ("nvidia.com/nouse-gputype", "T4"),
        ("nvidia.com/vgpu-mode", "hami-core"),
        ("nvidia.com/vgpu-mode", "mig"),
    ),
    "AMD": (("amd.com/use-gputype", "mi300x"),),
    "Metax-SGPU": (
        ("metax-tech.com/sgpu-qos-policy", "fixed-share"),
        ("metax-tech.com/sgpu-qos-policy", "best-effort"),
        ("metax-tech.com/sgpu-app-class", "online"),
        ("metax-tech.com/sgpu-app-class", "offline"),
        ("metax-tech.com/sgpu-topology-aware", "true"),
    ),
}
_ASCEND_SETTINGS = (("huawei.com/vnpu-mode", "hami-core"),)


@st.composite
def rule_limits(draw: st.DrawFn) -> tuple[tuple[str, int], ...]:
    """What annotations set for the card rules (`PodRequest.limits`), mostly nothing."""
    drawn = ((setting, draw(st.sampled_from((0, 0, 1, 2)))) for setting in sorted(SETTINGS))
    return tuple((setting, number) for setting, number in drawn if number)


@st.composite
def wishes(draw: st.DrawFn, vendors: Sequence[str]) -> dict[str, str]:
    """A pod's annotations: policies, and sometimes constraints of the vendors."""
    found: dict[str, str] = {}
    for key, values in (
        (keys.NODE_POLICY, NODE_POLICIES),
        (keys.DEVICE_POLICY, DEVICE_POLICIES),
        (keys.NUMA_BIND, ("true", "false", "false")),
        (keys.SCORING_WEIGHTS, WEIGHTS),
    ):
        value = draw(st.sampled_from(("", *values)))
        if value:
            found[key] = value
    found |= {keys.card_rule(setting): str(number) for setting, number in draw(rule_limits())}
    vendor = draw(st.sampled_from(vendors))
    own = _SETTINGS.get(vendor, _ASCEND_SETTINGS if vendor.startswith("Ascend") else ())
    picky = draw(st.booleans())
    if own and picky:
        settings: list[tuple[str, str]] = draw(st.lists(st.sampled_from(own), max_size=2))
        found.update(settings)
    if draw(st.integers(0, 4)) == 0:
        uuids = [uuid_of(node, vendor, i) for node in NODES[:3] for i in range(3)]
        keys_of = VENDORS[vendor].keys
        for key in draw(st.lists(st.sampled_from((*keys_of.use_uuids, *keys_of.avoid_uuids) or ("",)), max_size=1)):
            found[key] = ",".join(draw(st.lists(st.sampled_from(uuids), min_size=1, max_size=5)))
    return found


@st.composite
def limits(draw: st.DrawFn, vendor: str) -> dict[str, str | int | float]:
    """What one container requests of one vendor, as resources."""
    make, names = make_of(vendor), VENDORS[vendor].names
    factor = max(VENDORS[vendor].quota_factor, 1)
    amounts = {
        names.count: draw(st.sampled_from(make.asked_count)),
        names.memory: draw(st.sampled_from(make.asked_memory)) // factor,
        names.cores: draw(st.sampled_from(make.asked_cores)),
    }
    if vendor == "NVIDIA" and draw(st.integers(0, 2)) == 0:
        amounts |= {names.memory: 0, names.others[0]: draw(st.sampled_from((1, 25, 50, 100)))}
    if vendor == "AWSNeuron" and amounts[names.cores]:
        del amounts[names.count]
    return {name: str(value) for name, value in amounts.items() if name and value}


@st.composite
def containers(draw: st.DrawFn, vendors: Sequence[str], name: str, role: Role) -> Container:
    least = 0 if role is Role.APP and draw(st.integers(0, 4)) == 0 else 1
    asked = draw(st.lists(st.sampled_from(vendors), min_size=least, max_size=2, unique=True))
    resources: dict[str, str | int | float] = {}
    for vendor in asked:
        resources |= draw(limits(vendor))
    return Container(
        name=name,
        resources=ResourceRequirements(limits=resources),
        restart_policy="Always" if role is Role.SIDECAR else None,
    )


ROLES = (
    (Role.APP,),
    (Role.APP,),
    (Role.APP,),
    (Role.APP, Role.APP),
    (Role.INIT, Role.APP),
    (Role.SIDECAR, Role.APP),
    (Role.INIT, Role.SIDECAR, Role.INIT, Role.APP, Role.APP),
)


@st.composite
def wire_pods(draw: st.DrawFn, vendors: Sequence[str], uid: str) -> Pod:
    """An unbound pod as a user writes it, with a request that can be read."""
    roles = draw(st.sampled_from(ROLES))
    drawn = [draw(containers(vendors, f"c{i}", role)) for i, role in enumerate(roles)]
    return Pod(
        metadata=Metadata(
            name=uid, namespace=draw(st.sampled_from(NAMESPACES)), uid=uid, annotations=draw(wishes(vendors))
        ),
        spec=PodSpec(
            init_containers=[c for c, role in zip(drawn, roles, strict=True) if role is not Role.APP],
            containers=[c for c, role in zip(drawn, roles, strict=True) if role is Role.APP],
        ),
    )


@st.composite
def readable_pods(draw: st.DrawFn, vendors: Sequence[str], uid: str) -> tuple[Pod, PodRequest]:
    """A pod and its request; pods with requests that a vendor refuses are skipped."""
    pod = draw(wire_pods(vendors, uid))
    request = pod_request(pod, VENDORS)
    assume(isinstance(request, PodRequest))
    assert isinstance(request, PodRequest)
    return pod, request


def pod_requests(vendors: Sequence[str], uid: str) -> st.SearchStrategy[PodRequest]:
    return readable_pods(vendors, uid).map(lambda pair: pair[1])


@st.composite
def foreign_pods(draw: st.DrawFn, vendors: Sequence[str], uid: str) -> PodFacts:
    """A pod placed by another scheduler, by any rules: it may overcommit cards or hold cards that do not exist."""
    vendor = draw(st.sampled_from(vendors))
    node = draw(st.sampled_from(NODES))
    roles = draw(st.sampled_from(ROLES))
    grants = [[_foreign_grant(draw, node, vendor)] if draw(st.booleans()) else [] for _ in roles]
    stray = draw(st.integers(0, 9)) == 0
    slot = MIG_PROFILES[0].placements[draw(st.integers(0, 6))]
    return PodFacts(
        uid=uid,
        namespace=draw(st.sampled_from(NAMESPACES)),
        name=uid,
        node=node,
        spans=tuple(Span(role, role is Role.INIT and draw(st.booleans())) for role in roles),
        grants={vendor: tuple(map(tuple, grants))},
        stray_mig=((uuid_of(node, vendor, draw(st.integers(0, 4))), _slot(slot)),) if stray else (),
        problem="its allocation cannot be read" if draw(st.integers(0, 14)) == 0 else "",
    )


def _foreign_grant(draw: st.DrawFn, node: str, vendor: str) -> Grant:
    make = make_of(vendor)
    return Grant(
        uuid=uuid_of(node, vendor, draw(st.integers(0, 4))),
        vendor=vendor,
        memory=draw(st.sampled_from(make.asked_memory)),
        cores=draw(st.sampled_from(make.asked_cores)),
        mig=_slot(MigPlacement(draw(st.integers(0, 6)), 1)) if draw(st.integers(0, 4)) == 0 else None,
    )


def _slot(place: MigPlacement) -> MigSlot:
    return MigSlot(MIG_PROFILES[0].name, place)


# -- quotas


@st.composite
def quotas(draw: st.DrawFn, vendors: Sequence[str]) -> QuotaFacts:
    """A quota that may be ample, binding for some nodes only, short, or closed."""
    found: dict[str, int] = {}
    for vendor in vendors:
        rules = VENDORS[vendor]
        if rules.quota_memory:
            memory = draw(st.sampled_from((None, 0, 4096, 10000, 17000, 40000, 10**6)))
            if memory is not None:
                found[rules.quota_memory] = memory // rules.quota_factor
        if rules.quota_cores:
            cores = draw(st.sampled_from((None, None, 0, 60, 120, 1000)))
            if cores is not None:
                found[rules.quota_cores] = cores
    return QuotaFacts(draw(st.sampled_from(NAMESPACES)), draw(st.sampled_from(("first", "second"))), found)
