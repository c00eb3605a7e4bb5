"""A journal stays what it was: begun later, filtered, or with other names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tessera.inspect.anonymize import WORDS, Anonymizer, Names
from tessera.inspect.journal_filter import RecordFilter, begin_at
from tessera.inspect.render.journal import difference_lines
from tessera.inspect.replay import Timeline
from tessera.wire.journal import (
    Placed,
    PodRecord,
    Record,
    Refused,
    SnapshotEnd,
    Start,
    StateRecord,
    decode_record,
    encode_record,
)
from tests.support import strategies as some
from tests.support.journals import RecordedCluster, decide_again, lives, written
from tests.support.strategies import examples

FEWER = examples(1 / 4)
"""a life takes long to draw"""


async def stream(records: Iterable[Record]) -> AsyncIterator[Record]:
    for record in records:
        yield record


def begun(records: list[Record], moment: float) -> list[Record]:
    async def read() -> list[Record]:
        return [record async for record in begin_at(stream(records), moment)]

    return asyncio.run(read())


def happened(records: list[Record]) -> list[Record]:
    """What is not part of a state at the beginning of a file."""
    found: list[Record] = []
    in_state = False
    for record in records:
        in_state = isinstance(record, Start) or (in_state and not isinstance(record, SnapshotEnd))
        if not in_state and not isinstance(record, SnapshotEnd):
            found.append(record)
    return found


@FEWER
@given(life=lives(), data=st.data())
def test_a_journal_that_begins_later_has_everything_since_and_replays_equally(
    life: RecordedCluster, data: st.DataObject
) -> None:
    records = written(life.records)
    moment = data.draw(st.floats(records[0].time - 1, life.now + 1))
    later = begun(records, moment)
    assert happened(later) == [record for record in happened(records) if record.time >= moment]
    counts, difference = decide_again(later)
    assert difference is None, list(difference_lines(difference))
    assert counts.checked == sum(isinstance(record, (Placed, Refused)) for record in happened(later))
    assert Timeline(later).at(life.now + 1).ledger.state() == life.ledger.state()


def about(record: Record, names: dict[str, tuple[str, str]]) -> tuple[str, str] | None:
    """Namespace and name of the pod, by what the text of the record says; `names` are by uid."""
    if isinstance(record, PodRecord):
        return names[record.uid]
    pod = getattr(record, "pod", None)
    return None if pod is None else (pod.namespace, pod.name)


def nodes_named(record: Record) -> set[str]:
    text = encode_record(record).decode()
    return {
        name
        for name in some.NODES
        if f'"node":"{name}"' in text or ('"kind":"node"' in text and f'"name":"{name}"' in text)
    }


@FEWER
@given(life=lives(), data=st.data())
def test_a_filter_leaves_the_records_that_are_about_all_that_is_given(
    life: RecordedCluster, data: st.DataObject
) -> None:
    records = written(life.records)
    names: dict[str, tuple[str, str]] = {}
    for record in records:
        if isinstance(record, PodRecord) and record.state is not None:
            names[record.uid] = record.state.namespace, record.state.name
    pods = sorted(set(names.values())) or [("ns", "none")]
    namespace, pod = data.draw(st.sampled_from(pods))
    nodes = frozenset(data.draw(st.sets(st.sampled_from(some.NODES), max_size=2)))
    wanted = RecordFilter(*data.draw(st.sampled_from([("", ""), (pod, ""), (pod, namespace), ("", namespace)])), nodes)
    for record in records:
        found = about(record, names)
        expected = not wanted.pod or (found is not None and found[1] == wanted.pod)
        if wanted.namespace:
            home = found[0] if found is not None else getattr(record, "namespace", "")
            expected = expected and home == wanted.namespace
        if nodes:
            expected = expected and bool(nodes & nodes_named(record))
        assert wanted.selects(record) is expected, record


@FEWER
@given(life=lives())
def test_a_journal_with_other_names_replays_equally(life: RecordedCluster) -> None:
    records = written(life.records)
    found, again = Names(), Names()
    for record in records:
        Anonymizer(found).record(msgspec.json.decode(encode_record(record)))
    names = found.renamed(b"key")
    plain = [Anonymizer(names).record(msgspec.json.decode(encode_record(record))) for record in records]
    renamed = [decode_record(msgspec.json.encode(record)) for record in plain]
    for one in plain:
        Anonymizer(again).record(one)
    for what in WORDS:
        before, after = set(found.tables[what]) - {""}, set(again.tables[what]) - {""}
        assert len(before) == len(after)
        assert before.isdisjoint(after)
    counts, difference = decide_again(renamed)
    assert difference is None, list(difference_lines(difference))
    assert counts.checked == decide_again(records)[0].checked
    kinds = [type(record) for record in records if not isinstance(record, StateRecord)]
    assert kinds == [type(record) for record in renamed if not isinstance(record, StateRecord)]
