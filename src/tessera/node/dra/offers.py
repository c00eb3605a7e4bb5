"""What the node's cards offer to ResourceClaims, and the ResourceSlices that say so: pure, from fleet and settings.

    hami-core, mps   one device per card, shared: each claim consumes `memory`, `cores` and one of `shares`
    none             one device per card, for one claim at a time
    mig              one device per profile and place; all of a card consume its counters, one per memory slice

A device is named after its card's uuid, which never changes, not after its index. Which cards are offered, and with how
much memory, is the rule of the classic registration (`registration.devices`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from tessera.core.fit.topology import linked_groups
from tessera.core.model.devices import MIG, Device, MigSlot
from tessera.core.model.requests import WHOLE_CARD_CORES
from tessera.host.cards import MIB, CardFacts, GpuInstanceProfile, Links
from tessera.node.fleet import CardState, Fleet
from tessera.node.registration.devices import NO_SHARING, allowed_profiles, model_of, registrable
from tessera.node.settings import AgentSettings
from tessera.wire.quantity import binary_text, decimal_text
from tessera.wire.resource_api import (
    CORDONED,
    CORES,
    HELD,
    MANAGED,
    MANAGED_BY_TESSERA,
    MAX_COUNTER_SETS,
    MAX_DEVICES,
    MEMORY,
    NO_SCHEDULE,
    SHARES,
    UNHEALTHY,
    Attribute,
    Capacity,
    Counter,
    CounterConsumption,
    CounterSet,
    RequestPolicy,
    RequestRange,
    SliceDevice,
    Taint,
)

STANDARD = "resource.kubernetes.io"
"""domain of the attributes that drivers share"""
MAX_TEXT = 64
"""characters of an attribute"""
ARCHITECTURES: tuple[tuple[tuple[int, int], str], ...] = (
    ((10, 0), "Blackwell"),
    ((9, 0), "Hopper"),
    ((8, 9), "Ada Lovelace"),
    ((8, 0), "Ampere"),
    ((7, 5), "Turing"),
    ((7, 0), "Volta"),
    ((6, 0), "Pascal"),
    ((5, 0), "Maxwell"),
)
"""by the first compute capability of each, newest first"""
_ONE = decimal_text(1)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Offer:
    """One device of the pool, and what a claim that gets it gets."""

    name: str
    card: CardState
    memory: int
    """MiB of all of it, after scaling"""
    cores: int
    mode: str = ""
    """in which its card is shared"""
    shared: bool = False
    """whether several claims may have parts of it"""
    shares: int = 1
    profile: GpuInstanceProfile | None = None
    slot: MigSlot | None = None
    """of a MIG instance, with its profile"""

    @property
    def uuid(self) -> str:
        return self.card.facts.uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrounding:
    """What is known of the cards besides themselves, each by uuid."""

    cordoned: Collection[str] = ()
    held: Collection[str] = ()
    """cards that pods without claims hold"""
    managed: bool = False
    """whether Tessera's scheduler allocates all of them"""
    nvlink_groups: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class SliceContent:
    """What one ResourceSlice says: devices or counters, never both."""

    devices: tuple[SliceDevice, ...] | None = None
    counters: tuple[CounterSet, ...] | None = None


def offers(fleet: Fleet, settings: AgentSettings) -> tuple[Offer, ...]:
    """All devices of the node in order of cards."""
    states = {card.facts.uuid: card for card in fleet}
    listed = registrable(fleet, settings).devices
    return tuple(chain.from_iterable(_offers(each, states[each.uuid], settings) for each in listed))


def _offers(device: Device, card: CardState, settings: AgentSettings) -> Iterator[Offer]:
    name = device.uuid.lower()
    if device.mode != MIG:
        shared = device.mode != NO_SHARING
        yield Offer(name, card, device.memory, device.cores, device.mode, shared=shared, shares=device.slots)
        return
    facts = card.facts
    known = {each.name: each for each in device.mig_profiles}
    profiles = allowed_profiles(facts.mig_profiles, model=model_of(facts), allowances=settings.mig_allowances)
    for profile in profiles:
        label = profile.name.replace(".", "-").replace("+", "-")
        for place in profile.placements:
            yield Offer(
                f"{name}-{label}-{place.start}",
                card,
                known[profile.name].memory,
                known[profile.name].cores,
                device.mode,
                profile=profile,
                slot=MigSlot(profile.name, place),
            )


# -- ResourceSlices


def slice_contents(found: Iterable[Offer], around: Surrounding) -> tuple[SliceContent, ...]:
    """The node's ResourceSlices in order: counters first. None at all for a node without devices."""
    listed = tuple(found)
    sets = dict.fromkeys(each.uuid for each in listed if each.slot is not None)
    counters = [_counter_set(uuid, [each for each in listed if each.uuid == uuid]) for uuid in sets]
    devices = [_device(each, around) for each in listed]
    return (
        *(SliceContent(counters=part) for part in _batches(counters, MAX_COUNTER_SETS)),
        *(SliceContent(devices=part) for part in _batches(devices, MAX_DEVICES)),
    )


def _batches(items: Sequence[T], size: int) -> Iterator[tuple[T, ...]]:
    return (tuple(items[start : start + size]) for start in range(0, len(items), size))


def nvlink_groups(uuids: Sequence[str], links: Mapping[tuple[str, str], Links]) -> dict[str, str]:
    """Cards that NVLinks join, directly or through others, have the same text; a card without links has none.

    Both ends must see the link, as for pair scores."""
    none = Links(None)

    def is_linked(one: str, other: str) -> bool:
        there, back = links.get((one, other), none), links.get((other, one), none)
        return bool((there.direct and back.direct) or (there.switched and back.switched))

    groups = linked_groups(uuids, lambda uuid: (other for other in uuids if is_linked(uuid, other)))
    return {uuid: f"nvlink-{number}" for uuid, number in groups.items()}


def _counter_set(uuid: str, found: Collection[Offer]) -> CounterSet:
    counters = {name: Counter(value=_ONE) for each in found for name in _slices_of(each)}
    for each in found:
        if each.profile is not None and (limit := _limit(each.profile)):
            counters[limit] = Counter(value=decimal_text(each.profile.instances))
    return CounterSet(name=uuid.lower(), counters=counters)


def _slices_of(offer: Offer) -> list[str]:
    place = offer.slot.placement if offer.slot is not None else None
    return (
        [] if place is None else [f"memory-slice-{number}" for number in range(place.start, place.start + place.size)]
    )


def _limit(profile: GpuInstanceProfile) -> str:
    """The counter of a profile of which a card has fewer than places, e.g. because of its media engines."""
    return f"profile-{profile.profile_id}" if profile.instances < len(profile.placements) else ""


def _device(offer: Offer, around: Surrounding) -> SliceDevice:
    limit = "" if offer.profile is None else _limit(offer.profile)
    counters = {name: Counter(value=_ONE) for name in (*_slices_of(offer), limit) if name}
    taints = tuple(_taints(offer, around))
    return SliceDevice(
        name=offer.name,
        attributes=dict(_attributes(offer, around)),
        capacity=_capacity(offer),
        consumes_counters=(CounterConsumption(counter_set=offer.uuid.lower(), counters=counters),)
        if counters
        else None,
        taints=taints or None,
        allow_multiple_allocations=True if offer.shared else None,
    )


def _taints(offer: Offer, around: Surrounding) -> Iterator[Taint]:
    if around.managed:
        yield Taint(key=MANAGED, value=MANAGED_BY_TESSERA, effect=NO_SCHEDULE)
    if not offer.card.healthy:
        yield Taint(key=UNHEALTHY, effect=NO_SCHEDULE)
    if offer.uuid in around.cordoned:
        yield Taint(key=CORDONED, effect=NO_SCHEDULE)
    if offer.uuid in around.held:
        yield Taint(key=HELD, effect=NO_SCHEDULE)


def _capacity(offer: Offer) -> dict[str, Capacity]:
    memory, cores = binary_text(offer.memory * MIB), decimal_text(offer.cores)
    if not offer.shared:
        return {MEMORY: Capacity(value=memory), CORES: Capacity(value=cores)}
    mib = binary_text(MIB)
    return {
        # A request that names no memory gets all of it, so that nothing else fits beside it.
        MEMORY: Capacity(
            value=memory,
            request_policy=RequestPolicy(default=memory, valid_range=RequestRange(min=mib, max=memory, step=mib)),
        ),
        # As with nvidia.com/gpucores: a request that names none is not limited and takes none away.
        CORES: Capacity(
            value=cores,
            request_policy=RequestPolicy(
                default="0",
                valid_range=RequestRange(min="0", max=decimal_text(min(offer.cores, WHOLE_CARD_CORES)), step=_ONE),
            ),
        ),
        SHARES: Capacity(
            value=decimal_text(offer.shares), request_policy=RequestPolicy(default=_ONE, valid_values=(_ONE,))
        ),
    }


def _attributes(offer: Offer, around: Surrounding) -> Iterator[tuple[str, Attribute]]:
    facts = offer.card.facts
    yield "type", Attribute(string="gpu" if offer.slot is None else "mig")
    yield "uuid", Attribute(string=facts.uuid)
    yield "index", Attribute(number=facts.index)
    yield "mode", Attribute(string=offer.mode)
    yield "model", Attribute(string=facts.name[:MAX_TEXT])
    if offer.slot is not None:
        yield "profile", Attribute(string=offer.slot.profile)
    if facts.numa is not None:
        yield "numaNode", Attribute(number=facts.numa)
    if facts.compute_capability is not None:
        yield "architecture", Attribute(string=architecture(facts.compute_capability))
        yield "computeCapability", Attribute(version=semantic(facts.compute_capability))
    if version := semantic(numbers(facts.driver_version)):
        yield "driverVersion", Attribute(version=version)
    if facts.cuda_version is not None:
        yield "cudaVersion", Attribute(version=semantic(facts.cuda_version))
    if group := (around.nvlink_groups or {}).get(facts.uuid):
        yield "nvlinkGroup", Attribute(string=group)
    if facts.pcie_root:
        yield f"{STANDARD}/pcieRoot", Attribute(string=facts.pcie_root)
    if address := _pci_address(facts):
        yield f"{STANDARD}/pciBusID", Attribute(string=address)


def architecture(capability: tuple[int, int]) -> str:
    """NVIDIA's name of the generation."""
    return next((name for first, name in ARCHITECTURES if capability >= first), "unknown")


def numbers(version: str) -> tuple[int, ...]:
    """The parts of a version; none if one of them is no number."""
    parts = version.split(".")
    return tuple(map(int, parts)) if all(each.isascii() and each.isdigit() for each in parts) else ()


def semantic(parts: tuple[int, ...]) -> str:
    """A version as the API wants it: three numbers without leading zeros. Empty for no parts."""
    return ".".join(str(each) for each in (*parts, 0, 0)[:3]) if parts else ""


def _pci_address(facts: CardFacts) -> str:
    """As the kernel writes it; empty if unknown."""
    domain, colon, rest = facts.bus_id.lower().partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest}" if colon else ""
    except ValueError:
        return ""
