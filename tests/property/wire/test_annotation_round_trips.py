from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.model.devices import HAMI_CORE, Device, MigPlacement, MigProfile, MigSlot
from tessera.core.model.requests import Weights
from tessera.vendors.pod_reader import decode_scoring_weights
from tessera.wire.errors import WireError
from tessera.wire.pod_devices import (
    DeviceEntry,
    MigAllocation,
    decode_mig_allocations,
    decode_pod_devices,
    encode_mig_allocations,
    encode_pod_devices,
    salvage_pod_devices,
    split_legacy_uuid,
)
from tessera.wire.registration import (
    NodeLock,
    Requesting,
    decode_handshake,
    decode_node_lock,
    decode_pair_scores,
    decode_registration,
    encode_node_lock,
    encode_pair_scores,
    encode_registration_json,
    encode_registration_text,
    encode_requesting,
)

texts = st.text(st.characters(codec="utf-8"), max_size=20)
plain = st.text(st.characters(codec="utf-8", exclude_characters=",:;"), max_size=20)
uuids = plain.filter(bool)
bracketless = uuids.filter(lambda uuid: not set("[]") & set(uuid))
counters = st.integers(0, 2**31 - 1)
positive = st.integers(1, 2**31 - 1)

entries = st.builds(DeviceEntry, uuids, plain, counters, counters)
pods = st.lists(st.lists(entries, max_size=4), max_size=6)

placements = st.builds(MigPlacement, counters, positive)
profiles = st.builds(
    MigProfile, texts.filter(bool), counters, counters, counters, st.lists(placements, max_size=3).map(tuple)
)
scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts


def registrations(
    models: st.SearchStrategy[str], *, uuids: st.SearchStrategy[str] = uuids, **more: st.SearchStrategy[Any]
) -> st.SearchStrategy[list[Device]]:
    device = st.builds(
        Device,
        uuid=uuids,
        vendor=st.just("NVIDIA"),
        index=counters,
        slots=counters,
        memory=counters,
        cores=counters,
        model=models,
        numa=counters,
        mode=models,
        healthy=st.booleans(),
        **more,
    )
    return st.lists(device, max_size=4, unique_by=lambda d: d.uuid)


identities = st.just((None, None, None)) | st.tuples(uuids, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
allocations = st.builds(
    lambda container, device, uuid, slot, identity: MigAllocation(container, device, uuid, slot, *identity),
    counters,
    counters,
    uuids,
    st.builds(MigSlot, texts.filter(bool), placements),
    identities,
)
zones = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
seconds = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=zones).map(
    lambda time: time.replace(microsecond=0)
)


@given(pods)
def test_pod_devices_decode_to_what_was_encoded(containers: list[list[DeviceEntry]]) -> None:
    assert decode_pod_devices(encode_pod_devices(containers)) == containers


@given(pods, st.integers(0, 5))
def test_further_separators_at_the_end_only_add_empty_containers(
    containers: list[list[DeviceEntry]], more: int
) -> None:
    decoded = decode_pod_devices(encode_pod_devices(containers) + ";" * more)
    assert decoded[: len(containers)] == containers
    assert not any(decoded[len(containers) :])


@given(pods, texts.filter(lambda text: ";" not in text and ":" not in text))
def test_damage_to_one_container_hides_no_other(containers: list[list[DeviceEntry]], damage: str) -> None:
    decoded, _ = salvage_pod_devices(encode_pod_devices([[], *containers]).replace(";", damage + ";", 1))
    assert decoded[1 : len(containers) + 1] == containers


@given(
    registrations(texts, mig_profiles=st.lists(profiles, max_size=3).map(tuple), custom=st.dictionaries(texts, scalars))
)
def test_json_registrations_decode_to_what_was_encoded(devices: list[Device]) -> None:
    assert decode_registration(encode_registration_json(devices), vendor="NVIDIA") == tuple(devices)


@given(registrations(plain, uuids=bracketless).filter(bool))
def test_text_registrations_decode_to_what_was_encoded(devices: list[Device]) -> None:
    assert decode_registration(encode_registration_text(devices), vendor="NVIDIA") == tuple(devices)


@given(registrations(plain, uuids=bracketless).filter(bool))
def test_seven_fields_lose_only_index_and_mode(devices: list[Device]) -> None:
    texts = (piece.split(",")[:7] for piece in encode_registration_text(devices).split(":")[:-1])
    decoded = decode_registration("".join(",".join(fields) + ":" for fields in texts), vendor="NVIDIA")
    assert decoded == tuple(replace(device, index=0, mode=HAMI_CORE) for device in devices)


@given(st.lists(allocations, max_size=5, unique_by=lambda a: (a.container, a.device)))
def test_mig_allocations_decode_to_what_was_encoded_in_order(reserved: list[MigAllocation]) -> None:
    ordered = tuple(sorted(reserved, key=lambda a: (a.container, a.device)))
    assert decode_mig_allocations(encode_mig_allocations(reserved)) == ordered


@given(bracketless, counters, counters)
def test_the_older_mig_notation_is_taken_apart(uuid: str, geometry: int, slot: int) -> None:
    assert split_legacy_uuid(f"{uuid}[{geometry}-{slot}]") == (uuid, (geometry, slot))


@given(st.dictionaries(uuids, st.dictionaries(texts, counters, max_size=4), max_size=4))
def test_pair_scores_decode_to_what_was_encoded(scores: dict[str, dict[str, int]]) -> None:
    assert decode_pair_scores(encode_pair_scores(scores)) == scores


@given(seconds, st.none() | st.tuples(uuids, uuids))
def test_a_node_lock_decodes_to_what_was_encoded(time: datetime, owner: tuple[str, str] | None) -> None:
    lock = NodeLock(time, *(owner or (None, None)))
    assert decode_node_lock(encode_node_lock(lock)) == lock


@given(seconds, zones)
def test_a_handshake_request_decodes_to_what_was_encoded(now: datetime, zone: timezone) -> None:
    assert decode_handshake(encode_requesting(now, zone=zone), zone=zone) == Requesting(now)


@given(st.tuples(*(st.integers(0, 2**63 - 1),) * 3).filter(any))
def test_scoring_weights_decode_to_what_was_encoded(numbers: tuple[int, int, int]) -> None:
    slot, core, memory = numbers
    assert decode_scoring_weights(f"slot={slot},core={core},memory={memory}") == Weights(slot, core, memory)


@pytest.mark.parametrize(
    "decode",
    [
        decode_pod_devices,
        lambda text: decode_registration(text, vendor="NVIDIA"),
        decode_mig_allocations,
        decode_pair_scores,
        decode_node_lock,
        decode_scoring_weights,
    ],
)
@given(st.text() | st.text('[]{}",:;0123456789abcidx-T+Z. ', max_size=60))
def test_any_text_is_decoded_or_refused_with_a_wire_error(decode: Callable[[str], object], text: str) -> None:
    with suppress(WireError):
        decode(text)


@given(st.text(), st.sampled_from(["", "Requesting_", "Reported ", "Deleted_"]))
def test_any_handshake_is_a_state(text: str, word: str) -> None:
    decode_handshake(word + text, zone=UTC)
