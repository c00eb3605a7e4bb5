from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest

from tessera.core.model.devices import Device, MigPlacement, MigProfile
from tessera.wire.errors import WireError
from tessera.wire.registration import (
    NodeLock,
    Reported,
    Requesting,
    decode_handshake,
    decode_node_lock,
    decode_pair_scores,
    decode_registration,
    encode_node_lock,
    encode_pair_scores,
    encode_registration_json,
    encode_registration_text,
    encode_reported,
    encode_requesting,
)

A = "GPU-03f69c50-207a-2038-9b45-23cac89cb67a"
B = "GPU-1afede84-4e70-2174-49af-f07ebb94d1ae"

TWO_A100 = (
    Device(
        A, "NVIDIA", slots=10, memory=81920, cores=100, model="NVIDIA A100-SXM4-80GB", mode="hami-core", healthy=True
    ),
    Device(
        B,
        "NVIDIA",
        index=1,
        slots=10,
        memory=81920,
        cores=100,
        model="NVIDIA A100-SXM4-80GB",
        numa=1,
        mode="hami-core",
        healthy=True,
    ),
)
TWO_A100_JSON = (
    f'[{{"id":"{A}","count":10,"devmem":81920,"devcore":100,"type":"NVIDIA A100-SXM4-80GB","mode":"hami-core",'
    f'"health":true}},{{"id":"{B}","index":1,"count":10,"devmem":81920,"devcore":100,"type":"NVIDIA A100-SXM4-80GB",'
    '"numa":1,"mode":"hami-core","health":true}]'
)
MIG_JSON = (
    '[{"id":"GPU-m","index":1,"count":7,"devmem":40960,"devcore":100,"type":"NVIDIA A100-SXM4-40GB","numa":1,'
    '"mode":"mig","migProfiles":[{"name":"2g.10gb","memoryMB":9984,"core":29,"sliceCount":2,'
    '"placements":[{"start":0,"size":2},{"start":2,"size":2}]}],"health":true}]'
)
MIG = Device(
    "GPU-m",
    "NVIDIA",
    index=1,
    slots=7,
    memory=40960,
    cores=100,
    model="NVIDIA A100-SXM4-40GB",
    numa=1,
    mode="mig",
    mig_profiles=(MigProfile("2g.10gb", 9984, 29, 2, (MigPlacement(0, 2), MigPlacement(2, 2))),),
)

SHANGHAI = timezone(timedelta(hours=8))
EVENING = datetime(2026, 11, 5, 20, 0, 1, tzinfo=SHANGHAI)

TEXT = '[{"uuid":"GPU-a","score":{"GPU-b":400,"GPU-c":20}},{"uuid":"GPU-b","score":{"GPU-a":400,"GPU-c":0}}]'
SCORES = {"GPU-a": {"GPU-b": 400, "GPU-c": 20}, "GPU-b": {"GPU-a": 400, "GPU-c": 0}}


def test_v2_10_json_is_read_and_written_byte_for_byte() -> None:
    assert decode_registration(TWO_A100_JSON, vendor="NVIDIA") == TWO_A100
    assert encode_registration_json(TWO_A100) == TWO_A100_JSON


def test_mig_profiles_are_read_and_written_byte_for_byte() -> None:
    assert decode_registration(MIG_JSON, vendor="NVIDIA") == (MIG,)
    assert encode_registration_json([MIG]) == MIG_JSON


def test_v2_5_text_with_nine_fields_is_read_and_written() -> None:
    text = (
        f"{A},10,81920,100,NVIDIA A100-SXM4-80GB,0,true,0,hami-core:"
        f"{B},10,81920,100,NVIDIA A100-SXM4-80GB,1,true,1,hami-core:"
    )
    assert decode_registration(text, vendor="NVIDIA") == TWO_A100
    assert encode_registration_text(TWO_A100) == text


def test_v2_4_text_with_seven_fields_has_no_index_and_means_hami_core() -> None:
    text = "GPU-v,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true:"
    device = Device(
        "GPU-v", "NVIDIA", slots=10, memory=32768, cores=100, model="NVIDIA-Tesla V100-PCIE-32GB", mode="hami-core"
    )
    assert decode_registration(text, vendor="NVIDIA") == (device,)


@pytest.mark.parametrize(
    ("vendor", "text", "device"),
    [
        (
            "DCU",
            "DCU-0,30,32768,60,DCU-K100,0,true:",
            Device("DCU-0", "DCU", slots=30, memory=32768, cores=60, model="DCU-K100", mode="hami-core"),
        ),
        (
            "MR-V100",
            "IX-7,1,32768,100,MR-V100,0,false,3,:",
            Device("IX-7", "MR-V100", index=3, slots=1, memory=32768, cores=100, model="MR-V100", healthy=False),
        ),
        (
            "Ascend910B3",
            '[{"id":"U1","index":1,"count":4,"devmem":65536,"devcore":20,"type":"Ascend910B3","health":true,'
            '"customInfo":{"NetworkID":0}}]',
            Device(
                "U1",
                "Ascend910B3",
                index=1,
                slots=4,
                memory=65536,
                cores=20,
                model="Ascend910B3",
                custom={"NetworkID": 0},
            ),
        ),
    ],
)
def test_other_vendors_register_in_either_form(vendor: str, text: str, device: Device) -> None:
    assert decode_registration(text, vendor=vendor) == (device,)


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ('[{"id":"a"}]', Device("a", "V", slots=0, cores=0, healthy=False)),
        (' \n[{"ID":"a","Health":true}]', Device("a", "V", slots=0, cores=0)),
        (
            '[{"id":"a","DevMem":5,"devicevendor":"X","migtemplate":[[{"name":"1g"}]],"future":{"x":[1]}}]',
            Device("a", "V", slots=0, cores=0, memory=5, healthy=False),
        ),
        ('[{"id":"a","mode":null,"count":null,"custominfo":null}]', Device("a", "V", slots=0, cores=0, healthy=False)),
        ('[{"id":"a","numa":-1}]', Device("a", "V", slots=0, cores=0, healthy=False)),
        ("a,1,2,3,m,-1,f:", Device("a", "V", slots=1, memory=2, cores=3, model="m", mode="hami-core", healthy=False)),
        ("a,1,2,3,m,2,T,4,mig::", Device("a", "V", 4, 1, 2, 3, "m", 2, "mig")),
        (
            '[{"id":"a","MIGPROFILES":[{"NAME":"1g.5gb","MEMORYMB":1,"Core":2,"SLICECOUNT":3,"Placements":[{"SIZE":1}]}]}]',
            Device(
                "a",
                "V",
                slots=0,
                cores=0,
                healthy=False,
                mig_profiles=(MigProfile("1g.5gb", 1, 2, 3, (MigPlacement(0, 1),)),),
            ),
        ),
    ],
)
def test_reading_follows_gos_rules_for_missing_null_and_unknown_keys(text: str, device: Device) -> None:
    assert decode_registration(text, vendor="V") == (device,)


@pytest.mark.parametrize("text", ["[]", ":", "::"])
def test_a_registration_may_be_empty(text: str) -> None:
    assert decode_registration(text, vendor="V") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "node annotation missing device separator"),
        ("a,1,2,3,m,0,true", "node annotation missing device separator"),
        ("null", "node annotation missing device separator"),
        ("junk:", 'malformed node annotation segment: "junk"'),
        ("a,1:", "unexpected field count 2 in node annotation"),
        ("a,1,2,3,m,0,true,0:", "unexpected field count 8 in node annotation"),
        ("a,x,2,3,m,0,true:", 'invalid count field: "x"'),
        ("a,-1,2,3,m,0,true:", 'invalid count field: "-1"'),
        ("a,1,x,3,m,0,true:", 'invalid memory field: "x"'),
        ("a,1,2147483648,3,m,0,true:", 'invalid memory field: "2147483648"'),
        ("a,1,2,x,m,0,true:", 'invalid core field: "x"'),
        ("a,1,2,3,m,x,true:", 'invalid numa field: "x"'),
        ("a,1,2,3,m,-99999999999,true:", 'invalid numa field: "-99999999999"'),
        ("a,1,2,3,m,0,yes:", 'invalid health field: "yes"'),
        ("a,1,2,3,m,0,true,x,mig:", 'invalid index field: "x"'),
        ("a,1,2,3,m,0,true,-4,mig:", "index field must not be negative: -4"),
        (",1,2,3,m,0,true:", "a registered device has no id"),
        ("a;b,1,2,3,m,0,true:", 'device id "a;b" holds one of'),
        ("a,1,2,3,m,0,true:a,1,2,3,m,0,true:", 'device "a" is registered twice'),
        ("[", "the registration is not valid JSON"),
        ("[" * 100_000, "the registration is not valid JSON"),
        ('["\ud800"]', "the registration is not valid JSON"),
        ('[{"id":"a"}] x', "the registration is not valid JSON"),
        ("[1]", "registered device 0"),
        ("[null]", "registered device 0"),
        ("[{}]", "a registered device has no id"),
        ('[{"id":null}]', "a registered device has no id"),
        ('[{"id":5}]', "registered device 0"),
        ('[{"id":"a"},{"id":"a"}]', 'device "a" is registered twice'),
        ('[{"id":"a,b"}]', 'device id "a,b" holds one of'),
        ('[{"id":"0000:3b:00.0"}]', 'device id "0000:3b:00.0" holds one of'),
        ('[{"id":"a","count":-1}]', "registered device 0"),
        ('[{"id":"a","devmem":2147483648}]', "registered device 0"),
        ('[{"id":"a","devmem":' + "9" * 5000 + "}]", "the registration is not valid JSON"),
        ('[{"id":"a","devmem":' + "9" * 400 + "}]", "registered device 0"),
        ('[{"id":"a","devcore":1.5}]', "registered device 0"),
        ('[{"id":"a","devcore":"1"}]', "registered device 0"),
        ('[{"id":"a","index":-1}]', "registered device 0"),
        ('[{"id":"a","health":"true"}]', "registered device 0"),
        ('[{"id":"a","custominfo":[]}]', "registered device 0"),
        ('[{"id":"a","migProfiles":{}}]', "registered device 0"),
        ('[{"id":"a","migProfiles":[1]}]', "registered device 0"),
        ('[{"id":"a","migProfiles":[{}]}]', 'registered device 0: MIG profile ""'),
        ('[{"id":"a","migProfiles":[{"name":"x","placements":1}]}]', "registered device 0"),
        (
            '[{"id":"a","migProfiles":[{"name":"x","placements":[{"start":1}]}]}]',
            'registered device 0: MIG profile "x"',
        ),
        ('[{"id":"a","migProfiles":[{"name":"x","placements":[{"start":-1,"size":1}]}]}]', "registered device 0"),
        ('[{"id":"a","custominfo":{"x":' + "[" * 20 + "]" * 20 + "}}]", "registered device 0: custominfo is nested"),
        ('[{"id":"a","custominfo":{"x":' + '{"y":' * 300 + "1" + "}" * 300 + "}}]", "registered device 0: custominfo"),
    ],
)
def test_a_bad_registration_is_refused_as_a_whole(text: str, message: str) -> None:
    with pytest.raises(WireError) as caught:
        decode_registration(text, vendor="V")
    assert str(caught.value).startswith(message)


def test_a_registration_of_thousands_of_cards_is_read() -> None:
    text = json.dumps([{"id": f"GPU-{n}", "health": True} for n in range(5000)])
    assert len(decode_registration(text, vendor="NVIDIA")) == 5000


@pytest.mark.parametrize(
    "devices",
    [
        [Device("", "V")],
        [Device("a:b", "V")],
        [Device("a", "V"), Device("a", "V")],
    ],
)
def test_devices_that_could_not_be_decoded_are_not_encoded(devices: list[Device]) -> None:
    with pytest.raises(WireError):
        encode_registration_json(devices)
    with pytest.raises(WireError):
        encode_registration_text(devices)


def test_the_text_form_cannot_begin_like_json() -> None:
    with pytest.raises(WireError, match="would be read as JSON"):
        encode_registration_text([Device("[a", "V")])


def test_text_that_is_not_unicode_is_not_written_as_json() -> None:
    with pytest.raises(WireError, match="cannot be written as JSON"):
        encode_registration_json([Device("a", "V", model="\ud800")])


@pytest.mark.parametrize(
    "device", [Device("a", "V", model="x,y"), Device("a", "V", model="x:y"), Device("a", "V", mode=":")]
)
def test_the_text_form_has_no_place_for_separators(device: Device) -> None:
    with pytest.raises(WireError, match="cannot be written in the text form"):
        encode_registration_text([device])
    assert decode_registration(encode_registration_json([device]), vendor="V") == (device,)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        (None, None),
        ("Requesting_2026-11-05 20:00:01", Requesting(EVENING)),
        ("Requesting_2026.11.05 20:00:01", Requesting(EVENING)),
        ("Requesting_2026-11-05 20:00:01.250", Requesting(EVENING)),
        ("Deleted_2026-11-05 20:00:01", Reported()),
        ("Deleted_2026.11.05 20:00:01", Reported()),
        ("Reported 2026-11-05 20:00:01.7 +0800 CST m=+3", Reported()),
        ("Reported_2026.11.05 20:00:01", Reported()),
        ("Reported", Reported()),
        ("Requesting", Requesting(None)),
        ("Requesting_", Requesting(None)),
        ("Requesting_soon", Requesting(None)),
        ("Requesting_2026-11.05 20:00:01", Requesting(None)),
        ("Requesting_2026-02-30 20:00:01", Requesting(None)),
        ("Requesting_0001-01-01 00:00:00", Requesting(None)),
        ("Requesting_9999-12-31 23:59:59", Requesting(None)),
        ("Requesting_\uff12026-11-05 20:00:01", Requesting(None)),
        ("Requesting_2026-11-05 20:00:01_x", Requesting(None)),
        ("Reported while Requesting_2026-11-05 20:00:01", Requesting(EVENING)),
        ("Deleted", Reported()),
        ("", Reported()),
        ("hello", Reported()),
        ("requesting_2026-11-05 20:00:01", Reported()),
        ("\ud800", Reported()),
    ],
)
def test_every_value_is_a_state(text: str | None, state: Requesting | Reported | None) -> None:
    assert decode_handshake(text, zone=SHANGHAI) == state


def test_a_time_belongs_to_the_zone_of_its_writer() -> None:
    state = decode_handshake("Requesting_2026-11-05 20:00:01", zone=UTC)
    assert state == Requesting(EVENING + timedelta(hours=8))


def test_a_request_is_written_in_local_time() -> None:
    assert encode_requesting(EVENING.astimezone(UTC), zone=SHANGHAI) == "Requesting_2026-11-05 20:00:01"


def test_a_report_is_written_in_local_time() -> None:
    assert encode_reported(EVENING.astimezone(UTC), zone=SHANGHAI) == "Reported 2026-11-05 20:00:01"


def test_pair_scores_are_read_and_written_byte_for_byte() -> None:
    assert decode_pair_scores(TEXT) == SCORES
    assert encode_pair_scores(SCORES) == TEXT


def test_a_row_is_written_in_order_of_uuid() -> None:
    assert encode_pair_scores({"x": {"b": 1, "a": 2}}) == '[{"uuid":"x","score":{"a":2,"b":1}}]'


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        ("[]", {}),
        ("null", {}),
        ('[{"UUID":"a","Score":{"B":1},"new":true}]', {"a": {"B": 1}}),
        ('[{"uuid":"a"}]', {"a": {}}),
        ('[{"uuid":"a","score":null}]', {"a": {}}),
    ],
)
def test_reading_follows_gos_rules(text: str, scores: dict[str, dict[str, int]]) -> None:
    assert decode_pair_scores(text) == scores


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        "[{}]",
        '[{"uuid":""}]',
        '[{"uuid":1}]',
        '[{"uuid":"a"},{"uuid":"a"}]',
        '[{"uuid":"a","score":{"b":-1}}]',
        '[{"uuid":"a","score":{"b":2147483648}}]',
        '[{"uuid":"a","score":{"b":1.5}}]',
        '[{"uuid":"a","score":[]}]',
        "[" * 50_000,
    ],
)
def test_bad_scores_are_refused(text: str) -> None:
    with pytest.raises(WireError):
        decode_pair_scores(text)


NOON = datetime(2026, 11, 5, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "lock"),
    [
        ("2026-11-05T12:00:00Z,team,train-0", NodeLock(NOON, "team", "train-0")),
        ("2026-11-05T20:00:00+08:00,team,train-0", NodeLock(NOON, "team", "train-0")),
        ("2026-11-05T06:30:00-05:30,team,train-0", NodeLock(NOON, "team", "train-0")),
        ("2026-11-05T12:00:00Z", NodeLock(NOON)),
        ("2026-11-05T12:00:00.5Z", NodeLock(NOON + timedelta(milliseconds=500))),
        ("2026-11-05T12:00:00.123456789Z", NodeLock(NOON + timedelta(microseconds=123456))),
        ("2026-11-05T12:00:00Z,,", NodeLock(NOON)),
        ("2026-11-05T12:00:00Z,team,", NodeLock(NOON)),
        ("2026-11-05T12:00:00Z,,train-0", NodeLock(NOON)),
    ],
)
def test_a_lock_says_since_when_and_for_whom(text: str, lock: NodeLock) -> None:
    assert decode_node_lock(text) == lock


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "2026-11-05T12:00:00Z,team",
            "malformed lock annotation: expected 3 parts, got 2 from 2026-11-05T12:00:00Z,team",
        ),
        ("a,b,c,d", "malformed lock annotation: expected 3 parts, got 4 from a,b,c,d"),
        ("", 'malformed lock annotation: "" is not an RFC 3339 time'),
        ("yesterday", 'malformed lock annotation: "yesterday" is not an RFC 3339 time'),
        ("2026-11-05 12:00:00Z", "malformed lock annotation"),
        ("2026-11-05T12:00:00", "malformed lock annotation"),
        ("2026-11-05T12:00Z", "malformed lock annotation"),
        ("20261105T120000Z", "malformed lock annotation"),
        ("2026-11-05t12:00:00z", "malformed lock annotation"),
        ("2026-11-05T12:00:00.Z", "malformed lock annotation"),
        ("2026-11-05T12:00:00Z\n", "malformed lock annotation"),
        ("2026-13-05T12:00:00Z", 'malformed lock annotation: "2026-13-05T12:00:00Z" is not a time'),
        ("2026-11-05T12:00:60Z", "malformed lock annotation"),
        ("2026-11-05T24:00:00Z", "malformed lock annotation"),
        ("0001-01-01T00:00:00+08:00", "malformed lock annotation"),
        ("9999-12-31T23:59:59-08:00", "malformed lock annotation"),
        ("2026-11-05T12:00:00+24:00", "malformed lock annotation"),
        ("\uff12026-11-05T12:00:00Z", "malformed lock annotation"),
        ("," * 100_000, "malformed lock annotation: expected 3 parts, got 100001 from ,,,"),
    ],
)
def test_a_malformed_lock_is_refused(text: str, message: str) -> None:
    with pytest.raises(WireError) as caught:
        decode_node_lock(text)
    assert str(caught.value).startswith(message)
    assert len(str(caught.value)) < 400


def test_a_lock_is_written_in_utc_and_whole_seconds() -> None:
    local = (NOON + timedelta(milliseconds=900)).astimezone(timezone(timedelta(hours=8)))
    assert encode_node_lock(NodeLock(local, "team", "train-0")) == "2026-11-05T12:00:00Z,team,train-0"


def test_a_lock_without_an_owner_is_written_in_the_legacy_form() -> None:
    lock = NodeLock(NOON)
    assert lock.owner is None
    assert encode_node_lock(lock) == "2026-11-05T12:00:00Z"


def test_an_owner_is_a_namespace_and_a_name() -> None:
    assert decode_node_lock("2026-11-05T12:00:00Z,team,train-0").owner == ("team", "train-0")
