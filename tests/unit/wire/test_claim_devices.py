"""The record of a bound pod's claims, which is read exactly or not at all."""

from __future__ import annotations

import pytest

from tessera.core.devices import MigPlacement, MigSlot
from tessera.wire.errors import WireError
from tessera.wire.pod_devices import MAX_ENTRIES, ClaimDevice, decode_claim_devices, encode_claim_devices

INSTANCE = ClaimDevice("GPU-b", 18000, 16, "1g.18gb", 2, 1)
TEXT = (
    '{"u1":[{"uuid":"GPU-a","memory":4096,"cores":30}],'
    '"u2":[{"uuid":"GPU-b","memory":18000,"cores":16,"profile":"1g.18gb","start":2,"size":1}]}'
)


def test_it_is_read_and_written_byte_for_byte() -> None:
    devices = {"u2": (INSTANCE,), "u1": (ClaimDevice("GPU-a", 4096, 30),)}
    assert encode_claim_devices(devices) == TEXT
    assert decode_claim_devices(TEXT) == devices
    assert INSTANCE.slot == MigSlot("1g.18gb", MigPlacement(2, 1))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"u":null}',
        '{"\udc81":[]}',
        '{"u":[{"memory":1,"cores":1}]}',
        '{"u":[{"uuid":"","memory":1,"cores":1}]}',
        '{"u":[{"uuid":"a","memory":-1,"cores":1}]}',
        '{"u":[{"uuid":"a","memory":1,"cores":1,"more":1}]}',
        '{"u":[{"uuid":"a","memory":2147483648,"cores":1}]}',
        '{"u":' + "[" * 100_000,
        '{"u":[' + '{"uuid":"a","memory":1,"cores":1},' * MAX_ENTRIES + "]}",
    ],
)
def test_what_cannot_be_read_is_not_taken_for_nothing(text: str) -> None:
    with pytest.raises(WireError, match="devices of its claims"):
        decode_claim_devices(text)
