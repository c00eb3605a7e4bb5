"""Simulated cards that a test may harm, load and repair while they are used. This overrides their file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tessera.host.cards import CardError, CardEvent, InventoryError, MigInstance
from tessera.host.simulated.description import Due, SimulationDescription, WatchedFile, load_description
from tessera.host.simulated.hardware import IN_USE, SimulatedHardware


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
