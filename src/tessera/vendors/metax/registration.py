"""Cards that MetaX's plugin registers for sGPU: a JSON array of its own (`metax-tech.com/node-gpu-devices`).

A registration is accepted or refused as a whole. The plugin also writes what is still available; that is ignored,
because the ledger knows it sooner.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from tessera.core.devices import Device
from tessera.vendors.base import Amount
from tessera.wire.gojson import decode_array
from tessera.wire.integers import INT32_MAX
from tessera.wire.registration import check_ids

QOS_POLICY = "QosPolicy"
MODEL = "Model"
LINK_ZONE = "LinkZone"
"""keys of `Device.custom`"""


class Registered(Struct, frozen=True, kw_only=True, rename="camel"):
    """One card on the wire. Missing fields are zero, so a card without `health` is unhealthy."""

    uuid: str = ""
    model: str = ""
    total_dev_count: Amount = 0
    total_compute: Amount = 0
    total_v_ram: Amount = 0
    """MiB"""
    numa: Annotated[int, Meta(ge=-1, le=INT32_MAX)] = 0
    healthy: bool = False
    qos_policy: str = ""
    link_zone: Annotated[int, Meta(ge=-INT32_MAX, le=INT32_MAX)] = 0
    """cards in one zone (above 0) are linked directly"""


def read_cards(text: str, *, vendor: str) -> tuple[Device, ...]:
    """The cards in the order of the annotation, which is also their index."""
    cards = decode_array(text, Registered, what="the registration", member="registered card")
    devices = tuple(_device(card, index=index, vendor=vendor) for index, card in enumerate(cards))
    check_ids(devices)
    return devices


def _device(card: Registered, *, index: int, vendor: str) -> Device:
    return Device(
        uuid=card.uuid,
        vendor=vendor,
        index=index,
        slots=card.total_dev_count,
        memory=card.total_v_ram,
        cores=card.total_compute,
        model=vendor,
        numa=max(card.numa, 0),
        healthy=card.healthy,
        custom={QOS_POLICY: card.qos_policy, MODEL: card.model, LINK_ZONE: card.link_zone},
    )
