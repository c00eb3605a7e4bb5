"""A short journal in which everything happens that can happen to pods, with names that are found again in texts."""

from __future__ import annotations

from tessera.wire import journal
from tessera.wire.journal_values import PodRef
from tests.support.builders import PodBuilder, gpu_pod, node
from tests.support.recorded_cluster import RecordedCluster

HOSTILE = "bad-\x1b[31mred\x07"
"""a name that no apiserver lets pass"""


def trainer(number: int, *, memory: int = 60_000) -> PodBuilder:
    return gpu_pod(mem=memory).called(f"train-{number}", namespace="team-a", uid=f"1111-{number}")


def ref(number: int) -> PodRef:
    return PodRef("team-a", f"train-{number}", f"1111-{number}")


def recorded_story(cluster: RecordedCluster | None = None) -> RecordedCluster:
    """Two pods are placed, the third waits for the end of the first; a fourth is denied."""
    found = (cluster or RecordedCluster()).add(node("alpha-host").gpus(2))
    for number in (0, 1):
        placement = found.decide(trainer(number))
        assert placement is not None
        found.ledger.bind(f"1111-{number}")
        found.note(journal.Bind, pod=ref(number), node=placement.node)
    found.decide(trainer(2))
    found.note(journal.Denied, namespace="team-a", name=HOSTILE, message="no: \x1b]0;title\x07 train-2")
    found.ledger.release("1111-0")
    found.note(journal.Released, pod=ref(0), node="alpha-host", why="ended")
    found.note(journal.Woken, pod=ref(2))
    found.decide(trainer(2))
    found.note(journal.Bind, pod=ref(2), node="alpha-host", error="the pod changed")
    found.ledger.release("1111-1")
    found.note(journal.Evicted, pod=ref(1), node="alpha-host", message="drained")
    found.note(journal.Gang, namespace="team-a", name=HOSTILE, state="waiting", text="3 of 8 members exist")
    return found
