"""What the node registers: each card, and how well each two of them are connected, as HAMi's schedulers read it.

A card that schedulers could not read or use is left out with a reason and does not affect the other cards. The card
itself says which MIG profiles it supports; there is no table of models. A profile is always registered under the
driver's name, even if the allow list spells it differently. Writing the registration is in `registrar`.

The hardware is asked for links only when the cards changed. A pair whose cards report different links scores 0 both
ways, and so does every pair of a card that cannot report its links. If the hardware cannot be asked at all, the node
keeps its scores and the next round asks again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import structlog

from tessera.core.model.devices import MIG, Device, MigProfile
from tessera.host.cards import (
    MAX_NVLINKS,
    NAMED_ALIKE_MIB,
    CardError,
    CardFacts,
    GpuInstanceProfile,
    InventoryError,
    Links,
    TopologyLevel,
    find_profile,
)
from tessera.node.fleet import CardState, Fleet
from tessera.node.settings import AgentSettings
from tessera.vendors.nvidia import Nvidia
from tessera.vendors.nvidia.backend import MigAllowance
from tessera.wire.errors import WireError
from tessera.wire.registration import decode_registration, encode_registration_json, encode_registration_text

log = structlog.get_logger(__name__)

_WORD = re.compile(r"[^\s-]+")
_FAMILY = re.compile(r"[^\s-]*[0-9][^\s-]*")
"""the first word of a model with a number in it, e.g. `H100`"""

NO_SHARING = "none"
"""the mode that hands over whole cards"""
MAKER = "NVIDIA"

NVLINK_POINTS = 100
"""per NVLink"""

PCIE_POINTS: Mapping[TopologyLevel, int] = {
    TopologyLevel.INTERNAL: 60,
    TopologyLevel.SINGLE: 50,
    TopologyLevel.MULTIPLE: 40,
    TopologyLevel.HOST_BRIDGE: 30,
    TopologyLevel.NODE: 20,
    TopologyLevel.SYSTEM: 10,
}

_NO_LINKS = Links(None)
AskLinks = Callable[[Sequence[str]], Awaitable[Mapping[tuple[str, str], Links]]]
"""reads the links between these cards; raises InventoryError"""


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
    chosen = {profile.name for name in allowance.profiles if (profile := find_profile(usable, name)) is not None}
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
        if families & words and all(
            find_profile(profiles, name, within_mib=NAMED_ALIKE_MIB) for name in allowance.profiles
        ):
            return allowance
    return None


@dataclass(frozen=True, slots=True)
class Registrable:
    """The devices to register, and why other cards are left out."""

    devices: tuple[Device, ...]
    """in order of index"""
    left_out: Mapping[str, str]
    """reasons by uuid"""


class _LeftOut(Exception):
    """Why a card is not registered."""


def registrable(fleet: Fleet, settings: AgentSettings) -> Registrable:
    devices: list[Device] = []
    left_out: dict[str, str] = {}
    for card in fleet:
        try:
            device = _device(card, settings)
            _check(device, settings)
        except _LeftOut as reason:
            left_out[card.facts.uuid] = str(reason)
        else:
            devices.append(device)
    return Registrable(tuple(devices), left_out)


def registration_text(devices: tuple[Device, ...], settings: AgentSettings) -> str:
    """Returns the value of the annotation."""
    return encode_registration_text(devices) if settings.text_registration else encode_registration_json(devices)


def model_of(facts: CardFacts, *, always_prefixed: bool = False) -> str:
    """Returns `type` on the wire. Schedulers that read the text form expect the prefix even if NVML's name has it."""
    prefixed = always_prefixed or not facts.name.startswith(MAKER)
    return f"{MAKER}-{facts.name}" if prefixed else facts.name


def _device(card: CardState, settings: AgentSettings) -> Device:
    facts, node, mode = card.facts, settings.node, card.mode or settings.node.mode
    device = Device(
        uuid=facts.uuid,
        vendor=Nvidia.key,
        index=facts.index,
        model=model_of(facts, always_prefixed=settings.text_registration),
        numa=max(facts.numa or 0, 0),
        mode=mode,
        healthy=card.healthy,
    )
    if mode == MIG:
        return _mig_device(device, facts, settings)
    if facts.mig_enabled and node.serves_instances:
        raise _LeftOut(f"MIG is enabled on it and the MIG strategy is {node.mig_strategy}")
    if mode == NO_SHARING:
        return replace(device, slots=1, memory=_memory(facts, settings), cores=100)
    return replace(
        device,
        slots=node.split_count,
        memory=_scaled(_memory(facts, settings), node.memory_scaling),
        cores=_rounded(100 * node.core_scaling),
    )


def _mig_device(device: Device, facts: CardFacts, settings: AgentSettings) -> Device:
    profiles = allowed_profiles(facts.mig_profiles, model=model_of(facts), allowances=settings.mig_allowances)
    if not profiles:
        raise _LeftOut(
            f"none of its MIG profiles is allowed for {facts.name}: it supports {_names(facts)}"
            if facts.mig_profiles
            else "it supports no MIG profiles"
        )
    return replace(
        device,
        slots=max(each.instances for each in profiles),
        memory=_memory(facts, settings),
        cores=100,
        mig_profiles=tuple(registered_profile(each, facts.mig_profiles) for each in profiles),
    )


def _names(facts: CardFacts) -> str:
    return ", ".join(each.name for each in facts.mig_profiles)


def _memory(facts: CardFacts, settings: AgentSettings) -> int:
    """MiB, before scaling."""
    if facts.memory_mib is not None:
        return facts.memory_mib
    if settings.node.preconfigured_memory <= 0:
        raise _LeftOut("it does not report its memory, and none is configured for such cards")
    return settings.node.preconfigured_memory


def _scaled(memory: int, scaling: float) -> int:
    """Schedulers and agents of all versions truncate."""
    return memory if scaling == 1 else math.trunc(_finite(memory * scaling))


def _rounded(value: float) -> int:
    return math.floor(_finite(value) + 0.5)


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise _LeftOut("its memory or cores after scaling are not a number")
    return value


def _check(device: Device, settings: AgentSettings) -> None:
    """Raises _LeftOut for a device that no scheduler could use or read."""
    if device.slots < 1:
        raise _LeftOut(f"the split count {device.slots} leaves no share of it")
    if device.memory < 1:
        raise _LeftOut("no memory of it is left after scaling")
    try:
        decode_registration(registration_text((device,), settings), vendor=device.vendor)
    except WireError as error:
        raise _LeftOut(f"it cannot be registered: {error}") from error


@dataclass(frozen=True, slots=True)
class PairScores:
    """The scores that `wire.registration` encodes, and the pairs that had to stay at 0."""

    scores: Mapping[str, Mapping[str, int]]
    """by two uuids; each card has a row with all others, in the given order"""
    asymmetric: tuple[tuple[str, str], ...] = ()
    """pairs whose cards report different links to each other"""


def pair_scores(uuids: Sequence[str], links: Mapping[tuple[str, str], Links]) -> PairScores:
    """Returns the scores of these cards. A pair that is not in `links` scores 0."""
    scores = {uuid: {other: 0 for other in uuids if other != uuid} for uuid in uuids}
    asymmetric = []
    for one, other in combinations(scores, 2):
        there, back = links.get((one, other), _NO_LINKS), links.get((other, one), _NO_LINKS)
        ways, ways_back = _ways(there, back), _ways(back, there)
        if len(ways) != len(ways_back):
            asymmetric.append((one, other))
            continue
        scores[one][other], scores[other][one] = sum(ways), sum(ways_back)
    return PairScores(scores, tuple(asymmetric))


def _ways(there: Links, back: Links) -> list[int]:
    """Returns the points of each way from one card to the other."""
    pcie = [] if there.connection is None else [PCIE_POINTS[there.connection]]
    nvlinks = there.direct or min(there.switched, back.switched)
    return [*pcie, NVLINK_POINTS * nvlinks] if 1 <= nvlinks <= MAX_NVLINKS else pcie


class PairScoreCache:
    """Computes scores and keeps them while the cards stay the same."""

    def __init__(self, ask: AskLinks) -> None:
        self._ask = ask
        self._of: tuple[Device, ...] | None = None
        self._last: PairScores | None = None

    async def scores(self, devices: tuple[Device, ...]) -> PairScores | None:
        """Returns None if the links cannot be read now."""
        if devices != self._of:
            self._of, self._last = None, None
            links = await self._links([device.uuid for device in devices])
            if links is None:
                return None
            self._last = pair_scores([device.uuid for device in devices], links)
            self._of = devices
        return self._last

    async def _links(self, uuids: Sequence[str]) -> Mapping[tuple[str, str], Links] | None:
        asked = list(uuids)
        while asked:
            try:
                return await self._ask(asked)
            except CardError as error:
                log.warning("the links of a card cannot be read", card=error.uuid, problem=error.problem)
                if error.uuid not in asked:
                    return None
                asked.remove(error.uuid)
            except InventoryError as error:
                log.warning("links between cards cannot be read", problem=str(error))
                return None
        return {}
