"""What the node registers for each card: pure arithmetic on the fleet and the settings.

A card that schedulers could not read or use is left out with a reason and does not affect the other cards. Writing the
registration is in `registrar`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tessera.core.devices import MIG, Device
from tessera.host.cards import CardFacts
from tessera.node.fleet import CardState, Fleet
from tessera.node.registration.mig_profiles import allowed_profiles, registered_profile
from tessera.node.settings import AgentSettings
from tessera.vendors.nvidia import Nvidia
from tessera.wire.errors import WireError
from tessera.wire.registration import decode_registration, encode_registration_json, encode_registration_text

NO_SHARING = "none"
"""the mode that hands over whole cards"""
MAKER = "NVIDIA"
MIB = 1024 * 1024


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
    facts, node = card.facts, settings.node
    device = Device(
        uuid=facts.uuid,
        vendor=Nvidia.key,
        index=facts.index,
        model=model_of(facts, always_prefixed=settings.text_registration),
        numa=max(facts.numa or 0, 0),
        mode=node.mode,
        healthy=card.healthy,
    )
    if node.mode == MIG:
        return _mig_device(device, facts, settings)
    if facts.mig_enabled and node.mig_strategy != "none":
        raise _LeftOut(f"MIG is enabled on it and the MIG strategy is {node.mig_strategy}")
    if node.mode == NO_SHARING:
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
    if facts.memory_bytes is not None:
        return facts.memory_bytes // MIB
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
    problem = next(_emptiness(device), "")
    if problem:
        raise _LeftOut(problem)
    try:
        decode_registration(registration_text((device,), settings), vendor=device.vendor)
    except WireError as error:
        raise _LeftOut(f"it cannot be registered: {error}") from error


def _emptiness(device: Device) -> Iterator[str]:
    if device.slots < 1:
        yield f"the split count {device.slots} leaves no share of it"
    if device.memory < 1:
        yield "no memory of it is left after scaling"
