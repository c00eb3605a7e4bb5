"""Node annotations in which plugins register their cards, in the text form and in the JSON form.

Both forms are read for every vendor: a value that starts with `[` is JSON. A registration is understood as a whole or
refused as a whole, because a node whose cards are half known must not take pods. Ids that a pod annotation cannot hold
are refused here, before anything can be granted on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from tessera.core.devices import HAMI_CORE, Device
from tessera.wire.errors import WireError
from tessera.wire.gobool import format_bool, parse_bool
from tessera.wire.integers import INT32_MAX, counter, parse_integer
from tessera.wire.pod_devices import DEVICE_END, FIELD_SEPARATOR, has_separator
from tessera.wire.quotes import quoted
from tessera.wire.registration_json import devices_from_json, json_from_devices

_SHORT = 7
"""fields per device in HAMi v2.4"""
_LONG = 9
"""fields per device since v2.5, which added the index and the mode"""


def decode_registration(text: str, *, vendor: str) -> tuple[Device, ...]:
    """The cards of one vendor on a node, in the order of the annotation."""
    read = devices_from_json if _is_json(text) else _devices_from_text
    devices = read(text, vendor=vendor)
    _check_ids(devices)
    return devices


def encode_registration_json(devices: Sequence[Device]) -> str:
    """What HAMi's plugin writes since v2.8, with MIG profiles since v2.10."""
    _check_ids(devices)
    return json_from_devices(devices)


def encode_registration_text(devices: Sequence[Device], fields: Literal[7, 9] = 9) -> str:
    """What HAMi's plugins wrote up to v2.7 and what some vendors still write; 7 fields lose index and mode."""
    _check_ids(devices)
    text = "".join(_text_of(device, fields) for device in devices)
    if _is_json(text):
        raise WireError(f"a text form that begins with {quoted(devices[0].uuid)} would be read as JSON")
    return text


def _is_json(text: str) -> bool:
    return text.lstrip().startswith("[")


def _devices_from_text(text: str, *, vendor: str) -> tuple[Device, ...]:
    if DEVICE_END not in text:
        raise WireError("node annotation missing device separator")
    return tuple(_device_from_text(piece, vendor=vendor) for piece in text.split(DEVICE_END) if piece)


def _device_from_text(piece: str, *, vendor: str) -> Device:
    fields = piece.split(FIELD_SEPARATOR)
    if len(fields) == 1:
        raise WireError(f"malformed node annotation segment: {quoted(piece)}")
    if len(fields) not in (_SHORT, _LONG):
        raise WireError(f"unexpected field count {len(fields)} in node annotation")
    uuid, count, memory, cores, model, numa, health = fields[:_SHORT]
    index, mode = fields[_SHORT:] or ("0", HAMI_CORE)
    return Device(
        uuid=uuid,
        vendor=vendor,
        index=_index(index),
        slots=counter(count, "count"),
        memory=counter(memory, "memory"),
        cores=counter(cores, "core"),
        model=model,
        numa=_numa(numa),
        mode=mode,
        healthy=_health(health),
    )


def _index(text: str) -> int:
    value = parse_integer(text)
    if value is not None and value < 0:
        raise WireError(f"index field must not be negative: {value}")
    return counter(text, "index")


def _numa(text: str) -> int:
    value = parse_integer(text)
    return 0 if value is not None and -INT32_MAX <= value < 0 else counter(text, "numa")


def _health(text: str) -> bool:
    value = parse_bool(text)
    if value is None:
        raise WireError(f"invalid health field: {quoted(text)} is neither true nor false")
    return value


def _text_of(device: Device, fields: int) -> str:
    texts = (device.model, device.mode)
    if any(FIELD_SEPARATOR in text or DEVICE_END in text for text in texts):
        raise WireError(f"model or mode of device {quoted(device.uuid)} cannot be written in the text form")
    numbers = (str(device.slots), str(device.memory), str(device.cores))
    values = (device.uuid, *numbers, device.model, str(device.numa), format_bool(device.healthy))
    later = (str(device.index), device.mode) if fields == _LONG else ()
    return FIELD_SEPARATOR.join((*values, *later)) + DEVICE_END


def _check_ids(devices: Iterable[Device]) -> None:
    seen: set[str] = set()
    for device in devices:
        if not device.uuid:
            raise WireError("a registered device has no id")
        if has_separator(device.uuid):
            raise WireError(
                f"device id {quoted(device.uuid)} holds one of `,` `:` `;`, which pod annotations cannot carry"
            )
        if device.uuid in seen:
            raise WireError(f"device {quoted(device.uuid)} is registered twice")
        seen.add(device.uuid)
