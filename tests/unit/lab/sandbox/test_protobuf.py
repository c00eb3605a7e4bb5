"""Bodies as kubectl's typed commands send them, written here byte by byte."""

from __future__ import annotations

import pytest

from tessera_lab.sandbox.api.errors import StatusError
from tessera_lab.sandbox.api.protobuf import MAGIC, MEDIA, decode
from tests.contract.client import Client


def varint(number: int) -> bytes:
    written = b""
    while number >= 0x80:
        written += bytes([number & 0x7F | 0x80])
        number >>= 7
    return written + bytes([number])


def field(number: int, value: bytes | str | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    raw = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def envelope(kind: str, raw: bytes) -> bytes:
    return MAGIC + field(1, field(1, "v1") + field(2, kind)) + field(2, raw) + field(4, "")


METADATA = field(
    1, field(1, "x") + field(2, "") + field(8, b"") + field(11, field(1, "a") + field(2, "b")) + field(14, "f")
)


@pytest.mark.parametrize(
    ("kind", "raw", "content"),
    [
        ("ConfigMap", field(2, field(1, "k") + field(2, "v")), {"data": {"k": "v"}}),
        ("ConfigMap", field(2, field(1, "k")) + field(4, 1), {"data": {"k": ""}, "immutable": True}),
        ("Secret", field(2, field(1, "k") + field(2, b"\x00")) + field(3, ""), {"data": {"k": "AA=="}}),
        (
            "ResourceQuota",
            field(2, field(1, field(1, "pods") + field(2, field(1, "3"))) + field(2, "NotBestEffort")),
            {"spec": {"hard": {"pods": "3"}, "scopes": ["NotBestEffort"]}},
        ),
        ("Eviction", field(2, field(1, 2**64 - 1)), {"deleteOptions": {"gracePeriodSeconds": -1}}),
        ("Namespace", field(2, field(1, "kubernetes")) + b"\x1d1234" + b"\x1912345678", {}),
        ("Binding", field(2, field(1, "Node") + field(3, "n")), {"target": {"kind": "Node", "name": "n"}}),
    ],
)
def test_an_object_is_read_as_its_json_would_be(kind: str, raw: bytes, content: dict[str, object]) -> None:
    found = decode(envelope(kind, METADATA + raw))
    assert (
        found
        == {
            "apiVersion": "v1",
            "kind": kind,
            "metadata": {"name": "x", "labels": {"a": "b"}, "finalizers": ["f"]},
        }
        | content
    )


def test_a_time_is_read_in_seconds() -> None:
    raw = field(1, field(8, field(1, 1_800_000_000)))
    assert decode(envelope("Namespace", raw))["metadata"] == {"creationTimestamp": "2027-01-15T08:00:00Z"}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", 400),
        (b"{}", 400),
        (MAGIC + b"\x0a\x7f", 400),
        (MAGIC + b"\xff" * 20, 400),
        (MAGIC + b"\x0b", 400),
        (MAGIC + b"\x80", 400),
        (envelope("Pod", b""), 415),
        (envelope("Namespace", field(1, 7)), 400),
        (envelope("Namespace", field(1, field(1, 7))), 400),
        (envelope("Namespace", field(1, field(1, b"\xff"))), 400),
        (envelope("Eviction", field(2, field(1, b"x"))), 400),
        (envelope("Namespace", field(1, field(8, field(1, 2**62)))), 400),
    ],
)
def test_a_body_that_is_no_such_protobuf_is_refused(body: bytes, code: int) -> None:
    with pytest.raises(StatusError) as refusal:
        decode(body)
    assert refusal.value.code == code


async def test_kubectl_creates_a_namespace_in_protobuf(api: Client) -> None:
    body = envelope("Namespace", field(1, field(1, "team")))
    answer = await api.ask("POST", "/api/v1/namespaces", body, media=MEDIA, accept=f"{MEDIA},application/json")
    assert (answer.status, answer.body["status"]["phase"]) == (201, "Active")
