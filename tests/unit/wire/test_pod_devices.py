from __future__ import annotations

import pytest

from tessera.core.model.devices import MigPlacement, MigSlot
from tessera.wire.errors import WireError
from tessera.wire.pod_devices import (
    MAX_ENTRIES,
    ClaimDevice,
    DeviceEntry,
    MigAllocation,
    decode_claim_devices,
    decode_mig_allocations,
    decode_pod_devices,
    encode_claim_devices,
    encode_mig_allocations,
    encode_pod_devices,
    salvage_pod_devices,
    split_legacy_uuid,
)

G = DeviceEntry("GPU-a", "NVIDIA", 1000, 30)
G0 = DeviceEntry("GPU-0", "NVIDIA", 3000, 0)
G1 = DeviceEntry("GPU-1", "NVIDIA", 3000, 0)

GOLDEN = [
    ("", []),
    (";", [[]]),
    (";;", [[], []]),
    ("GPU-1,NVIDIA,3000,0:GPU-0,NVIDIA,3000,0:;", [[G1, G0]]),
    (";GPU-a,NVIDIA,1000,30:;;", [[], [G], []]),
    ("GPU-1,NVIDIA,3000,0:;;GPU-0,NVIDIA,3000,0:;", [[G1], [], [G0]]),
    (
        "GPU-m,NVIDIA,9856,29:GPU-m,NVIDIA,9856,29:;",
        [[DeviceEntry("GPU-m", "NVIDIA", 9856, 29), DeviceEntry("GPU-m", "NVIDIA", 9856, 29)]],
    ),
    ("n1-cambricon-mlu-1,MLU,1024,10:;", [[DeviceEntry("n1-cambricon-mlu-1", "MLU", 1024, 10)]]),
    ("MX-0,Metax-SGPU,4096,60:;", [[DeviceEntry("MX-0", "Metax-SGPU", 4096, 60)]]),
    ("U1,Ascend910B3,16384,0:;", [[DeviceEntry("U1", "Ascend910B3", 16384, 0)]]),
    ("n1-AWSNeuron-1,AWSNeuron,0,1:;", [[DeviceEntry("n1-AWSNeuron-1", "AWSNeuron", 0, 1)]]),
    ("U3,Vastai,0,0:U2,Vastai,0,0:;", [[DeviceEntry("U3", "Vastai", 0, 0), DeviceEntry("U2", "Vastai", 0, 0)]]),
    ("A,AMD Instinct MI300X,512,5:;", [[DeviceEntry("A", "AMD Instinct MI300X", 512, 5)]]),
    ("GPU-a[1-2],NVIDIA,9856,0:;", [[DeviceEntry("GPU-a[1-2]", "NVIDIA", 9856, 0)]]),
    ("GPU-a,NVIDIA,2147483647,0:;", [[DeviceEntry("GPU-a", "NVIDIA", 2147483647, 0)]]),
]

INSTANCE = ClaimDevice("GPU-b", 18000, 16, "1g.18gb", 2, 1)
TEXT = (
    '{"u1":[{"uuid":"GPU-a","memory":4096,"cores":30}],'
    '"u2":[{"uuid":"GPU-b","memory":18000,"cores":16,"profile":"1g.18gb","start":2,"size":1}]}'
)


@pytest.mark.parametrize(("text", "containers"), GOLDEN)
def test_what_hami_writes_is_written_and_read(text: str, containers: list[list[DeviceEntry]]) -> None:
    assert encode_pod_devices(containers) == text
    assert decode_pod_devices(text) == containers
    assert salvage_pod_devices(text) == (containers, [])


@pytest.mark.parametrize(
    ("text", "containers"),
    [
        # v2.4 writes a device without uuid and type for a container that follows one with a request
        ("GPU-1,NVIDIA,3000,0:;,,0,0:;GPU-0,NVIDIA,3000,0:;", [[G1], [], [G0]]),
        ("GPU-1,NVIDIA,3000,0:;,,0,0:;,,0,0:;", [[G1], [], []]),
        # every erase of HAMi's plugin adds a `;`
        (";GPU-0,NVIDIA,3000,0:;;", [[], [G0], []]),
        (";;;;", [[], [], [], []]),
        # endings left out, by hand or by another vendor
        ("GPU-a,NVIDIA,1000,30:", [[G]]),
        ("GPU-a,NVIDIA,1000,30", [[G]]),
        (";GPU-a,NVIDIA,1000,30", [[], [G]]),
        # pieces without a comma say nothing, further fields neither
        ("junk:GPU-a,NVIDIA,1000,30:::;junk", [[G]]),
        ("GPU-a,NVIDIA,1000,30,more,fields:;", [[G]]),
        # numbers as Go reads them
        ("GPU-a,NVIDIA,+1000,030:;", [[G]]),
        ("GPU-ü,,1,2:;", [[DeviceEntry("GPU-ü", "", 1, 2)]]),
    ],
)
def test_other_spellings_are_read(text: str, containers: list[list[DeviceEntry]]) -> None:
    assert decode_pod_devices(text) == containers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("GPU-a,NVIDIA:;", "pod annotation format error, missing fields, do not use nodeName in task spec"),
        ("GPU-a,NVIDIA,1:;", "pod annotation format error, missing fields, do not use nodeName in task spec"),
        (",:;", "pod annotation format error, missing fields, do not use nodeName in task spec"),
        ("GPU-a,NVIDIA,x,0:;", 'invalid memory field: "x"'),
        ("GPU-a,NVIDIA,,0:;", 'invalid memory field: ""'),
        ("GPU-a,NVIDIA,-1,0:;", 'invalid memory field: "-1"'),
        ("GPU-a,NVIDIA, 1,0:;", 'invalid memory field: " 1"'),
        ("GPU-a,NVIDIA,1_0,0:;", 'invalid memory field: "1_0"'),
        ("GPU-a,NVIDIA,\uff11,0:;", 'invalid memory field: "\uff11"'),
        ("GPU-a,NVIDIA,1.5,0:;", 'invalid memory field: "1.5"'),
        ("GPU-a,NVIDIA,2147483648,0:;", 'invalid memory field: "2147483648"'),
        ("GPU-a,NVIDIA,0,9223372036854775808:;", 'invalid core field: "9223372036854775808"'),
        ("GPU-a,NVIDIA,0,y:;", 'invalid core field: "y"'),
        ("GPU-a,NVIDIA,0," + "9" * 10_000 + ":;", 'invalid core field: "999'),
    ],
)
def test_a_damaged_entry_is_refused_in_hamis_words(text: str, message: str) -> None:
    with pytest.raises(WireError) as caught:
        decode_pod_devices(text)
    assert str(caught.value).startswith(message)
    assert len(str(caught.value)) < 400


def test_salvaging_keeps_the_readable_devices_at_their_positions() -> None:
    containers, problems = salvage_pod_devices("GPU-1,NVIDIA,3000,0:bad,NVIDIA,x,0:;short,1:;GPU-0,NVIDIA,3000,0:;")
    assert containers == [[G1], [], [G0]]
    assert len(problems) == 2
    assert 'device "bad"' in problems[0]
    assert '"short,1" has 2 of 4 fields' in problems[1]


@pytest.mark.no_cover
def test_thousands_of_entries_are_read() -> None:
    containers = [[DeviceEntry(f"GPU-{n}", "NVIDIA", n, n)] for n in range(20_000)]
    assert decode_pod_devices(encode_pod_devices(containers)) == containers


@pytest.mark.parametrize(
    "entry",
    [
        DeviceEntry("", "NVIDIA", 1, 1),
        DeviceEntry("a,b", "NVIDIA", 1, 1),
        DeviceEntry("a:b", "NVIDIA", 1, 1),
        DeviceEntry("a;b", "NVIDIA", 1, 1),
        DeviceEntry("a", "NVIDIA;", 1, 1),
        DeviceEntry("a", "NVIDIA", -1, 1),
        DeviceEntry("a", "NVIDIA", 2**31, 1),
        DeviceEntry("a", "NVIDIA", 1, -1),
        DeviceEntry("a", "NVIDIA", 1, 2**31),
    ],
)
def test_an_entry_that_could_not_be_decoded_is_not_encoded(entry: DeviceEntry) -> None:
    with pytest.raises(WireError):
        encode_pod_devices([[entry]])


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
