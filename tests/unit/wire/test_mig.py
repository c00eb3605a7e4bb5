from __future__ import annotations

import pytest

from tessera.core.model.devices import MigPlacement, MigSlot
from tessera.wire.errors import WireError
from tessera.wire.pod_devices import MigAllocation, decode_mig_allocations, encode_mig_allocations, split_legacy_uuid

RESERVED = MigAllocation(0, 0, "GPU-m", MigSlot("2g.10gb", MigPlacement(0, 2)))
RESERVED_JSON = (
    '{"containerIndex":0,"deviceIndex":0,"gpuUUID":"GPU-m","profile":"2g.10gb","placement":{"start":0,"size":2}}'
)
REALISED = MigAllocation(0, 1, "GPU-m", MigSlot("2g.10gb", MigPlacement(2, 2)), "MIG-1", 3, 0)
REALISED_JSON = (
    '{"containerIndex":0,"deviceIndex":1,"gpuUUID":"GPU-m","profile":"2g.10gb","placement":{"start":2,"size":2},'
    '"migUUID":"MIG-1","gpuInstanceID":3,"computeInstanceID":0}'
)


def with_fields(**changes: str) -> str:
    """One allocation in JSON, with some members replaced by other JSON."""
    members = {
        "containerIndex": "0",
        "deviceIndex": "0",
        "gpuUUID": '"GPU-m"',
        "profile": '"p"',
        "placement": '{"size":1}',
    }
    return "[{" + ",".join(f'"{key}":{value}' for key, value in (members | changes).items()) + "}]"


def test_reservations_and_instances_are_read_and_written_byte_for_byte() -> None:
    text = f"[{RESERVED_JSON},{REALISED_JSON}]"
    assert decode_mig_allocations(text) == (RESERVED, REALISED)
    assert encode_mig_allocations([REALISED, RESERVED]) == text


@pytest.mark.parametrize("text", ["", "[]", "null"])
def test_a_pod_may_have_no_reservations(text: str) -> None:
    assert decode_mig_allocations(text) == ()


def test_keys_match_in_any_case_and_missing_numbers_are_zero() -> None:
    text = '[{"GpuUuid":"GPU-m","PROFILE":"2g.10gb","Placement":{"Size":2},"migUUID":"","gpuInstanceID":null,"new":1}]'
    assert decode_mig_allocations(text) == (RESERVED,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "the MIG annotation must be a JSON array, not dict"),
        ("x", "the MIG annotation is not valid JSON"),
        ("[1]", "MIG allocation 0: "),
        (with_fields(placement="1"), "MIG allocation 0: "),
        (with_fields(gpuInstanceID="-1", migUUID='"m"', computeInstanceID="0"), "MIG allocation 0: "),
        ("[{}]", "MIG allocation 0 is incomplete"),
        (with_fields(containerIndex="-1"), "MIG allocation 0 is incomplete"),
        (with_fields(deviceIndex="-1"), "MIG allocation 0 is incomplete"),
        (with_fields(deviceIndex="9" * 30), "MIG allocation 0 is incomplete"),
        (with_fields(gpuUUID='""'), "MIG allocation 0 is incomplete"),
        (with_fields(profile='""'), "MIG allocation 0 is incomplete"),
        (with_fields(placement='{"start":1}'), "MIG allocation 0 is incomplete"),
        (with_fields(placement='{"start":-1,"size":1}'), "MIG allocation 0 is incomplete"),
        (with_fields(migUUID='"m"'), "MIG allocation 0 has partial runtime identity"),
        (with_fields(gpuInstanceID="0"), "MIG allocation 0 has partial runtime identity"),
        (with_fields(gpuInstanceID="0", computeInstanceID="0"), "MIG allocation 0 has partial runtime identity"),
        (f"[{RESERVED_JSON},{RESERVED_JSON}]", "duplicate MIG allocation for container 0 device 0"),
        (f"[{RESERVED_JSON},{{}}]", "MIG allocation 1 is incomplete"),
    ],
)
def test_a_bad_reservation_is_refused_in_hamis_words(text: str, message: str) -> None:
    with pytest.raises(WireError) as caught:
        decode_mig_allocations(text)
    assert str(caught.value).startswith(message)


def test_a_bad_reservation_is_not_written() -> None:
    with pytest.raises(WireError, match="duplicate MIG allocation for container 0 device 0"):
        encode_mig_allocations([RESERVED, RESERVED])
    with pytest.raises(WireError, match="partial runtime identity"):
        encode_mig_allocations([MigAllocation(0, 0, "GPU-m", RESERVED.slot, mig_uuid="MIG-1")])


@pytest.mark.parametrize(
    ("uuid", "card", "place"),
    [
        ("GPU-a[1-2]", "GPU-a", (1, 2)),
        ("GPU-a[0-0]", "GPU-a", (0, 0)),
        ("GPU-a[10-31]tail", "GPU-a", (10, 31)),
        ("GPU-a", "GPU-a", None),
        ("GPU-a[", "GPU-a[", None),
        ("GPU-a[1]", "GPU-a[1]", None),
        ("GPU-a[1-2-3]", "GPU-a[1-2-3]", None),
        ("GPU-a[-1-2]", "GPU-a[-1-2]", None),
        ("GPU-a[x-2]", "GPU-a[x-2]", None),
        ("GPU-a]1-2[", "GPU-a]1-2[", None),
        ("GPU-a[" + "9" * 40 + "-1]", "GPU-a[" + "9" * 40 + "-1]", None),
        ("", "", None),
    ],
)
def test_the_older_notation_names_a_card_and_a_place(uuid: str, card: str, place: tuple[int, int] | None) -> None:
    assert split_legacy_uuid(uuid) == (card, place)
