"""An anonymous journal holds no name, whatever kind of record it stood in."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from tessera.inspect.anonymize import Anonymizer, Names
from tessera.wire.journal import (
    FORMAT,
    Bind,
    CandidateMask,
    Denied,
    Evicted,
    ForecastRecord,
    Gang,
    HostRecord,
    NodeRecord,
    NominationRecord,
    Placed,
    PodRecord,
    QuotaRecord,
    Record,
    Refused,
    Released,
    SnapshotEnd,
    Start,
    SteppedDown,
    TookOver,
    Unfinished,
    Woken,
    decode_record,
    encode_record,
)
from tessera.wire.journal_values import (
    ContainerAsk,
    Device,
    Forecast,
    Grant,
    Grants,
    NodeState,
    PodAsk,
    PodRef,
    PodState,
)

SECRET = b"secret"
UID, NODE, CARD = "secret-uid", "secret-node", "secret-node-0"
POD = PodRef("secret-team", "secret-pod", UID)
ASK = PodAsk(containers=(ContainerAsk("main"),), node_policy="binpack", device_policy="spread")
GRANTS: Grants = {"NVIDIA": ((Grant(CARD),),)}
HELD = PodState("secret-team", "secret-pod", NODE, grants=GRANTS, problem="secret")
CHOICE: dict[str, Any] = {
    "pod": POD,
    "ask": ASK,
    "candidates": CandidateMask(1),
    "ledger_version": 1,
    "microseconds": 1,
}

RECORDS: list[Record] = [
    Start(
        time=1.0,
        sequence=0,
        format=FORMAT,
        version="1",
        identity="secret-host_1",
        device_sections={"nvidia": {"nodeconfig": [{"name": NODE}]}},
        node_policy="binpack",
        device_policy="spread",
        scheduler_name="hami-scheduler",
    ),
    NodeRecord(time=1.0, sequence=1, name=NODE, state=NodeState((Device(CARD, "NVIDIA"),), (CARD,), problem="secret")),
    PodRecord(time=1.0, sequence=1, uid=UID, state=HELD),
    NominationRecord(time=1.0, sequence=1, uid=UID, state=HELD, victims=("secret-victim-1", "secret-victim-2")),
    NominationRecord(time=1.0, sequence=1, uid=UID),
    QuotaRecord(time=1.0, sequence=1, namespace="secret-team", name="secret-quota", limits={}),
    HostRecord(time=1.0, sequence=1, name=NODE),
    ForecastRecord(time=1.0, sequence=1, id=1, forecast=Forecast()),
    SnapshotEnd(time=1.0, sequence=1),
    Placed(time=1.0, sequence=1, node=NODE, grants=GRANTS, **CHOICE),
    Refused(time=1.0, sequence=1, reasons={"1/1 CardInsufficientMemory": 1}, **CHOICE),
    Unfinished(time=1.0, sequence=1, **CHOICE),
    Bind(time=1.0, sequence=1, pod=POD, node=NODE, error="secret"),
    Denied(time=1.0, sequence=1, namespace="secret-team", name="secret-pod", message="secret"),
    Woken(time=1.0, sequence=1, pod=POD),
    Released(time=1.0, sequence=1, pod=POD, node=NODE, why="ended"),
    Evicted(time=1.0, sequence=1, pod=POD, node=NODE, message="secret"),
    Refused(time=1.0, sequence=1, reasons={"gang secret-team/secret-gang: no": 3}, of_gang=True, **CHOICE),
    Gang(time=1.0, sequence=1, namespace="secret-team", name="secret-gang", state="waiting", text="secret"),
    TookOver(time=1.0, sequence=1),
    SteppedDown(time=1.0, sequence=1),
]


def test_every_kind_of_record_is_among_the_examples() -> None:
    assert {type(record) for record in RECORDS} == set(get_args(Record))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_no_name_is_left_in_a_record(record: Record) -> None:
    found = Names()
    for one in RECORDS:
        Anonymizer(found).record(msgspec.json.decode(encode_record(one)))
    line = msgspec.json.encode(Anonymizer(found.renamed(b"key")).record(msgspec.json.decode(encode_record(record))))
    assert SECRET not in line
    changed = decode_record(line)
    assert type(changed) is type(record)
    assert list(getattr(changed, "victims", ())) == sorted(getattr(changed, "victims", ()))
