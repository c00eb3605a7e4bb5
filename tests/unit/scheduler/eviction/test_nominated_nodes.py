"""What is written of the nodes that pods are nominated for."""

from __future__ import annotations

import asyncio

from tessera.scheduler.eviction.nominated_nodes import CONCURRENT, NominatedNodes
from tests.support.builders import gpu_pod
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import FakeCluster, Step, refused


def pods(api: FakeCluster, count: int) -> list[str]:
    names = [f"p{i}" for i in range(count)]
    for name in names:
        api.add_pod(gpu_pod(name))
    return names


@in_fake_time
async def test_the_last_word_on_a_pod_is_written_once_and_a_failure_stops_no_other() -> None:
    api = FakeCluster()
    nodes = NominatedNodes(api)
    for name in pods(api, CONCURRENT + 2):
        nodes.set(gpu_pod(name).request(), "n1")
        nodes.set(gpu_pod(name).request(), "n2")
    api.script("set_nominated_node", Step(refused(500)))
    await nodes.write()
    assert api.calls.count("set_nominated_node") == CONCURRENT + 2
    assert list(api.nominated.values()) == ["n2"] * (CONCURRENT + 1)


@in_fake_time
async def test_what_is_not_written_when_a_replica_stops_deciding_is_left_to_the_next_one() -> None:
    api = FakeCluster()
    nodes = NominatedNodes(api)
    for name in pods(api, 2 * CONCURRENT):
        nodes.set(gpu_pod(name).request(), "n1")
    writing = asyncio.ensure_future(nodes.write())
    await asyncio.sleep(0)
    nodes.forget()
    await writing
    assert len(api.nominated) <= CONCURRENT
    await nodes.write()
    assert len(api.nominated) <= CONCURRENT
