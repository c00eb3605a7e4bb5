"""Journals of random lives of a scheduler, for properties."""

from __future__ import annotations

from hypothesis import strategies as st

from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import facts_of
from tessera.wire import journal
from tessera.wire.journal import Record, decode_record, encode_record
from tessera.wire.journal_values import PodRef
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
                ended = pods[draw(st.sampled_from(sorted(pods)))]
                ledger.release(ended.uid)
                found.note(journal.Released, pod=_ref(ended), node=ended.node, why="ended")
            case "bind" if pods:
                bound = pods[draw(st.sampled_from(sorted(pods)))]
                holder = ledger.pod(bound.uid)
                if holder is not None and not holder.observed:
                    ledger.bind(bound.uid)
                found.note(journal.Bind, pod=_ref(bound), node=bound.node)
            case "file":
                found.restart()
    return found


def _ref(pod: PodFacts) -> PodRef:
    return PodRef(pod.namespace, pod.name, pod.uid)


def written(records: list[Record]) -> list[Record]:
    return [decode_record(encode_record(record)) for record in records]
