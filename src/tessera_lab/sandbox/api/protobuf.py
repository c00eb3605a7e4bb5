"""Reads the protobuf bodies that kubectl's typed commands send: `create deployment`, `auth can-i`, `drain` and others.

Only the kinds and fields in `MESSAGES` are read; other fields are skipped, as protobuf readers do. An empty text counts
as absent. Responses are always JSON, which every client accepts as well.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tessera_lab.sandbox.api.errors import bad_request, unsupported_media
from tessera_lab.sandbox.api.kinds import Json

MEDIA = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\x00"

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""wire types"""

Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message: its JSON name and what its value means."""

    name: str
    convert: Convert
    repeated: bool = False
    mapped: bool = False


Message = dict[int, Field]


def decode(body: bytes) -> Json:
    """The object in a Kubernetes protobuf envelope, as its JSON would have it."""
    if not body.startswith(MAGIC):
        raise bad_request("the body lacks the protobuf prefix of Kubernetes")
    envelope = _read(_ENVELOPE, body[len(MAGIC) :])
    heading: Json = envelope.get("typeMeta", {})
    message = MESSAGES.get(heading.get("kind", ""))
    if message is None:
        raise unsupported_media(f"{MEDIA} of a {heading.get('kind', '')!r}", ("application/json",))
    return heading | _read(message, envelope.get("raw", b""))


def _read(message: Message, data: bytes) -> Json:
    content: Json = {}
    for number, value in _fields(data):
        field = message.get(number)
        if field is None:
            continue
        try:
            found = field.convert(value)
        except (AttributeError, TypeError, ValueError, OverflowError, OSError) as error:
            raise bad_request(f"the protobuf field {field.name} has the wrong type") from error
        if field.mapped:
            content.setdefault(field.name, {})[found.get("key", "")] = found.get("value", "")
        elif field.repeated:
            content.setdefault(field.name, []).append(found)
        elif found not in (None, ""):
            content[field.name] = found
    return content


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        wire = tag & 7
        if wire == _VARINT:
            value, position = _varint(data, position)
            yield tag >> 3, value
            continue
        if wire == _BYTES:
            length, position = _varint(data, position)
        elif wire in (_FIXED64, _FIXED32):
            length = 8 if wire == _FIXED64 else 4
        else:
            raise bad_request(f"unknown protobuf wire type {wire}")
        if position + length > len(data):
            raise bad_request("the protobuf body ends too early")
        yield tag >> 3, data[position : position + length]
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise bad_request("the protobuf body ends too early")


def _text(value: bytes) -> str:
    return value.decode()


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _integer(value: int) -> int:
    return value - 2**64 if value >= 2**63 else int(value)


def _time(value: bytes) -> str | None:
    seconds = _read({1: Field("seconds", _integer)}, value).get("seconds", 0)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if seconds else None


def _nested(message: Message) -> Convert:
    return lambda value: _read(message, memoryview(value).tobytes())


def _entry(convert: Convert) -> Convert:
    return _nested({1: Field("key", _text), 2: Field("value", convert)})


def _texts(number_to_name: dict[int, str]) -> Message:
    return {number: Field(name, _text) for number, name in number_to_name.items()}


def _quantity(value: bytes) -> str:
    return str(_read({1: Field("string", _text)}, value).get("string", "0"))


_ENVELOPE: Message = {
    1: Field("typeMeta", _nested(_texts({1: "apiVersion", 2: "kind"}))),
    2: Field("raw", bytes),
}
_OWNER = _texts({1: "kind", 3: "name", 4: "uid", 5: "apiVersion"}) | {
    6: Field("controller", bool),
    7: Field("blockOwnerDeletion", bool),
}
_METADATA = Field(
    "metadata",
    _nested(
        _texts({1: "name", 2: "generateName", 3: "namespace", 5: "uid", 6: "resourceVersion"})
        | {
            8: Field("creationTimestamp", _time),
            11: Field("labels", _entry(_text), mapped=True),
            12: Field("annotations", _entry(_text), mapped=True),
            13: Field("ownerReferences", _nested(_OWNER), repeated=True),
            14: Field("finalizers", _text, repeated=True),
        }
    ),
)
_REFERENCE = _nested(
    _texts({1: "kind", 2: "namespace", 3: "name", 4: "uid", 5: "apiVersion", 6: "resourceVersion", 7: "fieldPath"})
)
_AMOUNTS = _entry(_quantity)
_DELETE_OPTIONS: Message = {
    1: Field("gracePeriodSeconds", _integer),
    2: Field("preconditions", _nested(_texts({1: "uid", 2: "resourceVersion"}))),
    4: Field("propagationPolicy", _text),
    5: Field("dryRun", _text, repeated=True),
}
_RESOURCE = _texts({1: "namespace", 2: "verb", 3: "group", 4: "version", 5: "resource", 6: "subresource", 7: "name"})
_ACCESS: Message = {
    1: Field("resourceAttributes", _nested(_RESOURCE)),
    2: Field("nonResourceAttributes", _nested(_texts({1: "path", 2: "verb"}))),
}
_QUOTA: Message = {
    1: Field("hard", _AMOUNTS, mapped=True),
    2: Field("scopes", _text, repeated=True),
}
_SELECTOR: Message = {1: Field("matchLabels", _entry(_text), mapped=True)}
_RESOURCES: Message = {1: Field("limits", _AMOUNTS, mapped=True), 2: Field("requests", _AMOUNTS, mapped=True)}
_CONTAINER: Message = {
    **_texts({1: "name", 2: "image"}),
    3: Field("command", _text, repeated=True),
    4: Field("args", _text, repeated=True),
    6: Field("ports", _nested({3: Field("containerPort", _integer)}), repeated=True),
    8: Field("resources", _nested(_RESOURCES)),
}
_POD_SPEC: Message = {2: Field("containers", _nested(_CONTAINER), repeated=True), 3: Field("restartPolicy", _text)}
_TEMPLATE = _nested({1: _METADATA, 2: Field("spec", _nested(_POD_SPEC))})
_DEPLOYMENT: Message = {
    1: Field("replicas", _integer),
    2: Field("selector", _nested(_SELECTOR)),
    3: Field("template", _TEMPLATE),
}
_JOB: Message = {
    1: Field("parallelism", _integer),
    2: Field("completions", _integer),
    6: Field("template", _TEMPLATE),
    7: Field("backoffLimit", _integer),
}

MESSAGES: dict[str, Message] = {
    "Binding": {1: _METADATA, 2: Field("target", _REFERENCE)},
    "ConfigMap": {
        1: _METADATA,
        2: Field("data", _entry(_text), mapped=True),
        3: Field("binaryData", _entry(_base64), mapped=True),
        4: Field("immutable", bool),
    },
    "DeleteOptions": _DELETE_OPTIONS,
    "Deployment": {1: _METADATA, 2: Field("spec", _nested(_DEPLOYMENT))},
    "Eviction": {1: _METADATA, 2: Field("deleteOptions", _nested(_DELETE_OPTIONS))},
    "Job": {1: _METADATA, 2: Field("spec", _nested(_JOB))},
    "Namespace": {1: _METADATA},
    "ResourceQuota": {1: _METADATA, 2: Field("spec", _nested(_QUOTA))},
    "Secret": {
        1: _METADATA,
        2: Field("data", _entry(_base64), mapped=True),
        3: Field("type", _text),
        4: Field("stringData", _entry(_text), mapped=True),
        5: Field("immutable", bool),
    },
    "SelfSubjectAccessReview": {1: _METADATA, 2: Field("spec", _nested(_ACCESS))},
    "SelfSubjectReview": {1: _METADATA},
    "ServiceAccount": {1: _METADATA, 2: Field("secrets", _REFERENCE, repeated=True)},
}
"""by kind; the numbers are those of the published `generated.proto` files"""
