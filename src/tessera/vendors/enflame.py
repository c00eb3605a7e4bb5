"""Enflame: whole cards (key `GCU`), and hard partitions of cards (DRS, key `Enflame`).

A node only reports how many whole cards it has; these are never shared. Partitions follow the profiles that the node
offers in an annotation: a container names a profile (`3g.24gb`: three slices, 24 GB) by its size in slices, or the
memory and cores that it needs, and gets one partition of one card. A profile's share of the cores follows from its size
and that of the largest profile. A grant records memory and cores only; the slices that it takes follow from these and
the card's profiles, so a replay counts the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import msgspec
from msgspec import field

from tessera.core.fit import card_checks
from tessera.core.fit.device_rules import Ask
from tessera.core.model.devices import Device
from tessera.core.model.grants import Grant, Grants, Use
from tessera.core.model.misfits import CardMisfit, Misfit, Reason
from tessera.core.model.node_info import Card
from tessera.core.model.requests import WHOLE_CARD_CORES, Request
from tessera.vendors.base import AnnotationKeys, Bound, Family, NodeProblem, ResourceNames, Section, Switches, Vendor
from tessera.vendors.drafts import BadRequest, ContainerDraft, Denied, PodDraft, Resources
from tessera.vendors.parts.capacity import MAX_CARDS, numbered_cards
from tessera.vendors.parts.card_choice import first_fit, refuse_unpaid, unused_card
from tessera.vendors.parts.card_shares import memory_of, whole_cards
from tessera.wire.errors import WireError
from tessera.wire.golang import INT32_MAX
from tessera.wire.objects import Node
from tessera.wire.quantity import Whole, read

MIB_PER_GB = 1024
CORES = 100
"""per cent of a card"""
PROFILES = "profiles"
"""names and ids of the profiles; plain values, so that a registration can be recorded and read back"""
REMEMBERED = 64
"""sets of profiles; the nodes of a cluster have few different ones"""
MINOR = "minor"
INDEX = "index"

_NAME = re.compile(r"([0-9]{1,6})g\.([0-9]{1,6})gb", re.ASCII)

CAPACITY = "enflame.com/gcu-drs-capacity"
SURELY_MIB = 2
"""factor: a memory request above this many times the largest profile's GB is in MiB, any other in GB"""

PROFILE_NAME = "profileName"
PROFILE_ID = "profileID"


@dataclass(frozen=True, slots=True, order=True)
class Profile:
    """Profiles sort by size, then by memory, so the first that fits is the smallest."""

    size: int
    """slices"""
    memory: int
    """MiB"""
    name: str
    id: str

    def cores(self, max_slice: int) -> int:
        """Per cent of the card, rounded up."""
        return -(-self.size * CORES // max_slice)


class _DeviceSpec(msgspec.Struct):
    index: str | int = ""
    minor: str | int = ""
    capacity: str | int | float = ""


class _Capacity(msgspec.Struct):
    devices: list[_DeviceSpec] | None = None
    profiles: dict[str, str | int] | None = None


def devices_from(text: str, *, node: str, vendor: str) -> tuple[Device, ...]:
    """The cards that the annotation offers, all with the same profiles."""
    try:
        found = msgspec.json.decode(text, type=_Capacity)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WireError(str(error)) from error
    specs = found.devices or []
    if len(specs) > MAX_CARDS:
        raise WireError(f"{len(specs)} devices, at most {MAX_CARDS} are believed")
    profiles = read_profiles(found.profiles or {})
    if specs and not profiles:
        raise WireError("no profile of the form <slices>g.<memory>gb")
    devices = tuple(_device(spec, position, profiles, node, vendor) for position, spec in enumerate(specs))
    if len({device.uuid for device in devices}) < len(devices):
        raise WireError("two devices have the same index")
    return devices


def read_profiles(named: Mapping[str, str | int]) -> tuple[Profile, ...]:
    """Profiles in order; names that are not profiles are skipped."""
    found = []
    for name, ident in named.items():
        match = _NAME.fullmatch(name.strip().lower())
        if match:
            size, memory = int(match[1]), int(match[2]) * MIB_PER_GB
            # Percentages could not tell larger sizes apart.
            if 0 < size <= CORES and memory > 0:
                found.append(Profile(size, memory, name, str(ident)))
    return tuple(sorted(found))


def profiles_of(device: Device) -> tuple[Profile, ...]:
    named: Mapping[str, str] = device.custom.get(PROFILES, {})
    return _profiles(tuple(named.items()))


@lru_cache(maxsize=REMEMBERED)
def _profiles(named: tuple[tuple[str, str], ...]) -> tuple[Profile, ...]:
    return read_profiles(dict(named))


def max_slice_of(device: Device) -> int:
    return max((profile.size for profile in profiles_of(device)), default=1)


def slices_of(device: Device, *, memory: int, cores: int) -> int:
    """How many slices a grant of this memory and these cores takes.

    Exactly the profile's size; if the profiles have changed, enough for both amounts.
    """
    profiles, largest = profiles_of(device), max_slice_of(device)
    for profile in profiles:
        if profile.memory == memory and profile.cores(largest) == cores:
            return profile.size
    by_memory = next((profile.size for profile in profiles if profile.memory >= memory), largest)
    return max(by_memory, cores * largest // CORES, 1)


def _device(spec: _DeviceSpec, position: int, profiles: tuple[Profile, ...], node: str, vendor: str) -> Device:
    named = {profile.name: profile.id for profile in profiles}
    index = _number(spec.index)
    if index is None:
        index = position
    slots = _number(spec.capacity)
    if not slots:
        raise WireError(f"device {index}: {spec.capacity!r:.40} is not a number of slices")
    return Device(
        uuid=f"{node}-enflame-drs-{index}",
        vendor=vendor,
        index=index,
        slots=slots,
        memory=max(profile.memory for profile in profiles),
        cores=CORES,
        model=vendor,
        custom={MINOR: str(spec.minor).strip() or str(index), INDEX: str(index), PROFILES: named},
    )


def _number(value: str | int | float) -> int | None:
    """A whole number from 0 that fits a counter, in any spelling; None otherwise."""
    if isinstance(value, str):
        value = value.strip()
        if not (value.isascii() and value.isdigit() and len(value) <= len(str(INT32_MAX))):
            return None
    elif isinstance(value, float) and not value.is_integer():
        return None
    number = int(value)
    return number if 0 <= number <= INT32_MAX else None


@dataclass(frozen=True, slots=True)
class DrsRequest(Request):
    """`memory` is as written, in GB or MiB: the card's profiles tell which."""

    size: int = 0
    """slices of the profile; 0 = the smallest that has the memory and the cores"""

    def memory_on(self, total: int) -> int:
        """The most that it can take: a profile may be larger than the request."""
        return total

    def choose(self, device: Device) -> Profile | None:
        profiles, largest = profiles_of(device), max_slice_of(device)
        if self.size:
            return next((profile for profile in profiles if profile.size == self.size), None)
        in_mib = self.memory > SURELY_MIB * device.memory // MIB_PER_GB
        memory = self.memory if in_mib else self.memory * MIB_PER_GB
        return next((p for p in profiles if p.memory >= memory and p.cores(largest) >= self.cores), None)


class Drs(Vendor):
    key = "Enflame"
    request_type = DrsRequest
    keys = AnnotationKeys(
        register=CAPACITY,
        allocated="hami.io/enflame-vgpu-devices-allocated",
        use_uuids=("enflame.com/use-gpuuuid",),
        avoid_uuids=("enflame.com/nouse-gpuuuid",),
    )

    def mutate(self, container: ContainerDraft, pod: PodDraft) -> bool | Denied:
        """Copy values between limits and requests: the apiserver requires them to be equal."""
        names = self._asked(container)
        for name in names:
            value = container.limits.get(name, container.requests.get(name, 0))
            match read(value):
                case Whole(cores) if name == self.names.cores and not 0 < cores <= CORES:
                    return Denied(f"{name} must be in range (0,{CORES}]")
                case Whole(number) if number <= 0:
                    return Denied(f"{name} must be greater than 0")
            container.limits.setdefault(name, value)
            container.requests.setdefault(name, value)
        return bool(names)

    def _asked(self, resources: Resources) -> list[str]:
        """The resources that count: the size of a profile, else memory and cores."""
        if resources.text(self.names.count) is not None:
            return [self.names.count]
        return [name for name in (self.names.memory, self.names.cores) if resources.text(name) is not None]

    def least_memory(self, annotations: Mapping[str, str]) -> int:
        return 0

    def request(self, resources: Resources) -> Request | BadRequest | None:
        names = self._asked(resources)
        if not names:
            return None
        if names == [self.names.count]:
            size = resources.amount(self.names.count, least=1, unit="slices")
            if isinstance(size, BadRequest):
                return size
            return DrsRequest(vendor=self.key, count=1, size=size or 0)
        memory = memory_of(resources, self.names.memory)
        if isinstance(memory, BadRequest):
            return memory
        cores = resources.amount(self.names.cores, least=1, most=CORES, unit="per cent")
        if isinstance(cores, BadRequest):
            return cores
        if memory == 0 and self.names.memory in names:
            return BadRequest(self.names.memory, "0", "write a number of GB from 1, or leave it out")
        return DrsRequest(vendor=self.key, count=1, memory=memory, cores=cores or 0)

    def decode_cards(self, text: str, node: Node) -> tuple[Device, ...]:
        return devices_from(text, node=node.name, vendor=self.key)

    def fit(self, ask: Ask) -> Grants | Misfit:
        return first_fit(self, ask, lambda card: self._judge(card, ask))

    def _judge(self, card: Card, ask: Ask) -> Grant | CardMisfit:
        device = card.device
        profile = as_drs(ask.request).choose(device)
        if profile is None:
            return CardMisfit(device.uuid, Reason.MODE_NOT_FIT)
        refusal = card_checks.refuse_identity(self, ask, card) or _refuse_slices(card, profile)
        refusal = refusal or card_checks.refuse_sharing(self, ask, card)
        if refusal is not None:
            return refusal
        grant = Grant(
            uuid=device.uuid,
            vendor=self.key,
            memory=profile.memory,
            cores=profile.cores(max_slice_of(device)),
            index=device.index,
            slots=profile.size,
            custom={
                PROFILE_NAME: profile.name,
                PROFILE_ID: profile.id,
                INDEX: device.custom[INDEX],
                MINOR: device.custom[MINOR],
            },
        )
        # Memory and cores run out together with the slices, unless the profiles have changed.
        short = card_checks.refuse_memory(card, grant.memory) or card_checks.refuse_cores(card, grant.cores)
        return refuse_unpaid(ask, card, grant) or short or grant

    def charge(self, device: Device, grant: Grant) -> Use:
        slots = slices_of(device, memory=grant.memory, cores=grant.cores)
        return Use(slots=slots, memory=grant.memory, cores=grant.cores)

    def annotations(self, bound: Bound) -> dict[str, str]:
        written = super().annotations(bound)
        firsts = [(position, grants[0]) for position, grants in enumerate(bound.grants) if grants]
        if not firsts:
            return written
        _, first = firsts[0]
        assigned = {
            bound.pod.containers[position].name: {
                "allocated": False,
                "request": grant.slots,
                **{key: grant.custom[key] for key in (PROFILE_ID, PROFILE_NAME) if grant.custom[key]},
            }
            for position, grant in firsts
        }
        return written | {
            "enflame.com/gcu-assigned": "false",
            "enflame.com/gcu-assigned-time": bound.nanoseconds,
            "enflame.com/gcu-assigned-index": first.custom[INDEX],
            "enflame.com/gcu-assigned-id": first.custom[INDEX],
            "enflame.com/gcu-assigned-minor": first.custom[MINOR],
            "enflame.com/gcu-request-size": str(first.slots),
            "assigned-containers": msgspec.json.encode(dict(sorted(assigned.items()))).decode(),
        }


def as_drs(request: Request) -> DrsRequest:
    """A plain request, which this vendor did not parse itself, names memory and cores."""
    if isinstance(request, DrsRequest):
        return request
    return DrsRequest(vendor=request.vendor, count=request.count, memory=request.memory, cores=request.cores)


def _refuse_slices(card: Card, profile: Profile) -> CardMisfit | None:
    free = card.device.slots - card.used
    if free >= profile.size:
        return None
    return CardMisfit(
        card.device.uuid, Reason.CARD_SLOTS_EXHAUSTED, asked=profile.size, free=free, total=card.device.slots
    )


CARD_MEMORY = 100
"""charged for a whole card; the node does not report it"""


class Gcu(Vendor):
    key = "GCU"
    keys = AnnotationKeys(
        to_allocate="hami.io/enflame-gcu-devices-to-allocate",
        allocated="hami.io/enflame-gcu-devices-allocated",
    )

    def request(self, resources: Resources) -> Request | BadRequest | None:
        return whole_cards(resources, self.names.count, vendor=self.key, memory=CARD_MEMORY, cores=WHOLE_CARD_CORES)

    def devices(self, node: Node) -> tuple[Device, ...] | NodeProblem:
        return numbered_cards(self, node, stem="GCU", memory=CARD_MEMORY)

    def fit(self, ask: Ask) -> Grants | Misfit:
        return first_fit(self, ask, lambda card: unused_card(self, ask, card))


DRS_NAME = "enflame.com/drs-gcu"
MEMORY_NAME = "enflame.com/gcu-memory"
CORES_NAME = "enflame.com/gcu-core"


class EnflameSection(Section, frozen=True, kw_only=True):
    gcu: str = field(default="", name="resourceNameGCU")
    drs: str = field(default="", name="resourceNameDRSGCU")
    memory: str = field(default="", name="resourceNameGCUMemory")
    cores: str = field(default="", name="resourceNameGCUCore")
    vgcu: str = field(default="", name="resourceNameVGCU")
    """older name of `drs`"""
    vgcu_percentage: str = field(default="", name="resourceNameVGCUPercentage")
    """used by the shared mode before HAMi v2.10; ignored here"""


CHART = EnflameSection(gcu="enflame.com/gcu", drs=DRS_NAME, memory=MEMORY_NAME, cores=CORES_NAME)


def build(section: EnflameSection, switches: Switches) -> list[Vendor]:
    if section == EnflameSection():
        # Absent from the file, as where an administrator left this vendor off: nothing is claimed.
        return [Gcu(ResourceNames()), Drs(ResourceNames())]
    partitions = ResourceNames(
        count=section.drs or section.vgcu or DRS_NAME,
        memory=section.memory or MEMORY_NAME,
        cores=section.cores or CORES_NAME,
    )
    return [Gcu(ResourceNames(count=section.gcu)), Drs(partitions)]


FAMILY = Family(title="Enflame", section="enflame", chart=CHART, build=build)
