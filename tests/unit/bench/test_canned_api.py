from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from aiohttp.test_utils import TestServer

from bench import fleet
from bench.canned_api import VERSION, CannedApi, collections
from bench.filter_requests import FilterRequests
from tessera.core.model.requests import PodRequest
from tessera.kube.access import Access
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError
from tessera.kube.resources import NODES, PODS, RESOURCE_QUOTAS, SECRETS
from tessera.vendors.base import Switches
from tessera.vendors.downward_api import read_references
from tessera.vendors.node_reader import node_facts
from tessera.vendors.pod_reader import PodReader, pod_request
from tessera.vendors.registry import build_vendors
from tessera.wire.extender import decode_filter_args, decode_node_names
from tessera.wire.objects import Node, Pod, ResourceQuota

VENDORS = build_vendors(None, Switches())


@pytest.fixture
def api() -> CannedApi:
    return CannedApi(collections(nodes=5, devices=8, pods_per_node=3))


@pytest.fixture
async def client(api: CannedApi) -> AsyncIterator[KubeClient]:
    async with (
        TestServer(api.application()) as server,
        KubeClient(Access(str(server.make_url("")).rstrip("/"))) as made,
    ):
        yield made


async def test_every_node_of_a_list_in_pages_has_its_cards(client: KubeClient) -> None:
    listing = await client.list(NODES.path(), Node, page_size=2)
    assert listing.resource_version == str(VERSION)
    facts = [node_facts(node, VENDORS) for node in listing.items]
    assert [found.name for found in facts] == [fleet.node_name(number) for number in range(5)]
    assert {len(found.devices) for found in facts} == {8}
    assert {found.problem for found in facts} == {""}


async def test_every_pod_of_a_list_in_pages_holds_its_slice_of_a_card_of_its_node(client: KubeClient) -> None:
    listing = await client.list(PODS.path(), Pod, page_size=4)
    held = [PodReader(VENDORS).facts(pod) for pod in listing.items]
    assert len({facts.uid for facts in held if facts is not None}) == 15
    for number, facts in enumerate(held):
        assert facts is not None
        assert facts.problem == ""
        ((grant,),) = facts.grants["NVIDIA"]
        assert (facts.node, grant.uuid) == (fleet.node_name(number // 3), fleet.card_uuid(number // 3, number % 3))
        assert (grant.memory, grant.cores) == fleet.HELD


async def test_a_list_without_a_limit_is_one_page(client: KubeClient) -> None:
    assert len((await client.list(PODS.path(), Pod, page_size=0)).items) == 15
    assert (await client.list(RESOURCE_QUOTAS.path(), ResourceQuota)).items == []


async def test_a_watch_begins_with_a_bookmark_and_ends_in_time(client: KubeClient) -> None:
    events = client.watch(PODS.path(), Pod, resource_version=str(VERSION), timeout_seconds=0)
    async with aclosing(events):
        seen = [(event.type, event.object.metadata.resource_version) async for event in events]
    assert seen == [("BOOKMARK", str(VERSION + 1))]


async def test_writes_are_accepted_and_counted(api: CannedApi, client: KubeClient) -> None:
    await client.bind("team-0", "a", uid="u", node="n")
    await client.create("/api/v1/namespaces/team-0/events", {"kind": "Event"})
    await client.patch("/api/v1/namespaces/team-0/pods/a", {"metadata": {}})
    assert api.writes == {"POST binding": 1, "POST events": 1, "PATCH a": 1}


async def test_what_is_not_canned_is_not_found(client: KubeClient) -> None:
    with pytest.raises(ApiError) as refused:
        await client.list(SECRETS.path(), Pod)
    assert refused.value.status == 404


def test_a_filter_request_is_about_a_new_pod_that_passed_the_webhook_and_all_nodes_in_another_order() -> None:
    asking = FilterRequests(100)
    first, second = (decode_filter_args(asking.repeated()) for _ in range(2))
    assert first.pod.metadata.uid != second.pod.metadata.uid
    request = pod_request(first.pod, VENDORS)
    assert isinstance(request, PodRequest)
    assert request.asks_for_devices
    assert read_references(first.pod, VENDORS).cover(request, VENDORS)
    assert first.node_names is not None
    assert second.node_names is not None
    names = decode_node_names(first.node_names), decode_node_names(second.node_names)
    assert names[0] != names[1]
    assert set(names[0]) == set(names[1]) == {fleet.node_name(number) for number in range(100)}


def test_a_listed_request_keeps_the_order_of_the_nodes() -> None:
    args = decode_filter_args(FilterRequests(3).repeated(shuffled=False))
    assert args.node_names is not None
    assert decode_node_names(args.node_names) == [fleet.node_name(number) for number in range(3)]
