"""A journal of a random life replays to equal decisions; a changed decision is found, and both sides are told."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tessera.inspect.render.journal import difference_lines
from tessera.inspect.replay import Timeline
from tessera.wire.journal import Placed, Refused
from tests.support.journals import RecordedCluster, decide_again, lives, written
from tests.support.strategies import examples


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


@examples(1 / 2)
@given(life=lives(), data=st.data())
def test_a_journal_is_replayed_to_the_end_or_to_the_first_decision_that_differs(
    life: RecordedCluster, data: st.DataObject
) -> None:
    records = written(life.records)
    decisions = [place for place, record in enumerate(records) if isinstance(record, (Placed, Refused))]
    counts, difference = decide_again(records)
    assert difference is None, list(difference_lines(difference))
    assert counts.checked == len(decisions)
    assert Timeline(records).at(life.now).ledger.state() == life.ledger.state()
    if not decisions:
        return
    place = data.draw(st.sampled_from(decisions))
    decision = records[place]
    assert isinstance(decision, (Placed, Refused))
    other = data.draw(st.composite(changed)(decision))
    counts, difference = decide_again([*records[:place], other, *records[place + 1 :]])
    assert difference is not None
    assert difference.decision == other
    assert counts.checked == decisions.index(place) + 1
    _, _, before, after, *_ = (line.text for line in difference_lines(difference))
    assert ("refused" in before) is isinstance(other, Refused)
    assert ("refused" in after) is isinstance(decision, Refused)
