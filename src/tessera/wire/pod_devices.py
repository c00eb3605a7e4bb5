"""The `…-devices-to-allocate` and `…-devices-allocated` annotations of a pod: which slices its containers got.

One entry per container, init containers first: the position identifies the container. HAMi's plugins append empty
entries when they allocate, so compare positions, never lengths.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from tessera.wire.errors import WireError
from tessera.wire.integers import INT32_MAX, counter
from tessera.wire.quotes import quoted

CONTAINER_END = ";"
DEVICE_END = ":"
FIELD_SEPARATOR = ","
_SEPARATORS = re.compile(f"[{CONTAINER_END}{DEVICE_END}{FIELD_SEPARATOR}]")
_FIELDS = 4


class DeviceEntry(NamedTuple):
    uuid: str
    word: str
    """the vendor's key, or the model where a vendor writes that"""
    memory: int
    """MiB"""
    cores: int


def has_separator(text: str) -> bool:
    """Whether the text contains a separator of this annotation."""
    return _SEPARATORS.search(text) is not None


def encode_pod_devices(containers: Sequence[Sequence[DeviceEntry]]) -> str:
    pieces = []
    for container in containers:
        for entry in container:
            pieces.append(_encoded(entry))
        pieces.append(CONTAINER_END)
    return "".join(pieces)


def decode_pod_devices(text: str) -> list[list[DeviceEntry]]:
    """The entries of every container; one unreadable entry refuses the whole text."""
    containers, problems = salvage_pod_devices(text)
    if problems:
        raise WireError(problems[0])
    return containers


def salvage_pod_devices(text: str) -> tuple[list[list[DeviceEntry]], list[str]]:
    """The readable entries, each at its container's position, and a message for each unreadable one."""
    problems: list[str] = []
    containers = [_readable(piece, problems) for piece in text.split(CONTAINER_END)]
    if not containers[-1]:
        containers.pop()
    return containers, problems


def _readable(container: str, problems: list[str]) -> list[DeviceEntry]:
    entries = []
    for piece in container.split(DEVICE_END):
        # Some HAMi versions wrote other things between these separators.
        if FIELD_SEPARATOR not in piece:
            continue
        try:
            entry = _decoded(piece)
        except WireError as error:
            problems.append(f"{error}")
        else:
            if entry is not None:
                entries.append(entry)
    return entries


def _decoded(piece: str) -> DeviceEntry | None:
    """One device; None for an entry without a uuid."""
    fields = piece.split(FIELD_SEPARATOR)
    if len(fields) < _FIELDS:
        raise WireError(
            "pod annotation format error, missing fields, do not use nodeName in task spec:"
            f" {quoted(piece)} has {len(fields)} of {_FIELDS} fields"
        )
    uuid, word, memory, cores = fields[:_FIELDS]
    if not uuid:
        return None
    try:
        return DeviceEntry(uuid, word, counter(memory, "memory"), counter(cores, "core"))
    except WireError as error:
        raise WireError(f"{error} (device {quoted(uuid)})") from error


def _encoded(entry: DeviceEntry) -> str:
    if not entry.uuid or has_separator(entry.uuid) or has_separator(entry.word):
        raise WireError(
            f"device {quoted(entry.uuid)} of type {quoted(entry.word)} cannot be written in a pod annotation"
        )
    if not (0 <= entry.memory <= INT32_MAX and 0 <= entry.cores <= INT32_MAX):
        raise WireError(f"device {quoted(entry.uuid)}: {entry.memory} MiB and {entry.cores} cores are out of range")
    return FIELD_SEPARATOR.join((entry.uuid, entry.word, str(entry.memory), str(entry.cores))) + DEVICE_END
