"""Which MIG profiles a card registers: those that it supports and that the configuration allows.

The card itself says which profiles it supports; there is no table of models. A profile is always registered under the
driver's name, even if the allow list spells it differently.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from tessera.core.devices import MigProfile
from tessera.host.cards import GpuInstanceProfile
from tessera.host.mig_profile_names import parse_profile_name
from tessera.vendors.nvidia.mig import MigAllowance

NAMED_ALIKE_MIB = 1024
"""between names that different drivers give one profile: a whole A100 80GB is 7g.79gb or 7g.80gb"""

_WORD = re.compile(r"[^\s-]+")
_FAMILY = re.compile(r"[^\s-]*[0-9][^\s-]*")
"""the first word of a model with a number in it, e.g. `H100`"""


def allowed_profiles(
    profiles: Sequence[GpuInstanceProfile], *, model: str, allowances: Sequence[MigAllowance]
) -> tuple[GpuInstanceProfile, ...]:
    """Returns profiles in the card's order. `model` is the type that the card registers."""
    usable = [profile for profile in profiles if profile.placements]
    if not allowances:
        return tuple(profile for profile in usable if not _repeats(profile, usable))
    allowance = _allowance(usable, model=model, allowances=allowances)
    if allowance is None:
        return ()
    chosen = {profile.name for name in allowance.profiles if (profile := _named(name, usable)) is not None}
    return tuple(profile for profile in usable if profile.name in chosen)


def registered_profile(profile: GpuInstanceProfile, profiles: Sequence[GpuInstanceProfile]) -> MigProfile:
    """Returns the profile as the scheduler sees it; `profiles` are all profiles of the card."""
    most = max(each.multiprocessors for each in profiles)
    return MigProfile(
        name=profile.name,
        memory=profile.memory_mib,
        cores=-(-100 * profile.multiprocessors // most) if most else 100,
        slices=profile.slices,
        placements=profile.placements,
    )


def _repeats(profile: GpuInstanceProfile, profiles: Sequence[GpuInstanceProfile]) -> bool:
    """Whether a profile differs from another only by its media engines, which no pod can request."""
    return profile.media_extensions and any(
        not other.media_extensions and (other.slices, other.memory_mib) == (profile.slices, profile.memory_mib)
        for other in profiles
    )


def _allowance(
    profiles: Sequence[GpuInstanceProfile], *, model: str, allowances: Sequence[MigAllowance]
) -> MigAllowance | None:
    """Returns the first allowance whose model name is part of the model.

    HAMi's own list has models that no driver reports. So without a match, the first allowance of the same card family
    counts, if this card supports all its profiles.
    """
    for allowance in allowances:
        if any(each in model for each in allowance.models):
            return allowance
    words = set(_WORD.findall(model))
    for allowance in allowances:
        families = {found[0] for each in allowance.models if (found := _FAMILY.search(each)) is not None}
        if families & words and all(_named(name, profiles, within=NAMED_ALIKE_MIB) for name in allowance.profiles):
            return allowance
    return None


def _named(name: str, profiles: Sequence[GpuInstanceProfile], *, within: float = math.inf) -> GpuInstanceProfile | None:
    """Returns the profile of this name, or the one with equal slices and the nearest memory, `within` so many MiB."""
    for profile in profiles:
        if profile.name == name:
            return profile
    shape = parse_profile_name(name)
    if shape is None:
        return None
    alike = [
        (abs(profile.memory_mib - shape.memory_mib), position)
        for position, profile in enumerate(profiles)
        if (profile.slices, profile.media_extensions) == (shape.slices, shape.media_extensions)
    ]
    apart, position = min(alike, default=(math.inf, 0))
    return profiles[position] if apart <= within and alike else None
