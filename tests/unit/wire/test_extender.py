from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from tessera.wire.errors import WireError
from tessera.wire.extender import (
    BindingArgs,
    decode_binding_args,
    decode_filter_args,
    decode_node_names,
    decode_nodes,
    encode_binding_result,
    encode_filter_result,
)

SAMPLES = Path(__file__).parents[2] / "samples" / "extender"


def sample(name: str) -> bytes:
    return (SAMPLES / name).read_bytes()


AWKWARD: tuple[Any, ...] = (None, True, -1, 1.5, 10**30, "", "\x00", [], [None], {}, {"": None}, {"items": [5]})


def grafted(tree: Any) -> Iterator[Any]:
    """The tree with each of its parts replaced by something of another kind, one at a time."""
    yield from AWKWARD
    members = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, member in members:
        for graft in grafted(member):
            copy = tree.copy()
            copy[key] = graft
            yield copy


def parsed(data: bytes | Raw) -> Any:
    return msgspec.json.decode(data)


@pytest.mark.parametrize("name", sorted(path.name for path in SAMPLES.glob("*filter*.request.json")))
def test_a_recorded_filter_request_is_read_as_it_was_sent(name: str) -> None:
    body = sample(name)
    args, sent = decode_filter_args(body), parsed(body)
    assert args.pod.metadata.uid == sent["Pod"]["metadata"]["uid"]
    assert [c.name for c in args.pod.app_containers] == [c["name"] for c in sent["Pod"]["spec"]["containers"]]
    assert (args.node_names and decode_node_names(args.node_names)) == sent["NodeNames"]
    nodes = args.nodes and decode_nodes(args.nodes)
    assert (nodes and [parsed(given.raw) for given in nodes]) == (sent["Nodes"] and sent["Nodes"]["items"])


def test_the_gpu_pod_of_the_recording_asks_in_quantities() -> None:
    (container,) = decode_filter_args(sample("filter-0.request.json")).pod.app_containers
    assert container.resources.limits is not None
    assert container.resources.limits["nvidia.com/gpumem"] == "3k"


def test_a_recorded_preemption_has_a_pod_and_no_candidates() -> None:
    args = decode_filter_args(sample("preempt-0.request.json"))
    assert (args.pod.metadata.name, args.node_names, args.nodes) == ("hi", None, None)


def test_the_names_of_two_requests_compare_without_being_decoded() -> None:
    first, again = (decode_filter_args(sample("filter-1000-nodes.request.json")).node_names for _ in range(2))
    other = decode_filter_args(sample("filter-0.request.json")).node_names
    assert first is not again
    assert first == again
    assert first != other


def test_a_node_goes_back_exactly_as_it_came() -> None:
    args = decode_filter_args(sample("nodes_filter-0.request.json"))
    assert args.nodes is not None
    given = decode_nodes(args.nodes)[0]
    assert given.node.name == "fake-0"
    answer = encode_filter_result(nodes=[given.raw])
    assert bytes(given.raw) in answer
    assert parsed(answer)["Nodes"]["items"] == parsed(sample("nodes_filter-0.response.json"))["Nodes"]["items"]


def test_names_are_echoed_as_they_came() -> None:
    args = decode_filter_args(b'{"Pod":{},"NodeNames":[ "a","b" ]}')
    assert b'"NodeNames":[ "a","b" ]' in encode_filter_result(node_names=args.node_names)


@pytest.mark.parametrize("nodes", [b'{"items":null}', b"{}", b'{"items":[]}'])
def test_a_node_list_may_be_empty(nodes: bytes) -> None:
    assert decode_nodes(Raw(nodes)) == []


@pytest.mark.parametrize(
    "body",
    [
        b'{"pod":{"metadata":{"uid":"u"}},"nodenames":["a"],"nodes":null,"other":1}',
        b'{"POD":{"metadata":{"uid":"u"}},"NODENAMES":["a"]}',
        b'{"Pod":null,"pod":{"metadata":{"uid":"u"}},"NodeNames":["a"]}',
    ],
)
def test_the_case_of_keys_does_not_matter(body: bytes) -> None:
    args = decode_filter_args(body)
    assert args.pod.metadata.uid == "u"
    assert args.node_names is not None
    assert decode_node_names(args.node_names) == ["a"]
    assert args.nodes is None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "^Please send a request body$"),
        (b"{}", "^extender args missing pod$"),
        (b'{"Pod":null,"NodeNames":["a"]}', "^extender args missing pod$"),
        (b"null", "^not valid ExtenderArgs: "),
        (b"[]", "^not valid ExtenderArgs: "),
        (b'{"Pod":{}', "^not valid ExtenderArgs: "),
        (b'{"pod":5}', "^not valid ExtenderArgs: "),
        (b'{"Pod":{"metadata":{"annotations":{"a":5}}}}', r"^not valid ExtenderArgs: .* `\$\.Pod\.metadata"),
        (b'{"Pod":{"metadata":{"name":"\xff"}}}', "^not valid ExtenderArgs: "),
        (b'{"Pod":{"metadata":{"name":"\\ud800"}}}', "^not valid ExtenderArgs: "),
        (b'{"Pod":{},"Nodes":' + b"[" * 100_000, "^not valid ExtenderArgs: "),
        (b'{"\xff":{}}', "^not valid "),
    ],
)
def test_a_filter_request_that_cannot_be_read_says_why(body: bytes, said: str) -> None:
    with pytest.raises(WireError, match=said):
        decode_filter_args(body)


@pytest.mark.parametrize("names", [b"{}", b'"a"', b"[1]", b"[null]", b'["\xff"]', b'["\\ud800"]'])
def test_names_that_are_not_a_list_of_texts_are_refused(names: bytes) -> None:
    with pytest.raises(WireError, match=r"^not valid NodeNames: "):
        decode_node_names(Raw(names))


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (b"[]", "^not valid NodeList: "),
        (b'{"items":{}}', "^not valid NodeList: "),
        (b'{"items":[5]}', "^not valid Node: "),
        (b'{"items":[{"metadata":{"name":1}}]}', "^not valid Node: "),
        (b'{"items":[null]}', "^not valid Node: "),
    ],
)
def test_nodes_that_are_not_nodes_are_refused(nodes: bytes, said: str) -> None:
    with pytest.raises(WireError, match=said):
        decode_nodes(Raw(nodes))


@pytest.mark.no_cover
@pytest.mark.parametrize("name", ["filter-2", "nodes_filter-0"])
def test_a_request_with_any_part_of_another_kind_is_read_or_refused(name: str) -> None:
    outcomes = set()
    for tree in grafted(parsed(sample(f"{name}.request.json"))):
        try:
            args = decode_filter_args(json.dumps(tree).encode())
            names = decode_node_names(args.node_names) if args.node_names else []
            nodes = decode_nodes(args.nodes) if args.nodes else []
        except WireError as error:
            outcomes.add(str(error).split(":")[0])
        else:
            encode_filter_result(node_names=names, nodes=[given.raw for given in nodes])
            outcomes.add("read")
    assert outcomes >= {"read", "not valid ExtenderArgs", "extender args missing pod"}


@pytest.mark.parametrize("name", ["filter-0", "filter-2"])
def test_an_answer_has_all_that_an_accepted_answer_had(name: str) -> None:
    accepted = parsed(sample(f"{name}.response.json"))
    assert parsed(encode_filter_result(node_names=["node-real"], failed={})).items() >= accepted.items()


def test_an_answer_has_every_key_in_the_order_of_the_protocol() -> None:
    assert encode_filter_result(node_names=("n1",)) == (
        b'{"Nodes":null,"NodeNames":["n1"],"FailedNodes":null,"FailedAndUnresolvableNodes":null,"Error":""}'
    )
    assert encode_filter_result(failed={"n2": "no room"}, unresolvable={"n3": "gone"}, error="e") == (
        b'{"Nodes":null,"NodeNames":null,"FailedNodes":{"n2":"no room"},'
        b'"FailedAndUnresolvableNodes":{"n3":"gone"},"Error":"e"}'
    )


def test_a_recorded_bind_request_is_read_as_it_was_sent() -> None:
    assert decode_binding_args(sample("bind-0.request.json")) == BindingArgs(
        pod_name="gpu1",
        pod_namespace="default",
        pod_uid="9992952e-cecc-4e6a-966a-273028038635",
        node="node-real",
    )


def test_the_case_of_keys_in_a_bind_request_does_not_matter() -> None:
    body = b'{"podName":"p","podNamespace":"ns","poduid":"u","NODE":"n"}'
    assert decode_binding_args(body) == BindingArgs("p", "ns", "u", "n")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "^Please send a request body$"),
        (b"{}", "^extender binding args missing PodName, PodNamespace, PodUID, Node$"),
        (b'{"PodName":"p","PodNamespace":"ns","PodUID":"u","Node":""}', "^extender binding args missing Node$"),
        (b'{"PodName":5}', "^not valid ExtenderBindingArgs: "),
        (b"[]", "^not valid ExtenderBindingArgs: "),
    ],
)
def test_a_bind_request_that_cannot_be_read_says_why(body: bytes, said: str) -> None:
    with pytest.raises(WireError, match=said):
        decode_binding_args(body)


def test_the_answer_to_a_bind_request_is_its_error() -> None:
    assert parsed(encode_binding_result()) == parsed(sample("bind-0.response.json"))
    assert encode_binding_result('no "room"') == b'{"Error":"no \\"room\\""}'
