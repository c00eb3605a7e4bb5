"""Who waits, in which order, and who is helped by other means."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tessera.inspect.offline_cluster import OfflineCluster
from tessera.maintenance.defragmenter.demand import waiting_demand
from tests.support.builders import NOW, PodBuilder, gpu_pod, node
from tests.support.cluster_states import state_of

PATIENCE_S = 120.0


def found(*pods: PodBuilder, since: dict[str, float] | None = None, nominated: str = "") -> list[str]:
    """The names of what waits; each pod was refused five minutes ago if `since` does not say otherwise."""
    state = state_of([node("n1").gpus(1)], pods)
    documents: list[dict[str, Any]] = []
    for document in state.pods:
        name = document["metadata"]["name"]
        at = datetime.fromtimestamp(NOW - (since or {}).get(name, 300.0), UTC).isoformat()
        refused = {"type": "PodScheduled", "status": "False", "lastTransitionTime": at}
        status = {"phase": "Pending", "nominatedNodeName": "n1" if name == nominated else ""}
        spec = {**document["spec"], "schedulerName": "hami-scheduler"}
        documents.append({**document, "spec": spec, "status": {**status, "conditions": [refused]}})
    cluster = OfflineCluster(replace(state, pods=tuple(documents)))
    return [each.name for each in waiting_demand(cluster, patience_s=PATIENCE_S)]


async def test_priority_first_then_the_longest_wait() -> None:
    pods = [gpu_pod("new"), gpu_pod("old"), gpu_pod("high").with_priority(5)]
    times = {"new": 130.0, "old": 900.0, "high": 125.0}
    assert found(*pods, since=times) == ["default/high", "default/old", "default/new"]


async def test_what_has_not_waited_for_long_or_is_helped_otherwise_is_left_out() -> None:
    bound = gpu_pod("bound", mem=1000).on("n1", "n1-0,NVIDIA,1000,0:;")
    pods = [gpu_pod("fresh"), gpu_pod("gated").gated(), gpu_pod("ends").terminating(), bound, gpu_pod("nominated")]
    assert found(*pods, since={"fresh": 119.0}, nominated="nominated") == []


async def test_a_gang_waits_as_a_whole_since_its_last_member() -> None:
    members = [gpu_pod(f"m{number}").in_gang("g", 2) for number in range(2)]
    assert found(*members) == ["gang default/g"]
    assert found(*members, since={"m1": 60.0}) == []
    assert found(members[0]) == [], "a member is missing"


async def test_a_gang_whose_members_differ_or_are_bound_in_part_is_left_out() -> None:
    small, large = (gpu_pod(name, mem=mem).in_gang("g", 2) for name, mem in (("s", 1000), ("l", 2000)))
    assert found(small, large) == []
    assert found(small, small.called("b").on("n1", "n1-0,NVIDIA,1000,0:;")) == []
