from __future__ import annotations

import pytest

from tessera.core.model.devices import MigPlacement, MigSlot
from tessera.wire.errors import WireError
from tessera.wire.pod_devices import (
    MAX_ENTRIES,
    ClaimDevice,
    DeviceEntry,
    decode_claim_devices,
    decode_pod_devices,
    encode_claim_devices,
    encode_pod_devices,
    salvage_pod_devices,
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
