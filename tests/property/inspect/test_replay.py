"""A journal of a random life replays to equal decisions; a changed decision is found, and both sides are told."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.core.holdings import PodFacts
from tessera.core.ledger import facts_of
from tessera.inspect.render.journal import difference_lines
from tessera.inspect.replay import Timeline
from tessera.wire.journal import Placed, Record, Refused, decode_record, encode_record
from tests.support import strategies as some
from tests.support.recorded_cluster import RecordedCluster

STEPS = 12
NAMES = [*reversed(some.NODES), "no-such-node"]


@st.composite
def lives(draw: st.DrawFn) -> RecordedCluster:
    """What a scheduler sees and decides, with whatever the world does in between."""
    pool = draw(some.pools)
    found = RecordedCluster(some.VENDORS)
    ledger = found.ledger
    for facts in draw(some.clusters(pool, least=3)):
        ledger.observe_node(facts)
    pods: dict[str, PodFacts] = {}
    for step in range(STEPS):
        match draw(st.sampled_from(("place", "place", "place", "node", "gone", "pod", "end", "quota", "bind", "file"))):
            case "place":
                pod = draw(some.pod_requests(pool, f"pod-{step}"))
                placement = found.decide(pod, draw(st.lists(st.sampled_from(NAMES), max_size=7)))
                if placement is not None:
                    pods[pod.uid] = facts_of(pod, placement)
            case "node":
                ledger.observe_node(draw(some.nodes(draw(st.sampled_from(some.NODES)), pool)))
            case "gone":
                ledger.forget_node(draw(st.sampled_from(some.NODES)))
            case "pod":
                foreign = draw(some.foreign_pods(pool, f"pod-{step}"))
                pods[foreign.uid] = foreign
                ledger.observe_pod(foreign)
            case "quota":
                ledger.observe_quota(draw(some.quotas(pool)))
            case "end" if pods:
                ledger.release(draw(st.sampled_from(sorted(pods))))
            case "bind" if pods:
                ledger.bind(draw(st.sampled_from(sorted(pods))))
            case "file":
                found.restart()
    return found


def written(records: list[Record]) -> list[Record]:
    return [decode_record(encode_record(record)) for record in records]


def changed(draw: st.DrawFn, decision: Placed | Refused) -> Placed | Refused:
    """Another outcome of the same decision."""
    known: dict[str, Any] = {
        name: getattr(decision, name)
        for name in ("time", "sequence", "pod", "ask", "candidates", "ledger_version", "microseconds")
    }
    if isinstance(decision, Refused):
        reasons = dict(decision.reasons)
        other = draw(st.sampled_from(("placed", "counted")))
        if other == "placed":
            return Placed(**known, node="node-0", grants={})
        return msgspec.structs.replace(decision, reasons=reasons | {"3/3 CardCordoned": 2})
    match draw(st.sampled_from(("refused", "node", "score", "grants"))):
        case "refused":
            return Refused(**known, reasons={"1/2 CardInsufficientMemory": 1})
        case "node":
            return msgspec.structs.replace(decision, node="another-node")
        case "score":
            return msgspec.structs.replace(decision, score=decision.score + 1.0)
    return msgspec.structs.replace(decision, grants={})


@settings(max_examples=settings().max_examples // 2)
@given(life=lives(), data=st.data())
def test_a_journal_is_replayed_to_the_end_or_to_the_first_decision_that_differs(
    life: RecordedCluster, data: st.DataObject
) -> None:
    records = written(life.records)
    decisions = [place for place, record in enumerate(records) if isinstance(record, (Placed, Refused))]
    counts, difference = Timeline(records).check()
    assert difference is None, list(difference_lines(difference))
    assert counts.checked == len(decisions)
    assert Timeline(records).at(life.now).ledger.state() == life.ledger.state()
    if not decisions:
        return
    place = data.draw(st.sampled_from(decisions))
    decision = records[place]
    assert isinstance(decision, (Placed, Refused))
    other = data.draw(st.composite(changed)(decision))
    counts, difference = Timeline([*records[:place], other, *records[place + 1 :]]).check()
    assert difference is not None
    assert difference.decision == other
    assert counts.checked == decisions.index(place) + 1
    _, _, before, after, *_ = (line.text for line in difference_lines(difference))
    assert ("refused" in before) is isinstance(other, Refused)
    assert ("refused" in after) is isinstance(decision, Refused)
