"""Which records a filter leaves, also where a record does not name what it is about."""

from __future__ import annotations

from tessera.inspect.journal_filter import RecordFilter
from tessera.wire.journal import Denied, NodeRecord, NominationRecord, PodRecord, Record
from tessera.wire.journal_values import PodState

HELD = PodState(namespace="team", name="train", node="n1")


def left_by(wanted: RecordFilter, *records: Record) -> list[int]:
    """The numbers of the records that are left."""
    return [record.sequence for record in records if wanted.selects(record)]


def test_a_pod_is_known_by_its_uid_after_it_was_named() -> None:
    records = (
        NominationRecord(time=1.0, sequence=1, uid="u", state=HELD),
        PodRecord(time=1.0, sequence=2, uid="u", state=HELD),
        NominationRecord(time=1.0, sequence=3, uid="u"),
        PodRecord(time=1.0, sequence=4, uid="u"),
        PodRecord(time=1.0, sequence=5, uid="u"),
        PodRecord(time=1.0, sequence=6, uid="other"),
    )
    assert left_by(RecordFilter(pod="train"), *records) == [1, 2, 3, 4]
    assert left_by(RecordFilter(namespace="team"), *records) == [1, 2, 3, 4]
    assert left_by(RecordFilter(nodes=frozenset({"n1"})), *records) == [1, 2]
    assert left_by(RecordFilter(), *records) == [1, 2, 3, 4, 5, 6]


def test_a_denied_pod_never_had_a_uid_and_no_other_record_is_about_it() -> None:
    denied = Denied(time=1.0, sequence=1, namespace="team", name="train", message="no")
    node = NodeRecord(time=1.0, sequence=2, name="n1")
    assert left_by(RecordFilter(pod="train"), denied, node) == [1]
