"""What is known about a card, the names of its MIG profiles, and the interface to the hardware.

Sizes are in bytes, as the hardware reports them, before any scaling. A card that cannot be read is a value
(`UnreadableCard`) and never hides the other cards; an exception means that nothing could be read at all. Every method
of these protocols may block. Call them from a thread, one call at a time.

The name of a profile, e.g. `1g.18gb+me`, says what it is: its compute slices, its share of the card's memory, its
special engines. It never depends on the order in which a driver numbers its profiles. Memory is counted in eighths of
the card, rounded to gigabytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from tessera.core.model.devices import MigPlacement

MIB = 2**20
"""bytes"""
MAX_NVLINKS = 18
"""the most links between two cards that schedulers have points for"""

MIB_PER_GIB = 1024
MEMORY_SLICES = 8
"""equal parts that names count a card's memory in, whatever the card"""

ATTRIBUTES: Mapping[int, str] = {
    0x7: "+me",
    0x8: "+me",
    0xA: "+gfx",
    0xB: "+gfx",
    0xC: "+gfx",
    0xD: "-me",
    0xE: "-me",
    0xF: "+me.all",
    0x10: "+me.all",
    0x11: "+gfx",
}
"""by NVML's enumeration of profiles; the others have no special engines"""

NAMED_ALIKE_MIB = 1024
"""between names that different drivers give one profile: a whole A100 80GB is 7g.79gb or 7g.80gb"""

_NAME = re.compile(r"(?:MIG )?([1-9][0-9]?g\.[1-9][0-9]{0,3}gb(?:[+-][a-z.]{1,16})*)\Z", re.ASCII)

_SHAPE = re.compile(r"([0-9]{1,3})g\.([0-9]{1,6})gb(\+me)?", re.ASCII)


class InventoryError(Exception):
    """The hardware cannot be queried at all; the text says what was tried and what failed."""


class CardError(InventoryError):
    """A call failed for one card."""

    def __init__(self, uuid: str, problem: str) -> None:
        super().__init__(f"{uuid}: {problem}")
        self.uuid = uuid
        self.problem = problem


@dataclass(frozen=True, slots=True)
class GpuInstanceProfile:
    """A GPU instance profile that a card supports; `name` is built from its attributes, e.g. `1g.18gb+me`."""

    name: str
    profile_id: int
    """as nvidia-smi numbers profiles, e.g. 19"""
    slices: int
    """compute slices"""
    memory_mib: int
    multiprocessors: int
    instances: int
    """the most that fit on an empty card"""
    placements: tuple[MigPlacement, ...]
    media_extensions: bool = False


@dataclass(frozen=True, slots=True)
class CardFacts:
    """One readable card."""

    uuid: str
    """`GPU-` and 36 characters"""
    index: int
    """as NVML counts; cards are sorted by it"""
    name: str
    """the product name as NVML gives it, e.g. `NVIDIA H200`"""
    minor: int | None = None
    """number of the device node /dev/nvidia<minor>"""
    memory_bytes: int | None = None
    """None if the card does not report it"""
    numa: int | None = None
    bus_id: str = ""
    """PCI address as NVML writes it"""
    pcie_root: str = ""
    """the root complex that it hangs on, as the kernel names it, e.g. `pci0000:3a`; empty if unknown"""
    driver_version: str = ""
    """as NVML gives it, e.g. `580.65.06`; empty if unknown"""
    cuda_version: tuple[int, int] | None = None
    """the latest CUDA that the driver serves"""
    compute_capability: tuple[int, int] | None = None
    mig_capable: bool = False
    mig_enabled: bool = False
    mig_profiles: tuple[GpuInstanceProfile, ...] = ()
    """all profiles, allowed or not, ordered by slices, memory and name"""

    @property
    def memory_mib(self) -> int | None:
        return None if self.memory_bytes is None else self.memory_bytes // MIB


@dataclass(frozen=True, slots=True)
class UnreadableCard:
    """A card that exists but cannot be read, e.g. because it fell off the bus."""

    index: int
    problem: str
    uuid: str | None = None
    """None if not even that could be read"""


Found = CardFacts | UnreadableCard


class TopologyLevel(Enum):
    """The closest common PCIe ancestor of two cards; the values are NVML's."""

    INTERNAL = 0
    SINGLE = 10
    MULTIPLE = 20
    HOST_BRIDGE = 30
    NODE = 40
    SYSTEM = 50


@dataclass(frozen=True, slots=True)
class Links:
    """How one card is connected to another, as that card reports it. Pair scores are computed from it."""

    connection: TopologyLevel | None
    direct: int = 0
    """NVLinks that end at the other card"""
    switched: int = 0
    """NVLinks of this card that end at a switch"""


@dataclass(frozen=True, slots=True)
class CardEvent:
    """An event that the driver reported."""

    uuid: str | None
    """of the card; None if the driver does not say, so the event concerns all cards"""
    xid: int | None = None
    """None for ECC events"""
    uncorrectable: bool = False
    """a double-bit ECC error"""
    gpu_instance: int | None = None
    compute_instance: int | None = None


class Inventory(Protocol):
    """Reads the cards and their events."""

    def scan(self) -> list[Found]:
        """Returns all cards in order of index; no uuid occurs twice. Raises InventoryError."""
        ...

    def links(self, uuids: Sequence[str]) -> dict[tuple[str, str], Links]:
        """Returns the links of every ordered pair. A CardError names the card that could not be read."""
        ...

    def listen(self, uuids: Sequence[str]) -> dict[str, str]:
        """Starts collecting events of exactly these cards. Returns why a card cannot be listened to, by uuid.

        A card that supports no events is no problem and is not in the result.
        """
        ...

    def wait(self, timeout: float) -> CardEvent | None:
        """Returns the next event, or None after `timeout` seconds. Raises InventoryError."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A GPU instance, with its compute instance if it has one."""

    uuid: str
    """of the card"""
    gpu_instance: int
    profile_id: int
    placement: MigPlacement
    compute_instance: int | None = None
    mig_uuid: str | None = None
    divided: bool = field(default=False, compare=False)
    """whether its compute instances are smaller than it; never true for instances that the agent created"""


class MigHardware(Protocol):
    """What dynamic MIG needs. All methods raise InventoryError."""

    def mig_enabled(self, uuid: str) -> bool: ...

    def enable_mig(self, uuid: str) -> None:
        """Takes effect at once. Raises CardError if the card would need a reset."""
        ...

    def disable_mig(self, uuid: str) -> None: ...

    def instances(self, uuid: str) -> list[MigInstance]: ...

    def create(self, uuid: str, profile: GpuInstanceProfile, placement: MigPlacement) -> MigInstance:
        """Creates a GPU instance at exactly this placement, with one compute instance over all of it, or nothing."""
        ...

    def destroy(self, instance: MigInstance) -> None: ...

    def is_busy(self, uuid: str) -> bool:
        """Whether a process uses the card or one of its instances; True if that cannot be determined."""
        ...


class ComputeMode(Enum):
    """How many processes may use a card at once; the values are NVML's."""

    DEFAULT = 0
    PROHIBITED = 2
    EXCLUSIVE_PROCESS = 3


class ComputeModes(Protocol):
    """What MPS needs. Both methods raise InventoryError."""

    def compute_mode(self, uuid: str) -> ComputeMode: ...

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None: ...


class Hardware(Inventory, MigHardware, ComputeModes, Protocol):
    """Everything that the agent needs of a node's cards."""


def profile_name(*, slices: int, memory_mib: int, card_mib: int, attribute: str = "") -> str:
    """Returns the name of a profile with `memory_mib` on a card with `card_mib`."""
    eighths = min(_divided_up(MEMORY_SLICES * memory_mib, card_mib), MEMORY_SLICES)
    card_gib = _divided_up(card_mib, MIB_PER_GIB)
    # Half a gigabyte rounds up.
    gigabytes = (2 * eighths * card_gib + MEMORY_SLICES) // (2 * MEMORY_SLICES)
    return f"{slices}g.{gigabytes}gb{attribute}"


def name_from_driver(text: str) -> str | None:
    """Returns the name in a driver's text, e.g. `MIG 1g.18gb`; None if the text has another form."""
    found = _NAME.match(text)
    return found.group(1) if found else None


def has_media_extensions(name: str) -> bool:
    return "+me" in name


def find_profile(
    profiles: Sequence[GpuInstanceProfile], name: str, *, within_mib: float | None = None
) -> GpuInstanceProfile | None:
    """Returns the profile of this name, or else one with equal slices and engines: the one with the nearest memory, or
    with `within_mib` the only one that is so near. Allow lists may use names that no driver gives, e.g. `7g.79gb`."""
    exact = next((profile for profile in profiles if profile.name == name), None)
    shape = _SHAPE.fullmatch(name)
    if exact is not None or shape is None:
        return exact
    memory_mib = int(shape[2]) * MIB_PER_GIB
    alike = [each for each in profiles if (each.slices, each.media_extensions) == (int(shape[1]), bool(shape[3]))]
    if within_mib is None:
        return min(alike, key=lambda each: abs(each.memory_mib - memory_mib), default=None)
    near = [each for each in alike if abs(each.memory_mib - memory_mib) <= within_mib]
    return near[0] if len(near) == 1 else None


def _divided_up(number: int, by: int) -> int:
    return -(-number // max(by, 1))
