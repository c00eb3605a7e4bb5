"""Every annotation decoder against arbitrary text: a value or a WireError, and values survive a rewrite."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC
from typing import Any

import atheris

with atheris.instrument_imports(include=["tessera.wire"]):
    from tessera.vendors.pod_reader import decode_scoring_weights
    from tessera.wire.errors import WireError
    from tessera.wire.golang import parse_bool
    from tessera.wire.pod_devices import (
        decode_claim_devices,
        decode_mig_allocations,
        decode_pod_devices,
        encode_claim_devices,
        encode_mig_allocations,
        encode_pod_devices,
        salvage_pod_devices,
        split_legacy_uuid,
    )
    from tessera.wire.quantity import read
    from tessera.wire.registration import (
        decode_handshake,
        decode_node_lock,
        decode_pair_scores,
        decode_registration,
        encode_node_lock,
        encode_pair_scores,
        encode_registration_json,
    )


def decode_nvidia(text: str) -> object:
    return decode_registration(text, vendor="NVIDIA")


REWRITTEN: tuple[tuple[Callable[[str], Any], Callable[[Any], str]], ...] = (
    (decode_pod_devices, encode_pod_devices),
    (decode_nvidia, encode_registration_json),
    (decode_pair_scores, encode_pair_scores),
    (decode_claim_devices, encode_claim_devices),
    (decode_scoring_weights, "slot={0.slot},core={0.core},memory={0.memory}".format),
)
"""decoders whose value is the same after encoding and decoding it again"""


def never_refuses(text: str) -> None:
    read(text)
    parse_bool(text)
    split_legacy_uuid(text)
    salvage_pod_devices(text)
    decode_handshake(text, zone=UTC)


def refuses_or_survives_a_rewrite(text: str, *, is_unicode: bool) -> None:
    for decode, encode in REWRITTEN:
        try:
            value = decode(text)
        except WireError:
            continue
        if is_unicode:
            assert decode(encode(value)) == value, (decode, value)


def refuses_or_has_a_canonical_form(text: str) -> None:
    try:
        allocations = decode_mig_allocations(text)
    except WireError:
        pass
    else:
        assert set(decode_mig_allocations(encode_mig_allocations(allocations))) == set(allocations)
    try:
        lock = decode_node_lock(text)
    except WireError:
        return
    encode_node_lock(lock)


def one_input(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    is_unicode = text == data.decode("utf-8", "replace")
    never_refuses(text)
    refuses_or_survives_a_rewrite(text, is_unicode=is_unicode)
    refuses_or_has_a_canonical_form(text)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
