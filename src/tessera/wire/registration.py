"""Node annotations: the cards that plugins register, how well these are linked, the handshake, and the lock.

Cards are registered in a text form and in a JSON form. Both are read for every vendor: a value that starts with `[` is
JSON. A registration is understood as a whole or refused as a whole, because a node whose cards are half known must not
take pods. Ids that a pod annotation cannot hold are refused here, before anything can be granted on them. JSON omits
zero values: a missing `health` means unhealthy. Unreadable scores of pairs (`hami.io/node-nvidia-score`) do not cost
the node its cards: callers continue without scores.

In a handshake the scheduler asks with `Requesting_<time>`, a plugin answers with `Reported …`. Decoding one never
fails: an unreadable time is None. Times on the wire are in the writer's local zone, so callers pass a zone. A lock
(`hami.io/mutex.lock`) without an owner (HAMi v2.4, or empty names) can only expire. What a state means for a node, and
who takes a lock, is not decided here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from types import MappingProxyType
from typing import Annotated, Any

import msgspec

from tessera.core.model.devices import HAMI_CORE, NOTHING, Device, MigPlacement, MigProfile
from tessera.wire import golang
from tessera.wire.errors import WireError, quoted, shortened
from tessera.wire.golang import INT32_MAX, counter, format_bool, parse_bool, parse_integer
from tessera.wire.pod_devices import DEVICE_END, FIELD_SEPARATOR, has_separator

Counter = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]
Numa = Annotated[int, msgspec.Meta(ge=-INT32_MAX, le=INT32_MAX)]

_MAX_DEPTH = 8
"""levels of custominfo; deeper values could exhaust the stack when they are compared"""

_REQUESTING = "Requesting"
_REPORTED = "Reported"
_TIME = re.compile(r"([12][0-9]{3}([-.])[0-9]{2}\2[0-9]{2}) ([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.[0-9]+)?")
"""dashes since HAMi v2.5, dots in v2.4; years near the ends of the calendar are refused, since adding could overflow"""

PairScore = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]


class _Placement(msgspec.Struct, frozen=True):
    start: Counter = 0
    size: Counter = 0


class _Profile(msgspec.Struct, frozen=True):
    name: str = ""
    memoryMB: Counter = 0
    core: Counter = 0
    sliceCount: Counter = 0
    placements: list[_Placement] = []


class _Device(msgspec.Struct, frozen=True, omit_defaults=True):
    """Field order is the order on the wire."""

    id: str = ""
    index: Counter = 0
    count: Counter = 0
    devmem: Counter = 0
    devcore: Counter = 0
    type: str = ""
    numa: Numa = 0
    mode: str = ""
    migProfiles: list[_Profile] = []
    health: bool = False
    custominfo: dict[str, Any] = {}


_SHORT = 7
"""fields per device in HAMi v2.4"""
_LONG = 9
"""fields per device since v2.5, which added the index and the mode"""


def decode_registration(text: str, *, vendor: str) -> tuple[Device, ...]:
    """The cards of one vendor on a node, in the order of the annotation."""
    devices = _devices_from_json(text, vendor) if _is_json(text) else _devices_from_text(text, vendor)
    check_ids(devices)
    return devices


def encode_registration_json(devices: Sequence[Device]) -> str:
    """What HAMi's plugin writes since v2.8, with MIG profiles since v2.10."""
    check_ids(devices)
    return golang.encode([_wire(device) for device in devices])


def encode_registration_text(devices: Sequence[Device]) -> str:
    """What HAMi's plugins wrote from v2.5 to v2.7 and what some vendors still write."""
    check_ids(devices)
    text = "".join(_text_of(device) for device in devices)
    if _is_json(text):
        raise WireError(f"a text form that begins with {quoted(devices[0].uuid)} would be read as JSON")
    return text


def _is_json(text: str) -> bool:
    return text.lstrip().startswith("[")


def _devices_from_json(text: str, vendor: str) -> tuple[Device, ...]:
    member = "registered device"
    found = golang.decode_array(text, _Device, what="the registration", member=member)
    return tuple(_device(wire, f"{member} {position}", vendor) for position, wire in enumerate(found))


def _device(wire: _Device, where: str, vendor: str) -> Device:
    if not _is_shallow(wire.custominfo, _MAX_DEPTH):
        raise WireError(f"{where}: custominfo is nested more than {_MAX_DEPTH} levels deep")
    return Device(
        uuid=wire.id,
        vendor=vendor,
        index=wire.index,
        slots=wire.count,
        memory=wire.devmem,
        cores=wire.devcore,
        model=wire.type,
        numa=max(wire.numa, 0),
        mode=wire.mode,
        healthy=wire.health,
        mig_profiles=tuple(_profile(profile, where) for profile in wire.migProfiles),
        custom=MappingProxyType(wire.custominfo) if wire.custominfo else NOTHING,
    )


def _profile(wire: _Profile, where: str) -> MigProfile:
    if not wire.name or any(place.size == 0 for place in wire.placements):
        raise WireError(f"{where}: MIG profile {quoted(wire.name)} lacks its name or the size of a placement")
    return MigProfile(
        name=wire.name,
        memory=wire.memoryMB,
        cores=wire.core,
        slices=wire.sliceCount,
        placements=tuple(MigPlacement(place.start, place.size) for place in wire.placements),
    )


def _wire(device: Device) -> _Device:
    return _Device(
        id=device.uuid,
        index=device.index,
        count=device.slots,
        devmem=device.memory,
        devcore=device.cores,
        type=device.model,
        numa=device.numa,
        mode=device.mode,
        migProfiles=[
            _Profile(p.name, p.memory, p.cores, p.slices, [_Placement(a.start, a.size) for a in p.placements])
            for p in device.mig_profiles
        ],
        health=device.healthy,
        custominfo=dict(device.custom),
    )


def _is_shallow(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    members: Iterable[Any] = value.values() if isinstance(value, Mapping) else value
    return levels > 0 and all(_is_shallow(member, levels - 1) for member in members)


def _devices_from_text(text: str, vendor: str) -> tuple[Device, ...]:
    if DEVICE_END not in text:
        raise WireError("node annotation missing device separator")
    return tuple(_device_from_text(piece, vendor) for piece in text.split(DEVICE_END) if piece)


def _device_from_text(piece: str, vendor: str) -> Device:
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


def _text_of(device: Device) -> str:
    texts = (device.model, device.mode)
    if any(FIELD_SEPARATOR in text or DEVICE_END in text for text in texts):
        raise WireError(f"model or mode of device {quoted(device.uuid)} cannot be written in the text form")
    numbers = (str(device.slots), str(device.memory), str(device.cores))
    values = (device.uuid, *numbers, device.model, str(device.numa), format_bool(device.healthy))
    return FIELD_SEPARATOR.join((*values, str(device.index), device.mode)) + DEVICE_END


def check_ids(devices: Iterable[Device]) -> None:
    """Raises WireError unless every card has an id of its own that pod annotations can carry."""
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


@dataclass(frozen=True, slots=True)
class Requesting:
    """The scheduler asked, and no plugin has answered since."""

    time: datetime | None


@dataclass(frozen=True, slots=True)
class Reported:
    """A plugin asks for its registration to be read again."""


def decode_handshake(text: str | None, *, zone: tzinfo) -> Requesting | Reported | None:
    """Decode a handshake annotation; None if it is missing. HAMi finds its keyword anywhere in the text, and treats
    every other value like a report, as when a scheduler up to v2.9 gave the node up (`Deleted_<time>`)."""
    if text is None:
        return None
    return Requesting(_time_after_word(text, zone)) if _REQUESTING in text else Reported()


def encode_requesting(now: datetime, *, zone: tzinfo) -> str:
    return f"{_REQUESTING}_{_local(now, zone)}"


def encode_reported(now: datetime, *, zone: tzinfo) -> str:
    return f"{_REPORTED} {_local(now, zone)}"


def _local(now: datetime, zone: tzinfo) -> str:
    return now.astimezone(zone).replace(tzinfo=None).isoformat(sep=" ", timespec="seconds")


def _time_after_word(text: str, zone: tzinfo) -> datetime | None:
    found = _TIME.fullmatch(text.partition("_")[2])
    if found is None:
        return None
    try:
        return datetime.fromisoformat(f"{found[1].replace('.', '-')} {found[3]}").replace(tzinfo=zone)
    except ValueError:
        return None


class _Row(msgspec.Struct, frozen=True):
    uuid: str = ""
    score: dict[str, PairScore] = {}


def decode_pair_scores(text: str) -> dict[str, Mapping[str, int]]:
    """Scores by both uuids; each direction as the plugin wrote it."""
    scores: dict[str, Mapping[str, int]] = {}
    rows = golang.decode_array(text, _Row, what="the pair score annotation", member="pair score")
    for position, row in enumerate(rows):
        if not row.uuid:
            raise WireError(f"pair score {position} has no uuid")
        if row.uuid in scores:
            raise WireError(f"device {quoted(row.uuid)} has two rows of pair scores")
        scores[row.uuid] = row.score
    return scores


def encode_pair_scores(scores: Mapping[str, Mapping[str, int]]) -> str:
    """Rows in the order given, the scores of a row sorted by uuid."""
    return golang.encode([{"uuid": uuid, "score": dict(sorted(row.items()))} for uuid, row in scores.items()])


_OWNED = 3
"""parts of a value that names its pod: time, namespace, name"""
_RFC3339 = re.compile(
    r"[12][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:Z|[+-][0-9]{2}:[0-9]{2})"
)
"""years near the ends of the calendar are refused, because arithmetic with them could overflow"""


@dataclass(frozen=True, slots=True)
class NodeLock:
    """Which pod holds a node, and since when."""

    time: datetime
    """aware"""
    namespace: str | None = None
    name: str | None = None
    """both None where the lock names no pod"""

    @property
    def owner(self) -> tuple[str, str] | None:
        """Namespace and name of the pod, or None."""
        return (self.namespace, self.name) if self.namespace and self.name else None


def decode_node_lock(text: str) -> NodeLock:
    time, *owner = text.split(",")
    if len(owner) not in (0, _OWNED - 1):
        raise WireError(
            f"malformed lock annotation: expected {_OWNED} parts, got {len(owner) + 1} from {shortened(text)}"
        )
    namespace, name = owner if all(owner) and owner else (None, None)
    return NodeLock(_rfc3339(time), namespace, name)


def encode_node_lock(lock: NodeLock) -> str:
    """In UTC and whole seconds; a lock without an owner is written in the legacy form."""
    time = lock.time.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return time if lock.owner is None else ",".join((time, *lock.owner))


def _rfc3339(text: str) -> datetime:
    if _RFC3339.fullmatch(text) is None:
        raise WireError(f"malformed lock annotation: {quoted(text)} is not an RFC 3339 time")
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise WireError(f"malformed lock annotation: {quoted(text)} is not a time: {error}") from error
