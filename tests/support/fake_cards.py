"""The cards that `fake_nvml` answers for: plain data that a test may change at any time."""

from __future__ import annotations

from dataclasses import dataclass, field

import pynvml  # type: ignore[import-untyped]

LOST = pynvml.NVML_ERROR_GPU_IS_LOST
UNSUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
IN_USE = pynvml.NVML_ERROR_IN_USE
UNKNOWN = pynvml.NVML_ERROR_UNKNOWN


@dataclass
class Profile:
    number: int
    id: int
    slices: int
    instances: int
    sms: int
    mib: int
    places: list[tuple[int, int]]
    name: bytes = b""


def h200_profiles(*, named: bool = True) -> list[Profile]:
    ones = [(start, 1) for start in range(7)]
    rows = [
        Profile(0x0, 19, 1, 7, 16, 16384, ones, b"MIG 1g.18gb"),
        Profile(0x7, 20, 1, 1, 16, 16384, ones, b"MIG 1g.18gb+me"),
        Profile(0x9, 15, 1, 4, 26, 33280, [(6, 2), (4, 2), (2, 2), (0, 2)], b"MIG 1g.35gb"),
        Profile(0x1, 14, 2, 3, 32, 33280, [(0, 2), (2, 2), (4, 2)], b"MIG 2g.35gb"),
        Profile(0x2, 9, 3, 2, 60, 71168, [(0, 4), (4, 4)], b"MIG 3g.71gb"),
        Profile(0x3, 5, 4, 1, 64, 71168, [(0, 4)], b"MIG 4g.71gb"),
        Profile(0x4, 0, 7, 1, 132, 143360, [(0, 8)], b"MIG 7g.141gb"),
    ]
    for row in rows:
        row.name = row.name if named else b""
    return rows


COMPUTE_PROFILES = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}
"""number and id of the compute profile for so many slices"""


@dataclass
class GpuInstance:
    card: FakeCard
    id: int
    profile: Profile
    place: tuple[int, int]
    computes: list[ComputeInstance] = field(default_factory=list)


@dataclass
class ComputeInstance:
    owner: GpuInstance
    id: int
    slices: int
    processes: int = 0
    graphics: int = 0


@dataclass
class FakeCard:
    number: int = 0
    uuid: bytes = b""
    name: bytes = b"NVIDIA H200"
    memory: int = 143771 * 2**20
    bus: bytes = b""
    mig: list[int] | None = None
    """current and pending; None = the card cannot"""
    activation: int = 0
    """what a switch of MIG mode answers; not 0 = it stays pending"""
    profiles: list[Profile] = field(default_factory=h200_profiles)
    instances: list[GpuInstance] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    links: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    """link -> address and type of what is at its other end"""
    levels: dict[int, int] = field(default_factory=dict)
    """other card -> topology level"""
    event_types: int = 0xB
    processes: int = 0
    graphics: int = 0
    compute_mode: int = 0

    def __post_init__(self) -> None:
        self.uuid = self.uuid or b"GPU-00000000-0000-0000-0000-%012d" % self.number
        self.bus = self.bus or b"00000000:%02X:00.0" % (0x3B + self.number)

    @property
    def called(self) -> str:
        return self.uuid.decode()

    def hold(self, gi: int, profile_id: int, start: int, *, compute: bool = True) -> GpuInstance:
        """An instance that is already there."""
        profile = next(each for each in self.profiles if each.id == profile_id)
        place = next(each for each in profile.places if each[0] == start)
        made = GpuInstance(self, gi, profile, place)
        if compute:
            made.computes.append(ComputeInstance(made, 0, profile.slices))
        self.instances.append(made)
        return made


@dataclass
class Event:
    card: FakeCard
    type: int
    data: int = 0
    gi: int = 0xFFFFFFFF
    ci: int = 0xFFFFFFFF
