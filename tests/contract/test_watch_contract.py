"""What Tessera's informers rely on: watches without gaps, in order, seen through selectors."""

from __future__ import annotations

from tests.contract.client import Client, Json
from tests.contract.conftest import Space
from tests.contract.manifests import binding, pod


async def test_a_watch_continues_where_a_list_ended(api: Client, space: Space) -> None:
    await api.made(space.pods(), pod("before"))
    version = (await api.get(space.pods())).body["metadata"]["resourceVersion"]
    await api.made(space.pods(), pod("between"))
    async with api.watch(space.pods(), resourceVersion=version) as watch:
        assert (await watch.expect("ADDED"))["metadata"]["name"] == "between"
        await api.patch(space.pods("before"), {"metadata": {"labels": {"a": "1"}}})
        changed = await watch.expect("MODIFIED")
        assert (changed["kind"], changed["metadata"]["labels"]) == ("Pod", {"a": "1"})
        await api.delete(space.pods("before"))
        ending = await watch.expect("MODIFIED")
        assert ending["metadata"]["deletionGracePeriodSeconds"] == 0
        gone = await watch.expect("DELETED")
        assert gone["metadata"]["name"] == "before"
        assert int(gone["metadata"]["resourceVersion"]) > int(changed["metadata"]["resourceVersion"])


async def test_a_watch_without_a_version_starts_with_what_is_there(api: Client, space: Space) -> None:
    for name in ("a", "b"):
        await api.made(space.pods(), pod(name))
    async with api.watch(space.pods(), resourceVersion="0") as watch:
        names = {(await watch.expect("ADDED"))["metadata"]["name"] for _ in range(2)}
    assert names == {"a", "b"}


async def test_a_pod_enters_and_leaves_a_selected_watch(api: Client, space: Space) -> None:
    version = (await api.get(space.pods())).body["metadata"]["resourceVersion"]
    await api.made(space.pods(), pod())
    async with api.watch(space.pods(), resourceVersion=version, labelSelector="a=1") as watch:
        await api.patch(space.pods("p"), {"metadata": {"labels": {"a": "1"}}})
        await watch.expect("ADDED")
        answer = await api.patch(space.pods("p"), {"metadata": {"labels": {"a": "2"}}})
        gone = await watch.expect("DELETED")
    assert gone["metadata"]["labels"] == {"a": "1"}
    assert gone["metadata"]["resourceVersion"] == answer.body["metadata"]["resourceVersion"]


async def test_a_node_sees_its_pods_when_they_are_bound(api: Client, space: Space, node: Json) -> None:
    name = node["metadata"]["name"]
    version = (await api.get(space.pods())).body["metadata"]["resourceVersion"]
    async with api.watch("/api/v1/pods", resourceVersion=version, fieldSelector=f"spec.nodeName={name}") as watch:
        for each in ("mine", "not-mine"):
            await api.made(space.pods(), pod(each))
        await api.post(space.pods("not-mine", "binding"), binding("elsewhere", "not-mine"))
        await api.post(space.pods("mine", "binding"), binding(name, "mine"))
        assert (await watch.expect("ADDED"))["metadata"]["name"] == "mine"
        await api.delete(space.pods("mine"), gracePeriodSeconds="0")
        await watch.expect("MODIFIED")
        assert (await watch.expect("DELETED"))["metadata"]["name"] == "mine"


async def test_a_watch_ends_when_its_time_is_up(api: Client, space: Space) -> None:
    version = (await api.get(space.pods())).body["metadata"]["resourceVersion"]
    async with api.watch(space.pods(), resourceVersion=version, timeoutSeconds="1") as watch:
        assert await watch.next() is None
