"""Lists and watches, beyond the contract: what is forgotten, bookmarks, forms, cut connections."""

from __future__ import annotations

import asyncio
import base64

import aiohttp
import pytest
import yaml

from tessera_lab.sandbox.api.kinds import NODES, PODS
from tessera_lab.sandbox.api.server import ApiServer
from tests.contract.client import TABLE, Client, client
from tests.contract.manifests import pod

PODS_PATH = "/api/v1/namespaces/default/pods"
MAPS_PATH = "/api/v1/namespaces/default/configmaps"


async def version(api: Client, path: str = PODS_PATH) -> str:
    return str((await api.get(path)).body["metadata"]["resourceVersion"])


async def test_a_version_that_is_forgotten_is_gone(server: ApiServer, api: Client) -> None:
    old = await version(api)
    server.faults.compact()
    async with api.watch(PODS_PATH, resourceVersion=old) as watch:
        event = await watch.next()
        assert event is not None
        assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
        assert await watch.next() is None
    async with api.watch(PODS_PATH, resourceVersion=await version(api)) as watch:
        await api.made(PODS_PATH, pod())
        assert (await watch.expect("ADDED"))["metadata"]["name"] == "p"


async def test_a_version_from_the_future_is_refused(api: Client) -> None:
    answer = await api.get(PODS_PATH, resourceVersion="99999")
    assert (answer.status, answer.reason) == (504, "Timeout")
    assert answer.headers["Retry-After"] == "1"
    async with api.watch(PODS_PATH, resourceVersion="99999") as watch:
        assert ((await watch.next()) or {})["object"]["code"] == 504


async def test_initial_events_end_with_a_bookmark(api: Client) -> None:
    await api.made(PODS_PATH, pod())
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    async with api.watch(PODS_PATH, **query) as watch:
        assert ((await watch.next()) or {})["type"] == "ADDED"
        event = await watch.next()
        assert event is not None
        assert event["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_a_watch_of_a_table_shows_rows(api: Client) -> None:
    async with api.session.get(api.url + PODS_PATH, params={"watch": "1"}, headers={"Accept": TABLE}) as response:
        await api.made(PODS_PATH, pod())
        event = yaml.safe_load(await response.content.readline())
    assert event["object"]["rows"][0]["cells"][0] == "p"


async def test_watches_are_cut_or_ended_on_demand(server: ApiServer, api: Client) -> None:
    async with api.watch(PODS_PATH) as watch, api.watch("/api/v1/nodes") as other:
        assert server.faults.cut_watches(PODS) == 1
        with pytest.raises(aiohttp.ClientError):
            await watch.next()
        assert server.faults.end_watches(NODES) == 1
        assert await other.next() is None


async def test_a_client_that_leaves_is_forgotten(server: ApiServer, api: Client) -> None:
    async with api.watch(PODS_PATH):
        assert len(server.cluster.hub.all()) == 1
    async with asyncio.timeout(5):
        while server.cluster.hub.all():
            await api.get("/readyz")


async def test_stopping_ends_watches() -> None:
    server = ApiServer()
    await server.start()
    async with client(server.kubeconfig()) as api, api.watch(PODS_PATH) as watch:
        await server.stop()
        assert await watch.next() is None


async def test_a_page_of_a_forgotten_list_is_gone(server: ApiServer, api: Client) -> None:
    for name in "abc":
        await api.made(PODS_PATH, pod(name))
    token = (await api.get(PODS_PATH, limit="1")).body["metadata"]["continue"]
    assert (await api.get(MAPS_PATH, limit="1", **{"continue": token})).status == 400
    whole = (await api.get(PODS_PATH, **{"continue": token})).body
    assert [each["metadata"]["name"] for each in whole["items"]] == ["b", "c"]
    server.faults.compact()
    answer = await api.get(PODS_PATH, limit="1", **{"continue": token})
    assert (answer.status, answer.reason) == (410, "Expired")


async def test_many_unfinished_lists_push_out_the_oldest(api: Client) -> None:
    for name in "ab":
        await api.made(PODS_PATH, pod(name))
    tokens = [(await api.get(PODS_PATH, limit="1")).body["metadata"]["continue"] for _ in range(33)]
    assert (await api.get(PODS_PATH, limit="1", **{"continue": tokens[0]})).status == 410
    assert (await api.get(PODS_PATH, limit="1", **{"continue": tokens[1]})).status == 200


@pytest.mark.parametrize("token", ["x", "!!!", base64.b64encode(b'{"version":1,"shown":-1,"number":1}').decode()])
async def test_a_forged_page_token_is_refused(api: Client, token: str) -> None:
    assert (await api.get(PODS_PATH, **{"continue": token})).status == 400


async def test_an_exact_version_is_the_present_or_gone(api: Client) -> None:
    now = await version(api)
    assert (await api.get(PODS_PATH, resourceVersion=now, resourceVersionMatch="Exact")).status == 200
    assert (await api.get(PODS_PATH, resourceVersion="1", resourceVersionMatch="Exact")).status == 410


@pytest.mark.parametrize(
    "accept", ["text/html", "application/json;as=Table;v=v9;g=meta.k8s.io", "application/json;as=X"]
)
async def test_a_form_that_cannot_be_written_is_refused(api: Client, accept: str) -> None:
    assert (await api.ask("GET", PODS_PATH, accept=accept)).status == 406
