"""What Allocate answers for one container, and what a sharing mode is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from tessera.node.fleet import Fleet
from tessera.node.handover.claims import Claim

NO_ENTRIES: Mapping[str, str] = MappingProxyType({})
NO_DEVICES = "void"
"""as NVIDIA_VISIBLE_DEVICES: the container gets no card, nor anything else of the driver"""


class Refused(Exception):
    """Allocate has to fail; the text is for the person who reads the pod's status."""


@dataclass(frozen=True, slots=True)
class Mount:
    container_path: str
    host_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class DeviceNode:
    container_path: str
    host_path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class Answer:
    """For one container. Order of mounts and devices is kept; no path occurs twice."""

    env: Mapping[str, str] = field(default_factory=lambda: NO_ENTRIES)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=lambda: NO_ENTRIES)
    cdi_devices: tuple[str, ...] = ()

    def with_more(self, other: Answer) -> Answer:
        """Both; where they disagree, `other` wins."""
        return Answer(
            env={**self.env, **other.env},
            mounts=tuple({each.container_path: each for each in (*self.mounts, *other.mounts)}.values()),
            devices=tuple({each.container_path: each for each in (*self.devices, *other.devices)}.values()),
            annotations={**self.annotations, **other.annotations},
            cdi_devices=tuple(dict.fromkeys((*self.cdi_devices, *other.cdi_devices))),
        )


class SharingMode(Protocol):
    """One way to share cards. Lives as long as the settings that it was made from."""

    async def start(self, fleet: Fleet) -> None:
        """Make the cards ready. One that cannot be made ready is logged and refused later, never a reason to stop."""
        ...

    async def hand_over(self, claim: Claim, device_ids: Sequence[str], *, certain: bool = True) -> Answer:
        """Make the slice real and say how the container gets it. Raises Refused.

        Not `certain`: a container that carries its own slice may be the one that gets this answer. Its environment
        wins over the answer's, so no more is asked than that enforcement and folders are right for either.
        """
        ...

    async def welcome(self, device_ids: Sequence[str]) -> Answer:
        """For a container that carries its slice: what every container gets, nothing that differs. Raises Refused."""
        ...

    async def settle(self, live: Sequence[Claim], fleet: Fleet) -> None:
        """These are all containers on the node that have or will have slices: let go of what belongs to none of them.

        Called after every change of the node's pods, soon, and at least every few seconds while `settle` is needed.
        """
        ...

    async def stop(self) -> None:
        """The agent ends; running containers must not notice."""
        ...
