"""The interface of a sharing mode, what Allocate returns for one container, and a container's slices by card."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from tessera.node.fleet import CardState, Fleet
from tessera.node.handover.assignments import Assignment
from tessera.wire.errors import quoted

if TYPE_CHECKING:
    from tessera.host.cards import MigInstance
    from tessera.node.modes.cdi import CdiFiles
    from tessera.node.modes.device_lists import DeviceLists

NO_ENTRIES: Mapping[str, str] = MappingProxyType({})
NO_DEVICES = "void"
"""value of NVIDIA_VISIBLE_DEVICES for a container without cards and without the driver's files"""


class AllocationRefused(Exception):
    """Allocate fails; the text appears in the pod's status."""


@dataclass(frozen=True, slots=True)
class HostMount:
    container_path: str
    host_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class DeviceNode:
    container_path: str
    host_path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class ContainerResponse:
    """What Allocate returns for one container. Mounts and devices keep their order; no path occurs twice."""

    env: Mapping[str, str] = field(default_factory=lambda: NO_ENTRIES)
    mounts: tuple[HostMount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=lambda: NO_ENTRIES)
    cdi_devices: tuple[str, ...] = ()

    def with_more(self, other: ContainerResponse) -> ContainerResponse:
        """Returns both combined; `other` overrides."""
        return ContainerResponse(
            env={**self.env, **other.env},
            mounts=tuple({each.container_path: each for each in (*self.mounts, *other.mounts)}.values()),
            devices=tuple({each.container_path: each for each in (*self.devices, *other.devices)}.values()),
            annotations={**self.annotations, **other.annotations},
            cdi_devices=tuple(dict.fromkeys((*self.cdi_devices, *other.cdi_devices))),
        )


class SharingMode(ABC):
    """One way to share cards. Lives as long as the settings that it was built from."""

    def __init__(self) -> None:
        self._fleet = Fleet()
        self.cdi: CdiFiles | None = None
        """the CDI specs that the mode keeps up to date, where devices are named by CDI"""
        self.instances: Callable[[], Sequence[MigInstance]] = tuple
        """the MIG instances that the specs list besides cards"""
        self.lists: DeviceLists | None = None
        """how containers are told cards that they see without limits; of the node's mode, not of its parts"""
        self.whole: SharingMode | None = None
        """the mode that this one is a part of, which then keeps the CDI specs"""

    @property
    def problems(self) -> Mapping[str, str]:
        """Why cards take no new container in this mode, by uuid."""
        return {}

    async def start(self, fleet: Fleet) -> None:
        """Prepares the cards. A card that cannot be prepared is logged and refused later; it never stops the agent."""
        self._fleet = fleet
        await self.refresh()

    async def refresh(self) -> None:
        """Writes the current cards and instances into the CDI specs: a device must be there before it is handed out."""
        if self.whole is not None:
            await self.whole.refresh()
        elif self.cdi is not None:
            await self.cdi.refresh(self._fleet, self.instances())

    @abstractmethod
    async def hand_over(self, assignment: Assignment, ids: Sequence[str], *, certain: bool = True) -> ContainerResponse:
        """Realises the slice and says how the container gets it. Raises AllocationRefused.

        If not `certain`, a container that uses the downward API may get this response. Its own variables override
        the response's, so only enforcement and directories must be right for both.
        """

    def show_cards(self, uuids: Sequence[str]) -> ContainerResponse:
        """Returns what shows whole cards to an administrator's container, whatever is in use of them: nothing is
        held, and nothing is limited. Raises AllocationRefused."""
        if self.lists is None:
            raise AllocationRefused("this node shows no cards to administrators")
        return self.lists.response(uuids, self._fleet)

    async def hand_over_downward_api(self, ids: Sequence[str]) -> ContainerResponse:
        """Returns what is the same for all containers, for one that uses the downward API. Raises AllocationRefused."""
        raise AllocationRefused("this node hands over devices by Allocate, not by the downward API")

    async def reconcile(self, live: Sequence[Assignment], fleet: Fleet) -> None:
        """Releases everything that belongs to none of the `live` assignments, which are all assignments on the node.

        Called soon after every change of the node's pods, and at least every few seconds.
        """
        self._fleet = fleet
        await self.refresh()

    async def stop(self) -> None:
        """The agent ends; running containers must not notice."""
        if self.cdi is not None:
            await self.cdi.stop()


class CardSlice(NamedTuple):
    """What a container gets of one card."""

    card: CardState
    memory: int
    """MiB"""
    cores: int
    """percent; 0 = not limited"""

    @property
    def uuid(self) -> str:
        return self.card.facts.uuid


def slices_by_card(assignment: Assignment, fleet: Fleet) -> tuple[CardSlice, ...]:
    """Returns slices in the container's order of cards. Two slices of one card become one. Raises AllocationRefused."""
    found: dict[str, CardSlice] = {}
    for entry in assignment.slices:
        card = fleet.card(entry.uuid)
        if card is None:
            raise AllocationRefused(f"card {quoted(entry.uuid)} is not among this node's cards")
        if not card.healthy:
            raise AllocationRefused(f"card {entry.uuid} takes no work: {card.problem}")
        before = found.get(entry.uuid)
        found[entry.uuid] = CardSlice(
            card,
            memory=entry.memory + (before.memory if before else 0),
            # A slice without a core limit makes the sum unlimited.
            cores=0 if before and not (entry.cores and before.cores) else entry.cores + (before.cores if before else 0),
        )
    return tuple(sorted(found.values(), key=lambda each: each.card.facts.index))
