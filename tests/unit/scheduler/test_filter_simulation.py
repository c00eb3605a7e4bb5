"""Filter calls with whole nodes: what an autoscaler asks, without effects."""

from __future__ import annotations

import json
from typing import Any

from tessera.core.ledger.holders import GrantState
from tessera.wire.objects import ResourceQuota, decode_object
from tests.support.builders import MEMORY, gpu_pod, node
from tests.support.filtering import NOTHING, one_card, told, world
from tests.support.stepwise_scheduler import World, filter_body


def test_a_simulation_returns_the_best_given_node_as_it_was_written_and_has_no_effects() -> None:
    cluster = world(one_card("n1", memory=1000))
    template = one_card("new", memory=8000).manifest() | {"spec": {"taints": [{"x": 1.50}]}}
    small = one_card("small", memory=10).manifest()
    before = cluster.ledger.state()
    asking = gpu_pod("p", mem=5000)
    answer = cluster.asked(filter_body(asking, nodes=[small, template]))
    assert answer == NOTHING | {"Nodes": {"metadata": {}, "items": [template]}}
    raw = cluster.filter.answer(filter_body(asking, nodes=[small, template]))
    assert b'"taints": [{"x": 1.5}]' in raw, "the node's own text, blanks included"
    assert (cluster.ledger.state(), list(cluster.cycles), told(cluster)) == (before, [], [])
    assert len(cluster.unschedulable) == 0


def test_a_simulation_sees_the_given_nodes_as_empty() -> None:
    cluster = world(one_card("n1", memory=8000))
    cluster.create(gpu_pod("running").on("n1", "n1-0,NVIDIA,8000,0:;"))
    answer = cluster.asked(filter_body(gpu_pod("p", mem=8000), nodes=[one_card("n1", memory=8000).manifest()]))
    assert [item["metadata"]["name"] for item in answer["Nodes"]["items"]] == ["n1"]


def test_a_simulation_keeps_the_pods_own_reservation() -> None:
    cluster, asking = world(), gpu_pod("p")
    cluster.chosen(asking)
    cluster.asked(filter_body(asking, nodes=[one_card("new").manifest()]))
    assert cluster.state(asking) is GrantState.RESERVED


def test_a_simulation_without_a_fitting_node_says_why_for_each() -> None:
    given_nodes = [
        one_card("small", memory=10),
        node("bare"),
        node("odd").annotate(("hami.io/node-nvidia-register", "[")),
    ]
    answer = world().asked(filter_body(gpu_pod(mem=5000), nodes=[built.manifest() for built in given_nodes]))
    assert answer == NOTHING | {
        "FailedNodes": {
            "small": "1/1 CardInsufficientMemory",
            "bare": "node unregistered",
            "odd": "node usage unavailable",
        }
    }


def test_a_simulation_does_not_promise_what_the_quota_refuses() -> None:
    cluster = world()
    quota = {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": {f"limits.{MEMORY}": 100}}}
    _put_quota(cluster, quota)
    answer = cluster.asked(filter_body(gpu_pod(mem=5000), nodes=[one_card("new").manifest()]))
    assert answer["FailedNodes"] == {"new": "1/1 ResourceQuotaNotFit"}


def _put_quota(cluster: World, document: dict[str, Any]) -> None:
    cluster.quotas.put("default/q", decode_object(json.dumps(document), ResourceQuota))
