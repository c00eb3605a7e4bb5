from __future__ import annotations

import json

from tessera_lab.sandbox.api import lists_and_watches
from tessera_lab.sandbox.api.kinds import CONFIG_MAPS, PODS, Json
from tessera_lab.sandbox.api.lists_and_watches import Watcher, WatchHub, WatchScope
from tessera_lab.sandbox.api.requests import FieldRequirement, ObjectSelector
from tessera_lab.sandbox.api.store import Store


def pod(name: str, node: str = "") -> Json:
    return {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": {"nodeName": node}}


def heard(watcher: Watcher) -> list[tuple[str, str]]:
    events = [json.loads(line) for line in watcher.take().splitlines()]
    return [(each["type"], each["object"]["metadata"]["name"]) for each in events]


def of_node(name: str) -> WatchScope:
    return WatchScope(PODS, selector=ObjectSelector(fields=(FieldRequirement("spec.nodeName", True, name),)))


async def test_watchers_of_a_node_hear_of_its_pods_only() -> None:
    store = Store()
    hub = WatchHub(store)
    mine, other, all_of_them = (
        hub.open(scope, version=None) for scope in (of_node("a"), of_node("b"), WatchScope(PODS))
    )
    store.put(PODS, pod("p"))
    bound = store.put(PODS, pod("p", "a"))
    store.put(PODS, pod("p", "b"))
    store.remove(store.list(PODS)[0])
    assert heard(mine) == [("ADDED", "p"), ("DELETED", "p")]
    assert heard(other) == [("ADDED", "p"), ("DELETED", "p")]
    assert [event for event, _ in heard(all_of_them)] == ["ADDED", "MODIFIED", "MODIFIED", "DELETED"]
    late = hub.open(of_node("b"), version=bound.version)
    assert heard(late) == [("ADDED", "p"), ("DELETED", "p")]


async def test_a_watcher_that_is_closed_hears_nothing() -> None:
    store = Store()
    hub = WatchHub(store)
    watcher = hub.open(WatchScope(PODS, "default"), version=None)
    hub.close(watcher)
    hub.close(watcher)
    store.put(PODS, pod("p"))
    assert heard(watcher) == []
    assert hub.all() == []


async def test_other_namespaces_and_kinds_are_not_heard() -> None:
    store = Store()
    watcher = WatchHub(store).open(WatchScope(PODS, "kube-system"), version=None)
    store.put(PODS, pod("p"))
    store.put(CONFIG_MAPS, {"metadata": {"name": "c", "namespace": "kube-system"}})
    assert heard(watcher) == []


async def test_a_watcher_that_never_reads_is_ended() -> None:
    store = Store()
    watcher = WatchHub(store).open(WatchScope(PODS), version=None)
    for index in range(lists_and_watches.MAX_PENDING + 1):
        watcher.push("ADDED", b'{"metadata":{"name":"%d"}}' % index)
    assert watcher.ended
    assert len(heard(watcher)) == lists_and_watches.MAX_PENDING
