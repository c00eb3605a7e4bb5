from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.ledger.holders import GrantState
from tessera.scheduler.pod_cycle import CycleState, PodCycle
from tessera.scheduler.requests.reader import PreparedRequest
from tests.support.builders import A100_40GB, GPU, MEMORY, PodBuilder, gpu_pod, node, pod, uuids
from tests.support.filtering import NOTHING, one_card, told, world
from tests.support.stepwise_scheduler import RESERVATION, World, filter_body, uid, using_downward_api

SAMPLES = Path(__file__).parents[2] / "samples" / "extender"

# -- pods that are not ours


def test_a_pod_without_devices_gets_its_candidates_back_letter_by_letter() -> None:
    names = b'[ "n2",\t"n1", "no-such\\u002dnode" ]'
    body = b'{"Pod": {"metadata": {"name": "web"}}, "NodeNames": ' + names + b"}"
    answer = world().filter.answer(body)
    assert names in answer
    assert json.loads(answer) == NOTHING | {"NodeNames": ["n2", "n1", "no-such-node"]}


def test_a_pod_without_devices_gets_whole_nodes_back_too() -> None:
    given_nodes = [{"metadata": {"name": "a"}, "spec": {"unknown": [1, 2.50]}}, {"metadata": {"name": "b"}}]
    answer = world().asked(filter_body(pod("web").container(), nodes=given_nodes))
    assert answer == NOTHING | {"Nodes": {"metadata": {}, "items": given_nodes}}


def test_a_pod_without_devices_leaves_no_trace() -> None:
    cluster = world()
    cluster.filtered(pod("web").container())
    assert (cluster.ledger.pods(), list(cluster.cycles), told(cluster), cluster.api.calls) == ([], [], [], [])


# -- decisions


def test_an_answer_has_exactly_one_node_and_it_is_reserved() -> None:
    cluster, asking = world(), gpu_pod("p", mem=1000, cores=10)
    assert cluster.filtered(asking, ["n1", "n2"]) == NOTHING | {"NodeNames": ["n1"]}
    assert cluster.state(asking) is GrantState.RESERVED
    assert cluster.cards("n1") == {"n1-0": (1, 1000, 10)}
    assert cluster.cycle_state(asking) is CycleState.RESERVED


def test_a_filter_makes_no_call_to_the_apiserver() -> None:
    cluster = world()
    cluster.filtered(gpu_pod("a"))
    cluster.filtered(gpu_pod("b", gpu=5))
    assert cluster.api.calls == []


def test_two_pods_asked_for_at_once_do_not_get_the_same_room() -> None:
    cluster = world(one_card(memory=10000))
    assert cluster.chosen(gpu_pod("a", mem=6000)) == "n1"
    assert cluster.filtered(gpu_pod("b", mem=6000))["NodeNames"] is None


def test_a_refusal_has_a_reason_for_every_candidate() -> None:
    answer = world().filtered(gpu_pod(gpu=2), ["n1", "n2", "stranger"])
    assert answer == NOTHING | {
        "FailedNodes": {
            "n1": "NodeInsufficientDevice",
            "n2": "NodeInsufficientDevice",
            "stranger": "node unregistered",
        }
    }


def test_kube_scheduler_looks_for_no_victims_for_a_pod_with_a_priority_and_keeps_its_nomination() -> None:
    """On a node of `FailedAndUnresolvableNodes` it looks for no victims, and a nomination for such a node it drops."""
    cluster = World(node("n1").gpus(1), node("n2").gpus(1))
    pod = gpu_pod(gpu=2).with_priority(1000).manifest()
    short = "NodeInsufficientDevice"
    for nominated in ("n1", "n2"):
        pod["status"] = {"nominatedNodeName": nominated}
        [other] = {"n1", "n2"} - {nominated}
        expected = {"FailedNodes": {nominated: short}, "FailedAndUnresolvableNodes": {other: short}}
        assert cluster.asked(filter_body(pod, ["n1", "n2"])) == NOTHING | expected
    pod["status"] = {"nominatedNodeName": "elsewhere"}
    everywhere = {"n1": short, "n2": short}
    assert cluster.asked(filter_body(pod, ["n1", "n2"])) == NOTHING | {"FailedAndUnresolvableNodes": everywhere}
    pod["spec"]["priority"] = 0
    assert cluster.asked(filter_body(pod, ["n1", "n2"])) == NOTHING | {"FailedNodes": everywhere}


def test_a_request_without_candidates_gets_no_node_and_no_reasons() -> None:
    assert world().filtered(gpu_pod(), []) == NOTHING | {"FailedNodes": {}}


@pytest.mark.parametrize(
    ("asking", "downward_api"),
    [(gpu_pod(), False), (using_downward_api(gpu_pod()), True), (pod().container(), False)],
)
def test_a_prepared_request_knows_whether_its_pod_uses_the_downward_api(asking: PodBuilder, downward_api: bool) -> None:
    prepared = world().engine.request_reader.read(asking.api())
    assert isinstance(prepared, PreparedRequest)
    assert prepared.uses_downward_api is downward_api


def test_a_pod_gets_a_mig_instance_only_if_it_asks_for_one_with_the_webhook_and_past_it() -> None:
    cluster = world(node("n1").gpu("mig", mode="mig", profiles=A100_40GB))
    for built in (using_downward_api(gpu_pod("completed", mem=4000)), gpu_pod("bypassed", mem=4000)):
        assert cluster.filtered(built)["FailedNodes"] == {"n1": "1/1 CardTypeMismatch"}
        _, _, text = told(cluster)[-1]
        assert text == (
            "every NVIDIA card is in MIG mode, and a pod gets a MIG instance only with the annotation "
            "nvidia.com/vgpu-mode: mig"
        )
    assert cluster.chosen(gpu_pod("asking", mem=4000).annotate(("nvidia.com/vgpu-mode", "mig"))) == "n1"


def test_a_pod_whose_containers_moved_after_the_webhook_is_refused_with_what_to_do() -> None:
    admitted = using_downward_api(pod("p").container(gpu=1))
    moved = replace(
        pod("p").container(name="injected"), containers=(pod().container().containers[0], *admitted.containers)
    )
    answer = world().filtered(moved, ["n1"])
    assert answer["FailedAndUnresolvableNodes"] == {
        "n1": "container c0: containers were added to the pod after Tessera's webhook; let the webhook run again"
    }


# -- the same pod again


def bind(cluster: World, asking: PodBuilder) -> PodCycle:
    """The pod's bind has begun."""
    cycle = cluster.cycles.check_out(uid(asking))
    assert cycle is not None
    cluster.cycles.start_bind(cycle)
    return cycle


def test_a_pod_asked_for_again_replaces_its_reservation() -> None:
    cluster, asking = world(one_card("n1", memory=10000), one_card("n2", memory=10000)), gpu_pod("p", mem=6000)
    assert cluster.chosen(asking, ["n1"]) == "n1"
    assert cluster.chosen(asking, ["n1"]) == "n1", "its own reservation is no obstacle"
    assert cluster.chosen(asking, ["n2"]) == "n2"
    assert (cluster.cards("n1"), cluster.cards("n2")) == ({"n1-0": (0, 0, 0)}, {"n2-0": (1, 6000, 0)})


def test_a_pod_that_no_longer_fits_holds_nothing() -> None:
    cluster, asking = world(one_card()), gpu_pod("p", mem=6000)
    cluster.chosen(asking)
    assert cluster.filtered(asking, ["elsewhere"])["FailedNodes"] == {"elsewhere": "node unregistered"}
    assert (cluster.state(asking), cluster.cycle_state(asking)) == (None, CycleState.REFUSED)


def test_a_bound_pod_is_an_error_and_keeps_what_it_has() -> None:
    cluster = world()
    running = gpu_pod("p", mem=500).on("n2", "n2-0,NVIDIA,500,0:;")
    cluster.create(running)
    before = cluster.ledger.state()
    assert cluster.filtered(gpu_pod("p", mem=500)) == NOTHING | {"Error": "pod default/p is bound to n2"}
    assert cluster.ledger.state() == before


def test_a_pod_that_is_being_bound_is_an_error_and_keeps_what_it_has() -> None:
    cluster, asking = world(), gpu_pod("p", mem=500)
    cluster.chosen(asking)
    bind(cluster, asking)
    before = cluster.ledger.state()
    assert cluster.filtered(asking, ["n2"])["Error"] == "pod default/p is being bound to n1"
    assert cluster.ledger.state() == before
    assert cluster.cycle_state(asking) is CycleState.BINDING


def test_a_pod_whose_binding_may_have_been_written_is_sent_to_the_same_node_again() -> None:
    cluster, asking = world(), gpu_pod("p", mem=500)
    cluster.chosen(asking, ["n2"])
    cycle = bind(cluster, asking)
    cluster.cycles.mark_written(cycle)
    cluster.cycles.put_back(cycle)
    cluster.cycles.check_in(cycle)
    before = cluster.ledger.state()
    assert cluster.filtered(asking, ["n1", "n2"]) == NOTHING | {"NodeNames": ["n2"]}
    assert cluster.filtered(asking, ["n1"]) == NOTHING | {"Error": "pod default/p may be bound to n2 already"}
    assert cluster.ledger.state() == before


# -- the end of reservations


def test_a_reservation_that_is_never_bound_expires() -> None:
    cluster, asking = world(one_card()), gpu_pod("p")
    cluster.chosen(asking)
    cluster.at = RESERVATION - 0.001
    cluster.cycles.tick()
    assert cluster.cycle_state(asking) is CycleState.RESERVED
    cluster.at = RESERVATION
    cluster.cycles.tick()
    assert cluster.cycle_state(asking) is None
    assert cluster.cards() == {"n1-0": (0, 0, 0)}


@pytest.mark.parametrize("end", ["deleted", "terminating", "failed"])
def test_a_pending_pod_that_ends_frees_its_reservation_at_once(end: str) -> None:
    cluster, asking = world(one_card()), gpu_pod("p")
    cluster.create(asking)
    cluster.chosen(asking)
    if end == "deleted":
        cluster.api.delete_pod("default/p")
    else:
        cluster.api.add_pod(asking.terminating() if end == "terminating" else asking.ended("Failed"))
    cluster.watch()
    assert (cluster.state(asking), cluster.cards()) == (None, {"n1-0": (0, 0, 0)})
    assert cluster.cycle_state(asking) is None


# -- what cannot be asked for


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({GPU: 1, MEMORY: "2500m"}, "container c0: "),
        ({GPU: 1, MEMORY: -5}, "container c0: "),
        ({GPU: 1, MEMORY: "much"}, "container c0: "),
    ],
)
def test_a_request_that_no_node_can_honour_is_unresolvable_everywhere(limits: dict[str, Any], text: str) -> None:
    cluster = world()
    answer = cluster.asked(filter_body(pod().container(limits=limits), ["n1", "n2"]))
    said = answer["FailedAndUnresolvableNodes"]
    assert set(said) == {"n1", "n2"}
    assert len(set(said.values())) == 1
    assert said["n1"].startswith(text)
    assert answer == NOTHING | {"FailedAndUnresolvableNodes": said}


def test_a_bad_annotation_is_unresolvable_without_naming_a_container() -> None:
    bad = gpu_pod().annotate(("hami.io/device-scoring-weights", "slot=many"))
    answer = world().asked(filter_body(bad, nodes=[node("a").manifest()]))
    assert set(answer["FailedAndUnresolvableNodes"]) == {"a"}
    assert not answer["FailedAndUnresolvableNodes"]["a"].startswith("container")


def test_a_bad_request_without_candidates_is_an_error() -> None:
    answer = world().asked(filter_body(gpu_pod(mem="much")))
    assert answer["Error"].startswith("container c0: ")
    assert answer["FailedAndUnresolvableNodes"] == {}


# -- what cannot be read


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "Please send a request body"),
        (b"{}", "extender args missing pod"),
        (b'{"Pod": null, "NodeNames": ["n1"]}', "extender args missing pod"),
        (filter_body(gpu_pod()), "extender args name no nodes"),
        (b"[1, 2", "not valid ExtenderArgs"),
        (b'{"Pod": {"metadata": {"name": 7}}}', "not valid ExtenderArgs"),
        (b"\xff\xfe", "not valid ExtenderArgs"),
        (filter_body(gpu_pod(), [1]), "not valid NodeNames"),  # type: ignore[list-item]
        (filter_body(gpu_pod(), nodes=[7]), "not valid Node"),
        (filter_body(pod().container(), nodes=[7]), "not valid Node"),
    ],
)
def test_a_body_that_cannot_be_read_is_an_error_in_the_answer(body: bytes, error: str) -> None:
    answer = world().asked(body)
    assert answer["Error"].startswith(error)
    assert answer == NOTHING | {"Error": answer["Error"]}


def test_a_pod_that_names_no_nodes_keeps_its_reservation() -> None:
    cluster, asking = world(), gpu_pod("p")
    cluster.chosen(asking)
    cluster.asked(filter_body(asking))
    assert cluster.state(asking) is GrantState.RESERVED


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
amounts: st.SearchStrategy[Any] = st.sampled_from(
    [1, 2, "1", "3k", "2Gi", "1500m", -1, 0, "0", 10**30, "1e400", 1.5, "x", "", None, [], {}]
)
limits = st.dictionaries(
    st.sampled_from([GPU, MEMORY, "nvidia.com/gpucores", "hygon.com/dcunum", "huawei.com/Ascend910B", "cpu"]), amounts
)
containers = st.lists(
    st.fixed_dictionaries({"name": st.text(max_size=4), "resources": st.fixed_dictionaries({"limits": limits})}),
    max_size=3,
)
nodes_in_json = st.builds(
    lambda name, register: {"metadata": {"name": name, "annotations": {"hami.io/node-nvidia-register": register}}},
    st.text(max_size=4),
    st.sampled_from([json.dumps([{"id": "u", "count": 10**9, "devmem": 10**25, "devcore": 100, "health": True}]), "["])
    | st.text(max_size=20)
    | st.builds(lambda b: json.dumps(b.cards), st.just(node("x").gpus(2))),
)
args = st.fixed_dictionaries(
    {},
    optional={
        "Pod": json_values
        | st.fixed_dictionaries(
            {
                "metadata": st.fixed_dictionaries(
                    {"uid": st.text(max_size=3), "annotations": st.dictionaries(st.text(max_size=9), st.text())}
                ),
                "spec": st.fixed_dictionaries({"containers": containers, "initContainers": containers}),
            }
        ),
        "NodeNames": json_values | st.lists(st.sampled_from(["n1", "n2", "", "n1"])),
        "Nodes": json_values | st.fixed_dictionaries({"items": st.lists(nodes_in_json, max_size=3)}),
    },
)


@given(st.binary(max_size=80) | args.map(lambda document: json.dumps(document).encode()))
def test_no_body_whatsoever_makes_the_filter_raise(body: bytes) -> None:
    answer = world().asked(body)
    assert set(answer) == set(NOTHING)


# -- recorded requests


def sample(name: str) -> bytes:
    return (SAMPLES / f"{name}.request.json").read_bytes()


def test_a_recorded_request_of_a_kube_scheduler_is_answered_with_its_node() -> None:
    cluster = world(one_card("node-real"), one_card("other"))
    names = json.loads(sample("filter-0"))["NodeNames"]
    assert cluster.asked(sample("filter-0")) == NOTHING | {"NodeNames": ["node-real"]}
    assert "node-real" in names
    [entry] = cluster.ledger.pods()
    assert (entry.facts.name, entry.facts.uid) == ("gpu1", "9992952e-cecc-4e6a-966a-273028038635")
    assert cluster.cards("node-real") == {"node-real-0": (1, 3000, 30)}, "3k is 3000"


def test_a_recorded_request_that_names_a_thousand_nodes_is_answered_with_one_of_them() -> None:
    body = sample("filter-1000-nodes")
    document = json.loads(body)
    names = document["NodeNames"]
    assert len(names) == 1000
    cluster = world(*(one_card(name) for name in names[:50]))
    assert cluster.asked(body) == NOTHING | {"NodeNames": [min(names[:50])]}, "equal nodes go by name"


def test_a_recorded_request_with_whole_nodes_is_a_simulation() -> None:
    body = sample("nodes_filter-0")
    document = json.loads(body)
    plain = [item["metadata"]["name"] for item in document["Nodes"]["items"]]
    cluster = world()
    assert cluster.asked(body) == NOTHING | {"FailedNodes": dict.fromkeys(plain, "node unregistered")}
    document["Nodes"]["items"][1]["metadata"]["annotations"] |= one_card("x").manifest()["metadata"]["annotations"]
    answer = cluster.asked(json.dumps(document).encode())
    assert answer["Nodes"]["items"] == [document["Nodes"]["items"][1]]


# -- what is remembered between calls


def test_an_equal_refusal_is_not_even_encoded_again() -> None:
    cluster = world(one_card(slots=1), one_card("n2", slots=1))
    for name in ("a", "b"):
        assert cluster.filtered(gpu_pod(name), ["n1", "n2"])["NodeNames"]
    first = cluster.filter.answer(filter_body(gpu_pod("c"), ["n1", "n2"]))
    assert cluster.filter.answer(filter_body(gpu_pod("d"), ["n2", "n1"])) is first, "in whatever order it is asked"


def test_another_refusal_is_encoded_anew() -> None:
    cluster = world(one_card())
    assert cluster.filtered(gpu_pod("a", gpu=2), ["n1"])["FailedNodes"] == {"n1": "NodeInsufficientDevice"}
    assert cluster.filtered(gpu_pod("b", mem=10**6), ["n1"])["FailedNodes"] == {"n1": "1/1 CardInsufficientMemory"}
    assert cluster.filtered(gpu_pod("c", gpu=2), ["n1"])["FailedNodes"] == {"n1": "NodeInsufficientDevice"}


def test_a_node_that_registers_later_is_found_in_a_list_that_was_sent_before() -> None:
    cluster = world(one_card("n1"))
    assert cluster.filtered(gpu_pod("a"), ["late"])["FailedNodes"] == {"late": "node unregistered"}
    cluster.api.add_node(one_card("late"))
    cluster.watch()
    assert cluster.chosen(gpu_pod("a"), ["late"]) == "late"


def test_the_candidates_that_are_sent_decide_and_not_those_of_earlier_requests() -> None:
    cluster = world(*(node(f"n{i}").gpus(2, memory=8000) for i in range(6)))
    for used in ("n0", "n1"):
        cluster.chosen(gpu_pod(f"on-{used}", mem=3000), [used])
    small = gpu_pod(mem=100).policy(node="binpack")
    for number in range(3):
        answer = cluster.filtered(small.called(f"p{number}"), ["n2", "n3", "n4", "n5"])
        assert answer["NodeNames"] == ["n2"]
    # As many bytes as before, but a better node is among them now.
    assert cluster.filtered(small.called("last"), ["n0", "n2", "n3", "n4"])["NodeNames"] == ["n0"]


def test_the_reserved_placement_is_the_one_that_was_chosen() -> None:
    cluster, asking = world(node("n1").gpus(3)), gpu_pod("p", gpu=2, mem=100)
    cluster.chosen(asking)
    [granted] = uuids(cluster.placement(asking))
    assert sorted(uuid for uuid, (slots, *_) in cluster.cards().items() if slots) == sorted(granted)
    assert len(granted) == 2
