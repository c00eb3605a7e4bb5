"""Enflame DRS (key `Enflame`): hard partitions of a card, one of the profiles that the node offers.

A container names a profile by its size in slices, or the memory and cores that it needs, and gets one partition of one
card. The slices that it takes follow from the recorded grant and the card's profiles, so a replay counts the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from tessera.core import card_checks
from tessera.core.device_rules import Ask
from tessera.core.devices import Device
from tessera.core.grants import Grant, Grants, Use
from tessera.core.misfits import CardMisfit, Misfit, Reason
from tessera.core.node_info import Card
from tessera.core.requests import Request
from tessera.vendors.base import AnnotationKeys, Bound, Vendor
from tessera.vendors.drafts import BadRequest, ContainerDraft, Denied, PodDraft, Resources
from tessera.vendors.enflame.profiles import (
    CORES,
    INDEX,
    MIB_PER_GB,
    MINOR,
    Profile,
    devices_from,
    max_slice_of,
    profiles_of,
    slices_of,
)
from tessera.vendors.parts.card_choice import first_fit, refuse_unpaid
from tessera.vendors.parts.card_shares import memory_of
from tessera.wire.objects import Node
from tessera.wire.quantity import Whole, read

CAPACITY = "enflame.com/gcu-drs-capacity"
SURELY_MIB = 2
"""factor: a memory request above this many times the largest profile's GB is in MiB, any other in GB"""

PROFILE_NAME = "profileName"
PROFILE_ID = "profileID"


@dataclass(frozen=True, slots=True)
class DrsRequest(Request):
    """`memory` is as written, in GB or MiB: the card's profiles tell which."""

    size: int = 0
    """slices of the profile; 0 = the smallest that has the memory and the cores"""

    def memory_on(self, total: int) -> int:
        """The most that it can take: a profile may be larger than the request."""
        return total

    def choose(self, device: Device) -> Profile | None:
        profiles, largest = profiles_of(device), max_slice_of(device)
        if self.size:
            return next((profile for profile in profiles if profile.size == self.size), None)
        in_mib = self.memory > SURELY_MIB * device.memory // MIB_PER_GB
        memory = self.memory if in_mib else self.memory * MIB_PER_GB
        return next((p for p in profiles if p.memory >= memory and p.cores(largest) >= self.cores), None)


class Drs(Vendor):
    key = "Enflame"
    request_type = DrsRequest
    keys = AnnotationKeys(
        register=CAPACITY,
        allocated="hami.io/enflame-vgpu-devices-allocated",
        use_uuids=("enflame.com/use-gpuuuid",),
        avoid_uuids=("enflame.com/nouse-gpuuuid",),
    )

    def mutate(self, container: ContainerDraft, pod: PodDraft) -> bool | Denied:
        """Copy values between limits and requests: the apiserver requires them to be equal."""
        names = self._asked(container)
        for name in names:
            value = container.limits.get(name, container.requests.get(name, 0))
            match read(value):
                case Whole(cores) if name == self.names.cores and not 0 < cores <= CORES:
                    return Denied(f"{name} must be in range (0,{CORES}]")
                case Whole(number) if number <= 0:
                    return Denied(f"{name} must be greater than 0")
            container.limits.setdefault(name, value)
            container.requests.setdefault(name, value)
        return bool(names)

    def _asked(self, resources: Resources) -> list[str]:
        """The resources that count: the size of a profile, else memory and cores."""
        if resources.text(self.names.count) is not None:
            return [self.names.count]
        return [name for name in (self.names.memory, self.names.cores) if resources.text(name) is not None]

    def least_memory(self, annotations: Mapping[str, str]) -> int:
        return 0

    def request(self, resources: Resources) -> Request | BadRequest | None:
        names = self._asked(resources)
        if not names:
            return None
        if names == [self.names.count]:
            size = resources.amount(self.names.count, least=1, unit="slices")
            if isinstance(size, BadRequest):
                return size
            return DrsRequest(vendor=self.key, count=1, size=size or 0)
        memory = memory_of(resources, self.names.memory)
        if isinstance(memory, BadRequest):
            return memory
        cores = resources.amount(self.names.cores, least=1, most=CORES, unit="per cent")
        if isinstance(cores, BadRequest):
            return cores
        if memory == 0 and self.names.memory in names:
            return BadRequest(self.names.memory, "0", "write a number of GB from 1, or leave it out")
        return DrsRequest(vendor=self.key, count=1, memory=memory, cores=cores or 0)

    def decode_cards(self, text: str, node: Node) -> tuple[Device, ...]:
        return devices_from(text, node=node.name, vendor=self.key)

    def fit(self, ask: Ask) -> Grants | Misfit:
        return first_fit(self, ask, lambda card: self._judge(card, ask))

    def _judge(self, card: Card, ask: Ask) -> Grant | CardMisfit:
        device = card.device
        profile = as_drs(ask.request).choose(device)
        if profile is None:
            return CardMisfit(device.uuid, Reason.MODE_NOT_FIT)
        refusal = card_checks.refuse_identity(self, ask, card) or _refuse_slices(card, profile)
        refusal = refusal or card_checks.refuse_sharing(self, ask, card)
        if refusal is not None:
            return refusal
        grant = Grant(
            uuid=device.uuid,
            vendor=self.key,
            memory=profile.memory,
            cores=profile.cores(max_slice_of(device)),
            index=device.index,
            slots=profile.size,
            custom={
                PROFILE_NAME: profile.name,
                PROFILE_ID: profile.id,
                INDEX: device.custom[INDEX],
                MINOR: device.custom[MINOR],
            },
        )
        # Memory and cores run out together with the slices, unless the profiles have changed.
        short = card_checks.refuse_memory(card, grant.memory) or card_checks.refuse_cores(card, grant.cores)
        return refuse_unpaid(ask, card, grant) or short or grant

    def charge(self, device: Device, grant: Grant) -> Use:
        slots = slices_of(device, memory=grant.memory, cores=grant.cores)
        return Use(slots=slots, memory=grant.memory, cores=grant.cores)

    def annotations(self, bound: Bound) -> dict[str, str]:
        written = super().annotations(bound)
        firsts = [(position, grants[0]) for position, grants in enumerate(bound.grants) if grants]
        if not firsts:
            return written
        _, first = firsts[0]
        assigned = {
            bound.pod.containers[position].name: {
                "allocated": False,
                "request": grant.slots,
                **{key: grant.custom[key] for key in (PROFILE_ID, PROFILE_NAME) if grant.custom[key]},
            }
            for position, grant in firsts
        }
        return written | {
            "enflame.com/gcu-assigned": "false",
            "enflame.com/gcu-assigned-time": bound.nanoseconds,
            "enflame.com/gcu-assigned-index": first.custom[INDEX],
            "enflame.com/gcu-assigned-id": first.custom[INDEX],
            "enflame.com/gcu-assigned-minor": first.custom[MINOR],
            "enflame.com/gcu-request-size": str(first.slots),
            "assigned-containers": msgspec.json.encode(dict(sorted(assigned.items()))).decode(),
        }


def as_drs(request: Request) -> DrsRequest:
    """A plain request, which this vendor did not parse itself, names memory and cores."""
    if isinstance(request, DrsRequest):
        return request
    return DrsRequest(vendor=request.vendor, count=request.count, memory=request.memory, cores=request.cores)


def _refuse_slices(card: Card, profile: Profile) -> CardMisfit | None:
    free = card.device.slots - card.used
    if free >= profile.size:
        return None
    return CardMisfit(
        card.device.uuid, Reason.CARD_SLOTS_EXHAUSTED, asked=profile.size, free=free, total=card.device.slots
    )
