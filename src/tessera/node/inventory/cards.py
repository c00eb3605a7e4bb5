"""What the agent knows about a card, and what it asks of whoever knows the hardware.

Sizes are as the hardware reports them, in bytes, before any scaling. A card that cannot be read is a value
(`UnreadableCard`), so that it never takes its neighbours away; an exception means that there is nothing to be read.
Every method of the protocols may block: they are called from threads, one call at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from tessera.core.devices import MigPlacement


class InventoryError(Exception):
    """The hardware as a whole cannot be asked; the text says what was tried and what came back."""


class CardError(InventoryError):
    """One card refused what was asked of it."""

    def __init__(self, uuid: str, problem: str) -> None:
        super().__init__(f"{uuid}: {problem}")
        self.uuid = uuid
        self.problem = problem


@dataclass(frozen=True, slots=True)
class MigOffer:
    """A kind of GPU instance that a card can make, by its attributes; `name` is made of them, e.g. `1g.18gb+me`."""

    name: str
    profile_id: int
    """as nvidia-smi numbers them, e.g. 19"""
    slices: int
    """compute slices"""
    memory_mib: int
    multiprocessors: int
    instances: int
    """that fit at once on an empty card"""
    placements: tuple[MigPlacement, ...]
    media_extensions: bool = False


@dataclass(frozen=True, slots=True)
class CardFacts:
    """One readable card."""

    uuid: str
    """`GPU-` and 36 characters"""
    index: int
    """as NVML counts: the order of cards in this agent"""
    name: str
    """the product name as NVML gives it, e.g. `NVIDIA H200`"""
    minor: int | None = None
    """number of the device node /dev/nvidia<minor>"""
    memory_bytes: int | None = None
    """None where the card does not report it"""
    numa: int | None = None
    bus_id: str = ""
    """PCI address as NVML writes it"""
    compute_capability: tuple[int, int] | None = None
    mig_capable: bool = False
    mig_enabled: bool = False
    mig_offers: tuple[MigOffer, ...] = ()
    """every kind, also those that nobody allowed; in order of slices, memory, name"""


@dataclass(frozen=True, slots=True)
class UnreadableCard:
    """A card that is there but cannot be asked, e.g. because it fell off the bus."""

    index: int
    problem: str
    uuid: str | None = None
    """None where not even that could be read"""


Found = CardFacts | UnreadableCard


class Connection(Enum):
    """How two cards reach each other over PCIe; the value is NVML's topology level."""

    INTERNAL = 0
    SINGLE = 10
    MULTIPLE = 20
    HOST_BRIDGE = 30
    NODE = 40
    SYSTEM = 50


@dataclass(frozen=True, slots=True)
class Links:
    """What one card says about the way to another. Pair scores are made of it in `links`."""

    connection: Connection | None
    direct: int = 0
    """NVLinks that end at the other card"""
    switched: int = 0
    """NVLinks of this card that end at a switch"""


@dataclass(frozen=True, slots=True)
class CardEvent:
    """Something that the driver reported by itself."""

    uuid: str | None
    """of the card; None where the driver does not say, which concerns all cards"""
    xid: int | None = None
    """None for ECC events"""
    uncorrectable: bool = False
    """a double-bit ECC error"""
    gpu_instance: int | None = None
    compute_instance: int | None = None


class Inventory(Protocol):
    """Who knows the cards."""

    def scan(self) -> list[Found]:
        """All cards in order of index. Raises InventoryError where there is no telling."""
        ...

    def links(self, uuids: Sequence[str]) -> dict[tuple[str, str], Links]:
        """Of every ordered pair. A CardError names the card that could not answer."""
        ...

    def listen(self, uuids: Sequence[str]) -> dict[str, str]:
        """Begin to collect events of these cards (and of no others); why a card cannot be listened to, by uuid.

        A card that supports no events is no problem and not in the answer.
        """
        ...

    def wait(self, timeout: float) -> CardEvent | None:
        """The next event within so many seconds. Raises InventoryError."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class MigInstance:
    """One GPU instance, with its compute instance where there is one."""

    uuid: str
    """of the card"""
    gpu_instance: int
    profile_id: int
    placement: MigPlacement
    compute_instance: int | None = None
    mig_uuid: str | None = None
    divided: bool = field(default=False, compare=False)
    """whether its compute instances are smaller than it; never so for those that the agent makes"""


class MigHardware(Protocol):
    """What dynamic MIG needs. All methods raise CardError."""

    def mig_enabled(self, uuid: str) -> bool: ...

    def enable_mig(self, uuid: str) -> None:
        """At once, or CardError where the card would need a reset first."""
        ...

    def disable_mig(self, uuid: str) -> None: ...

    def instances(self, uuid: str) -> list[MigInstance]: ...

    def create(self, uuid: str, offer: MigOffer, placement: MigPlacement) -> MigInstance:
        """A GPU instance exactly there, with one compute instance over all of it. Leaves nothing behind on failure."""
        ...

    def destroy(self, instance: MigInstance) -> None: ...

    def is_busy(self, uuid: str) -> bool:
        """Whether any process uses the card or one of its instances; True where that cannot be found out."""
        ...


class ComputeMode(Enum):
    """Who may use a card at once; the value is NVML's."""

    DEFAULT = 0
    PROHIBITED = 2
    EXCLUSIVE_PROCESS = 3


class ComputeModes(Protocol):
    """What MPS needs. Both raise CardError."""

    def compute_mode(self, uuid: str) -> ComputeMode: ...

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None: ...


class Hardware(Inventory, MigHardware, ComputeModes, Protocol):
    """Everything that can be asked of a node's cards."""
