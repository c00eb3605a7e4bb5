"""Simulated cards for the agent: cards in MIG mode with their instances, and cards that a test may harm and repair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from tessera.core.model.devices import MigPlacement, MigSlot
from tessera.host.cards import CardError, CardEvent, CardFacts, GpuInstanceProfile, InventoryError, MigInstance
from tessera.host.simulated.description import Due, SimulationDescription, WatchedFile, load_description
from tessera.host.simulated.hardware import IN_USE, SimulatedHardware
from tessera.node.fleet import CardState, Fleet
from tessera.node.handover.assignments import Assignment, ObjectKey
from tessera.node.modes.device_lists import DeviceLists
from tessera.node.modes.mig.mode import Mig
from tessera.node.settings import AgentSettings, DeviceListStrategy, Paths
from tessera.wire.node_config import NodeSettings
from tessera.wire.pod_devices import DeviceEntry, MigAllocation

T = TypeVar("T")

A = "GPU-00000000-0000-0000-0000-00000000000a"
B = "GPU-00000000-0000-0000-0000-00000000000b"


def _offer(name: str, profile_id: int, memory: int, *, size: int, starts: Sequence[int]) -> GpuInstanceProfile:
    slices = int(name[0])
    return GpuInstanceProfile(
        name=name,
        profile_id=profile_id,
        slices=slices,
        memory_mib=memory,
        multiprocessors=16 * slices,
        instances=len(starts),
        placements=tuple(MigPlacement(start, size) for start in starts),
        media_extensions=name.endswith("+me"),
    )


H200 = (
    _offer("1g.18gb", 19, 16384, size=1, starts=range(7)),
    _offer("1g.18gb+me", 20, 16384, size=1, starts=range(7)),
    _offer("1g.35gb", 15, 33280, size=2, starts=(0, 2, 4, 6)),
    _offer("2g.35gb", 14, 33280, size=2, starts=(0, 2, 4)),
    _offer("3g.71gb", 9, 71424, size=4, starts=(0, 4)),
    _offer("4g.71gb", 5, 71424, size=4, starts=(0,)),
    _offer("7g.141gb", 0, 143360, size=8, starts=(0,)),
)


def card(uuid: str = A, *, index: int = 0, capable: bool = True, enabled: bool = False, problem: str = "") -> CardState:
    facts = CardFacts(
        uuid=uuid,
        index=index,
        name="NVIDIA H200",
        minor=index,
        mig_capable=capable,
        mig_enabled=enabled,
        mig_profiles=H200 if capable else (),
    )
    return CardState(facts, problem)


BOTH = Fleet((card(A), card(B, index=1)))


@dataclass
class ModelCard:
    enabled: bool = False
    busy: bool = False
    needs_reset: bool = False
    instances: list[MigInstance] = field(default_factory=list)


@dataclass
class ModelHardware:
    """A MigHardware."""

    cards: dict[str, ModelCard] = field(default_factory=lambda: {A: ModelCard(), B: ModelCard()})
    used: set[int] = field(default_factory=set)
    """serial numbers of instances that a process uses"""
    faults: Counter[str] = field(default_factory=Counter)
    """how often a method fails from now on, by name; `half` = destroying stops after the compute instance"""
    crash: str = ""
    """the agent is killed after this method took effect"""
    dead: bool = False
    """whether the agent is; until the next one, nothing that it still tries has any effect"""
    gone: list[int] = field(default_factory=list)
    """serial numbers of destroyed instances, in order"""
    made: int = 0
    on_created: Callable[[MigInstance], None] = lambda _made: None
    """called before `create` returns; may raise"""

    def mig_enabled(self, uuid: str) -> bool:
        self._fault("mig_enabled", uuid)
        return self.cards[uuid].enabled

    def enable_mig(self, uuid: str) -> None:
        self._fault("enable_mig", uuid)
        if self.cards[uuid].needs_reset:
            raise CardError(uuid, "mig mode enable is pending; GPU reset required")
        self.cards[uuid].enabled = True

    def disable_mig(self, uuid: str) -> None:
        self._fault("disable_mig", uuid)
        assert not self.cards[uuid].instances
        self.cards[uuid].enabled = False

    def instances(self, uuid: str) -> list[MigInstance]:
        self._fault("instances", uuid)
        return list(self.cards[uuid].instances)

    def create(self, uuid: str, offer: GpuInstanceProfile, placement: MigPlacement) -> MigInstance:
        self._fault("create", uuid)
        there = self.cards[uuid].instances
        if not self.cards[uuid].enabled or placement not in offer.placements:
            raise CardError(uuid, "no such place")
        if any(each.placement.overlaps(placement) for each in there):
            raise CardError(uuid, "insufficient resources")
        taken = {each.gpu_instance for each in there}
        number = next(each for each in range(1, 16) if each not in taken)
        self.made += 1
        instance = MigInstance(uuid, number, offer.profile_id, placement, 0, f"MIG-{self.made}")
        there.append(instance)
        self.on_created(instance)
        self._die("create")
        return instance

    def destroy(self, instance: MigInstance) -> None:
        self._fault("destroy", instance.uuid)
        there = self.cards[instance.uuid].instances
        found = next((each for each in there if each.gpu_instance == instance.gpu_instance), None)
        if found is None:
            return
        if serial(found) in self.used:
            raise CardError(instance.uuid, "in use by another client")
        if self.faults["half"]:
            self.faults["half"] -= 1
            there[there.index(found)] = replace(found, compute_instance=None, mig_uuid=None)
            raise CardError(instance.uuid, "the GPU instance stays")
        there.remove(found)
        self.gone.append(serial(found))
        self._die("destroy")

    def is_busy(self, uuid: str) -> bool:
        self._fault("is_busy", uuid)
        return self.cards[uuid].busy or any(serial(each) in self.used for each in self.cards[uuid].instances)

    def foreign(self, uuid: str, profile: str, start: int) -> MigInstance:
        """An administrator creates an instance by hand."""
        offer = next(each for each in H200 if each.name == profile)
        place = next(each for each in offer.placements if each.start == start)
        self.cards[uuid].enabled = True
        return self.create(uuid, offer, place)

    def there(self, uuid: str = A) -> set[str | None]:
        return {each.mig_uuid for each in self.cards[uuid].instances}

    def _fault(self, method: str, uuid: str) -> None:
        if self.dead:
            raise Crash
        if self.faults[method]:
            self.faults[method] -= 1
            raise CardError(uuid, f"{method} is broken")

    def _die(self, method: str) -> None:
        if self.crash == method:
            self.crash = ""
            self.dead = True
            raise Crash


class Crash(BaseException):
    """The agent is killed at this moment."""


def serial(instance: MigInstance) -> int:
    """Unlike ids, never given out twice; a half-destroyed instance has none."""
    return int(instance.mig_uuid.removeprefix("MIG-")) if instance.mig_uuid else 0


class Inline:
    """Runs jobs of the hardware's thread at once."""

    async def call(self, work: Callable[[], T], *, deadline: float) -> T:
        return work()

    async def close(self, *, patience: float) -> None:
        return None


def reserve(
    profile: str, start: int, size: int, *, uuid: str = A, container: int = 0, device: int = 0
) -> MigAllocation:
    return MigAllocation(container, device, uuid, MigSlot(profile, MigPlacement(start, size)))


ONE = reserve("1g.18gb", 6, 1)
HALF = reserve("3g.71gb", 0, 4)


def claim(*reserved: MigAllocation, pod: str = "p") -> Assignment:
    """Of a container that has these and nothing else."""
    return Assignment(
        pod=ObjectKey("team", pod, f"uid-{pod}"),
        position=reserved[0].container,
        container="main",
        slices=tuple(DeviceEntry(each.uuid, "NVIDIA", 1000, 14) for each in reserved),
        mig=tuple(reserved),
    )


def ids(of: Assignment) -> list[str]:
    return [f"{each.uuid}-{number}" for number, each in enumerate(of.slices)]


@dataclass
class Node:
    """One node whose agent can be restarted."""

    state: Path
    hardware: ModelHardware = field(default_factory=ModelHardware)
    written: dict[tuple[str, int, int], MigAllocation] = field(default_factory=dict)
    """what the pods' annotations say, by uid, container and device"""
    refusals: list[Exception] = field(default_factory=list)
    """faults of the next writes"""
    now: float = 0.0
    boot: str = "boot-1"
    strategy: DeviceListStrategy = DeviceListStrategy.ENVVAR

    def agent(self, **more: object) -> Mig:
        self.hardware.dead = False
        settings = AgentSettings(
            node_name="n",
            node=NodeSettings(mode="mig"),
            strategies=frozenset({self.strategy}),
            paths=Paths(state=self.state),
        )
        given: dict[str, object] = {
            "device_lists": DeviceLists(settings),
            "write": self._write,
            "calls": Inline(),
            "clock": lambda: self.now,
            "boot": self.boot,
            **more,
        }
        return Mig(settings, self.hardware, **given)  # type: ignore[arg-type]

    async def started(self, fleet: Fleet = BOTH, **more: object) -> Mig:
        mig = self.agent(**more)
        await mig.start(fleet)
        return mig

    def completed(self, of: Assignment) -> Assignment:
        """The claim as the pod's annotation has it by now."""
        entries = (self.written.get((of.pod.uid, each.container, each.device), each) for each in of.mig)
        return replace(of, mig=tuple(entries))

    async def _write(self, pod: ObjectKey, allocations: Sequence[MigAllocation]) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        self.written.update({(pod.uid, each.container, each.device): each for each in allocations})


class FaultyCards(SimulatedHardware):
    """All methods may be called from any thread."""

    def __init__(self, source: Callable[[], SimulationDescription], **more: Any) -> None:
        super().__init__(source, **more)
        self._used: frozenset[str] = frozenset()
        self._broken: str | None = None
        self._are_awaited = True

    @classmethod
    def from_file(cls, path: Path, *, node_name: str) -> FaultyCards:
        description = load_description(path)
        state = path.parent / description.state if description.state else None
        return cls(WatchedFile(path, description), node_name=node_name, state=state)

    def lose(self, uuid: str, problem: str = "GPU is lost") -> None:
        self._overrides[uuid] = problem

    def bring_back(self, uuid: str) -> None:
        """Makes a card readable, whatever the file says."""
        self._overrides[uuid] = ""

    def push(self, event: CardEvent) -> None:
        """Adds an event, reported once its card is listened to."""
        self._script._pending.append(Due(self._clock(), event))
        self._script.wake()

    def break_down(self, problem: str) -> None:
        """Makes all hardware unreadable until `repair`."""
        self._broken = problem
        self._script.wake()

    def repair(self) -> None:
        """Makes the hardware readable, whatever the file says."""
        self._broken = ""

    def wait(self, timeout: float) -> CardEvent | None:
        return super().wait(timeout if self._are_awaited else 0.0)

    def begin_waits(self) -> None:
        """Lets calls wait for events."""
        self._are_awaited = True

    def end_waits(self) -> None:
        """Ends the call that waits for events, and all later ones at once: an agent that stops waits for that call."""
        self._are_awaited = False
        self._script.wake()

    def use(self, uuid: str) -> None:
        """Starts a process on a card or a MIG device."""
        self._used |= {uuid}

    def leave(self, uuid: str) -> None:
        self._used -= {uuid}

    def destroy(self, instance: MigInstance) -> None:
        if instance.mig_uuid in self._used and instance in self.instances(instance.uuid):
            raise CardError(instance.uuid, f"destroying GPU instance {instance.gpu_instance}: {IN_USE}")
        super().destroy(instance)

    def is_busy(self, uuid: str) -> bool:
        if super().is_busy(uuid):
            return True
        return not self._used.isdisjoint({uuid, *(each.mig_uuid for each in self.instances(uuid))})

    def _described(self) -> SimulationDescription:
        if self._broken is None:
            return super()._described()
        if self._broken:
            raise InventoryError(self._broken)
        return self._source()
