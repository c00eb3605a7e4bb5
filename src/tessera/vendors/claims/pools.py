"""From ResourceSlices to what the core knows of cards: pure.

A pool counts only if all slices of its newest generation are there. Devices without the taint `managed` are allocated
by another scheduler, so they are known by name, but not published to the core.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tessera.core.model.devices import NOTHING, Attribute, Device, MigPlacement, MigSlot, Published
from tessera.core.model.grants import Grant
from tessera.wire import resource_api
from tessera.wire.cel.selectors import OWN_ATTRIBUTES
from tessera.wire.errors import quoted
from tessera.wire.quantity import Whole, read
from tessera.wire.resource_api import CORES, DRIVER, MANAGED, MEMORY, ResourceSlice, SliceDevice

MIB = 2**20
SLICE_COUNTER = "memory-slice-"
"""stem of the counters of a card in MIG mode; the number of the slice follows"""


@dataclass(frozen=True, slots=True)
class PoolDevice:
    """One device of a pool: a card, or a MIG profile at one place of a card."""

    name: str
    uuid: str
    """of the card, as its node registers it"""
    published: Published
    memory: int
    """MiB"""
    cores: int
    slot: MigSlot | None = None
    is_managed: bool = False


@dataclass(frozen=True, slots=True)
class PoolDevices:
    """The devices of one node."""

    name: str
    node: str = ""
    devices: Mapping[str, PoolDevice] = field(default_factory=lambda: NOTHING)
    """by name; empty if there is a problem"""
    problem: str = ""
    """why the pool cannot be used"""

    def device_of(self, grant: Grant) -> PoolDevice | None:
        """The managed device that a grant is of."""
        found = (each for each in self.devices.values() if each.uuid == grant.uuid and each.slot == grant.mig)
        return next((each for each in found if each.is_managed), None)


def pool_devices(slices: Iterable[ResourceSlice]) -> PoolDevices:
    """The devices of one pool of our driver, from all slices that name it."""
    found = list(slices)
    newest = max((each.spec.pool.generation for each in found), default=0)
    current = [each for each in found if each.spec.pool.generation == newest]
    if not current:
        return PoolDevices("", problem="no ResourceSlice")
    pool = current[0].spec.pool
    if len(current) != pool.resource_slice_count:
        text = f"{len(current)} of {pool.resource_slice_count} ResourceSlices of generation {newest} are there"
        return PoolDevices(pool.name, problem=text)
    nodes = {each.spec.node_name or "" for each in current}
    if len(nodes) != 1 or "" in nodes:
        return PoolDevices(pool.name, problem="its ResourceSlices name no node, or several")
    devices: dict[str, PoolDevice] = {}
    for each in current:
        for device in each.spec.devices or ():
            read_device = _device(device)
            if isinstance(read_device, str):
                return PoolDevices(pool.name, problem=f"device {quoted(device.name)}: {read_device}")
            devices[device.name] = read_device
    return PoolDevices(pool.name, nodes.pop(), devices)


def with_published(cards: Iterable[Device], pool: PoolDevices | None) -> tuple[Device, ...]:
    """A node's registered cards with what its pool publishes of them. Without a pool they are not for claims."""
    by_card: dict[str, dict[str, Published]] = {}
    for device in pool.devices.values() if pool is not None else ():
        if device.is_managed:
            profile = "" if device.slot is None else device.slot.profile
            by_card.setdefault(device.uuid, {}).setdefault(profile, device.published)
    return tuple(
        replace(card, published=tuple(sorted(by_card[card.uuid].items()))) if card.uuid in by_card else card
        for card in cards
    )


def _device(device: SliceDevice) -> PoolDevice | str:
    """The device, or what is wrong with it."""
    attributes = {name: _attribute(name, value) for name, value in (device.attributes or {}).items()}
    uuid, profile = attributes.get("uuid"), attributes.get("profile")
    if uuid is None:
        return "it has no uuid"
    capacity: dict[str, int] = {}
    for name, one in (device.capacity or {}).items():
        amount = read(one.value)
        if not isinstance(amount, Whole):
            return f"the capacity {name} is {quoted(str(one.value))}"
        capacity[name] = amount.value
    slot = None
    if profile is not None:
        place = _place(device)
        if place is None:
            return "its place on the card is not known"
        slot = MigSlot(str(profile.value), place)
    known = sorted(each for each in attributes.values() if each is not None)
    published = Published(
        common=tuple(each for each in known if _local(each.name) not in OWN_ATTRIBUTES),
        own=tuple(each for each in known if _local(each.name) in OWN_ATTRIBUTES),
        capacity=tuple(sorted((full_name(name), amount) for name, amount in capacity.items())),
        shared=bool(device.allow_multiple_allocations),
    )
    return PoolDevice(
        name=device.name,
        uuid=str(uuid.value),
        published=published,
        memory=capacity.get(MEMORY, 0) // MIB,
        cores=capacity.get(CORES, 0),
        slot=slot,
        is_managed=any(taint.key == MANAGED for taint in device.taints or ()),
    )


def _local(name: str) -> str:
    """An attribute's name without its domain."""
    return name.rpartition("/")[2]


def _attribute(name: str, value: resource_api.Attribute) -> Attribute | None:
    """None for a value of a type that is not known."""
    for kind, found in (
        ("string", value.string), ("int", value.number), ("bool", value.flag), ("version", value.version)
    ):  # fmt: skip
        if found is not None:
            return Attribute(full_name(name), kind, found)
    return None


def _place(device: SliceDevice) -> MigPlacement | None:
    """Where a MIG device is, from the counters of memory slices that it consumes."""
    numbers = sorted(
        int(name.removeprefix(SLICE_COUNTER))
        for consumed in device.consumes_counters or ()
        for name in consumed.counters
        if name.startswith(SLICE_COUNTER) and name.removeprefix(SLICE_COUNTER).isdigit()
    )
    if not numbers or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        return None
    return MigPlacement(numbers[0], len(numbers))


def full_name(name: str) -> str:
    """An attribute or capacity with its domain, which is the driver's where none is named."""
    return name if "/" in name else f"{DRIVER}/{name}"
