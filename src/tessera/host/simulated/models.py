"""The card models that can be simulated, with what their drivers report, and the uuids of their cards. Data only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from uuid import UUID, uuid5

from tessera.core.model.devices import MigPlacement
from tessera.host.cards import ATTRIBUTES, GpuInstanceProfile, has_media_extensions, profile_name

NAMESPACE = UUID("6b0f5d0e-64a7-4b9c-8a5d-0a3f4d7c2b11")
"""of all simulated uuids; any fixed value does"""

_A100_40 = ((4864, 14), (4864, 14), (9856, 14), (9984, 28), (20096, 42), (20096, 56), (40448, 98))
_A100_80 = ((9728, 14), (9728, 14), (19968, 14), (19968, 28), (40192, 42), (40192, 56), (80640, 98))
_H100 = ((9984, 16), (9984, 16), (20096, 26), (20096, 32), (40448, 60), (40448, 64), (81152, 132))
_H200 = ((16384, 16), (16384, 16), (33280, 26), (33280, 32), (71424, 60), (71424, 64), (143360, 132))
_A30 = ((5952, 14), (5952, 14), (11968, 28), (11968, 28), (24000, 56))


@dataclass(frozen=True, slots=True)
class ProfileTemplate:
    """A GPU instance profile without sizes, which differ between cards."""

    number: int
    """in NVML's enumeration"""
    profile_id: int
    slices: int
    instances: int
    starts: tuple[int, ...]
    size: int
    """memory slices"""


SEVENTHS = (
    ProfileTemplate(0x0, 19, 1, 7, (0, 1, 2, 3, 4, 5, 6), 1),
    ProfileTemplate(0x7, 20, 1, 1, (0, 1, 2, 3, 4, 5, 6), 1),
    ProfileTemplate(0x9, 15, 1, 4, (0, 2, 4, 6), 2),
    ProfileTemplate(0x1, 14, 2, 3, (0, 2, 4), 2),
    ProfileTemplate(0x2, 9, 3, 2, (0, 4), 4),
    ProfileTemplate(0x3, 5, 4, 1, (0,), 4),
    ProfileTemplate(0x4, 0, 7, 1, (0,), 8),
)
"""A100 and later"""

QUARTERS = (
    ProfileTemplate(0x0, 14, 1, 4, (0, 1, 2, 3), 1),
    ProfileTemplate(0x7, 21, 1, 1, (0, 1, 2, 3), 1),
    ProfileTemplate(0x1, 5, 2, 2, (0, 2), 2),
    ProfileTemplate(0x8, 6, 2, 1, (0, 2), 2),
    ProfileTemplate(0x3, 0, 4, 1, (0,), 4),
)
"""A30"""


@dataclass(frozen=True, slots=True)
class Model:
    """A product."""

    name: str
    """as NVML gives it"""
    memory_mib: int
    compute_capability: tuple[int, int]
    profiles: tuple[GpuInstanceProfile, ...] = ()

    @property
    def mig_capable(self) -> bool:
        return bool(self.profiles)


def _mig_model(
    name: str,
    memory_mib: int,
    compute_capability: tuple[int, int],
    templates: Iterable[ProfileTemplate],
    sizes: Iterable[tuple[int, int]],
) -> Model:
    """`sizes` are MiB and multiprocessors of every template."""
    profiles = []
    for template, (mib, multiprocessors) in zip(templates, sizes, strict=True):
        attribute = ATTRIBUTES.get(template.number, "")
        called = profile_name(slices=template.slices, memory_mib=mib, card_mib=memory_mib, attribute=attribute)
        profiles.append(
            GpuInstanceProfile(
                name=called,
                profile_id=template.profile_id,
                slices=template.slices,
                memory_mib=mib,
                multiprocessors=multiprocessors,
                instances=template.instances,
                placements=tuple(MigPlacement(start, template.size) for start in template.starts),
                media_extensions=has_media_extensions(called),
            )
        )
    profiles.sort(key=lambda each: (each.slices, each.memory_mib, each.name))
    return Model(name, memory_mib, compute_capability, tuple(profiles))


def simulated_uuid(prefix: str, what: str) -> str:
    """Always the same for the same thing."""
    return f"{prefix}-{uuid5(NAMESPACE, what)}"


MODELS: Mapping[str, Model] = MappingProxyType(
    {
        "A100-SXM4-40GB": _mig_model("NVIDIA A100-SXM4-40GB", 40960, (8, 0), SEVENTHS, _A100_40),
        "A100-SXM4-80GB": _mig_model("NVIDIA A100-SXM4-80GB", 81920, (8, 0), SEVENTHS, _A100_80),
        "H100": _mig_model("NVIDIA H100 80GB HBM3", 81559, (9, 0), SEVENTHS, _H100),
        "H200": _mig_model("NVIDIA H200", 143771, (9, 0), SEVENTHS, _H200),
        "A30": _mig_model("NVIDIA A30", 24576, (8, 0), QUARTERS, _A30),
        "A10": Model("NVIDIA A10", 23028, (8, 6)),
        "L4": Model("NVIDIA L4", 23034, (8, 9)),
        "L40S": Model("NVIDIA L40S", 46068, (8, 9)),
        "T4": Model("Tesla T4", 15360, (7, 5)),
        "V100": Model("Tesla V100-SXM2-32GB", 32768, (7, 0)),
    }
)
