from __future__ import annotations

import pytest

from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.state import InspectionError
from tessera.kube.access import Access
from tessera.kube.client import KubeClient
from tessera.maintenance.cordon import ATTEMPTS, NamedCard, cordon, find_cards, parse_names, uncordon
from tests.support.builders import CORDON, node
from tests.support.cluster_states import state_of
from tests.support.event_loops import in_fake_time
from tests.support.network import RawServer, refusal, reply

FIRST, SECOND = NamedCard("n1", 0, "n1-0"), NamedCard("n1", 1, "n1-1")


def cluster() -> OfflineCluster:
    ascend = node("npu").annotate(
        ("hami.io/node-register-Ascend910B3", '[{"id": "npu-0", "count": 4, "devmem": 65536, "devcore": 20}]'),
    )
    return OfflineCluster(state_of([node("n1").gpus(3).cordon("gone"), node("n2").gpus(1), node("plain"), ascend]))


def test_cards_are_named_by_node_and_index_or_uuid() -> None:
    assert parse_names(["n1/0,GPU-1", "n2/1", "n1/0"]) == {"n1": ["0", "GPU-1"], "n2": ["1"]}


@pytest.mark.parametrize("text", ["n1", "n1/", "/0", "n1/,", ""])
def test_a_name_without_node_or_card_is_an_error(text: str) -> None:
    with pytest.raises(InspectionError, match="names no card; write NODE/CARD"):
        parse_names([text])


async def test_an_index_and_a_uuid_mean_the_same_card() -> None:
    found = find_cards(cluster(), {"n1": ["0", "n1-0", "n1-2"], "n2": ["0"]})
    assert [(card.node, card.index, card.card) for card in found] == [
        ("n1", 0, "n1-0"), ("n1", 2, "n1-2"), ("n2", 0, "n2-0")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("3", r"n1/3: 3 is no card of node n1, which has: 0 \(n1-0\), 1 \(n1-1\), 2 \(n1-2\)"),
        ("GPU-x", r"n1/GPU-x: GPU-x is no card of node n1, which has: 0 \(n1-0\)"),
        ("gone", "gone is no card of node n1"),
    ],
)
async def test_a_card_that_does_not_exist_is_an_error_that_lists_those_that_do(name: str, text: str) -> None:
    with pytest.raises(InspectionError, match=text):
        find_cards(cluster(), {"n1": [name]})


async def test_a_card_that_only_the_cordon_names_can_be_uncordoned() -> None:
    [found] = find_cards(cluster(), {"n1": ["gone"]}, opening=True)
    assert (found.text, found.index) == ("n1/gone", None)


@pytest.mark.parametrize(
    ("name", "text"),
    [("plain", "no cards of node plain are known"), ("npu", "take no cordon; take the whole node out: kubectl cordon")],
)
async def test_a_node_without_such_cards_is_an_error(name: str, text: str) -> None:
    with pytest.raises(InspectionError, match=text):
        find_cards(cluster(), {name: ["0"]})


async def test_an_index_of_two_makers_cards_is_ambiguous() -> None:
    both = node("n").gpus(1).annotate(("hami.io/node-register-Ascend910B3", '[{"id": "npu-0", "count": 4}]'))
    with pytest.raises(InspectionError, match=r"means several cards, name one by its uuid: 0 \(npu-0\), 0 \(n-0\)"):
        find_cards(OfflineCluster(state_of([both])), {"n": ["0"]})


def shown(cordoned: str, version: str = "7") -> object:
    return {"metadata": {"name": "n1", "resourceVersion": version, "annotations": {CORDON: cordoned}}}


@in_fake_time
async def test_a_cordon_keeps_the_cards_that_others_cordoned() -> None:
    script = (reply(200, shown("n1-2")), reply(200, {}))
    async with RawServer(*script) as server, KubeClient(Access(server.url)) as client:
        assert await cordon(client, [FIRST, SECOND]) == {FIRST: True, SECOND: True}
    assert server.requests[1].method == "PATCH"
    assert server.requests[1].json == {"metadata": {"resourceVersion": "7", "annotations": {CORDON: "n1-0,n1-1,n1-2"}}}


@in_fake_time
async def test_a_cordon_that_is_there_is_not_written_again() -> None:
    async with RawServer(reply(200, shown("n1-0"))) as server, KubeClient(Access(server.url)) as client:
        assert await cordon(client, [FIRST]) == {FIRST: False}
    assert len(server.requests) == 1


@in_fake_time
async def test_the_last_card_takes_the_annotation_with_it() -> None:
    script = (reply(200, shown("n1-0")), reply(200, {}))
    async with RawServer(*script) as server, KubeClient(Access(server.url)) as client:
        assert await uncordon(client, [FIRST, SECOND]) == {FIRST: True, SECOND: False}
    assert server.requests[1].json["metadata"]["annotations"] == {CORDON: None}


@in_fake_time
async def test_a_write_that_another_one_overtook_starts_again_from_what_is_there() -> None:
    script = (reply(200, shown("")), refusal(409, "Conflict"), reply(200, shown("n1-2", "8")), reply(200, {}))
    async with RawServer(*script) as server, KubeClient(Access(server.url)) as client:
        await cordon(client, [FIRST])
    assert server.requests[3].json == {"metadata": {"resourceVersion": "8", "annotations": {CORDON: "n1-0,n1-2"}}}


@in_fake_time
async def test_conflicts_end() -> None:
    script = (reply(200, shown("")), refusal(409, "Conflict")) * ATTEMPTS
    async with RawServer(*script) as server, KubeClient(Access(server.url)) as client:
        with pytest.raises(InspectionError, match="was changed by others 5 times in a row"):
            await cordon(client, [FIRST])


@in_fake_time
async def test_an_operator_without_the_right_is_told_which_role_to_ask_for() -> None:
    script = (reply(200, shown("")), refusal(403, "Forbidden", "cannot patch nodes"))
    async with RawServer(*script) as server, KubeClient(Access(server.url)) as client:
        with pytest.raises(InspectionError, match=r"you may not change node n1.*\nAsk for the ClusterRole"):
            await cordon(client, [FIRST])
