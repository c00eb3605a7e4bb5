from __future__ import annotations

import pytest

from tessera.core.model.requests import HostRequest
from tessera.scheduler.requests.host_resources import HostResources, host_ask
from tests.support.builders import Cluster, PodBuilder, cluster, node, pod


def asking(name: str = "p", **requests: str) -> PodBuilder:
    return pod(name).container(requests=requests)


@pytest.fixture
def world() -> Cluster:
    return cluster().add(node("n1").gpus(1))


@pytest.fixture
def hosts(world: Cluster) -> HostResources:
    kept = HostResources(world.ledger)
    kept.put_node(node("n1").capacity(cpu="8", memory="16Gi").api())
    return kept


def free(world: Cluster) -> tuple[int, int]:
    arrays = world.ledger.arrays
    row = arrays.row("n1")
    return int(arrays.free_cpu[row]), int(arrays.free_memory[row])


def test_a_pod_counts_from_its_binding_to_its_end(world: Cluster, hosts: HostResources) -> None:
    one = asking(cpu="1500m", memory="1Gi")
    hosts.put_pod(one.api())
    assert free(world) == (8_000, 16_384)
    hosts.put_pod(one.on("n1").api())
    hosts.put_pod(one.on("n1").api())
    assert free(world) == (6_500, 15_360)
    hosts.put_pod(one.on("n1").ended().api())
    assert free(world) == (8_000, 16_384)


def test_a_deleted_pod_counts_no_more(world: Cluster, hosts: HostResources) -> None:
    one = asking(cpu="2").on("n1").api()
    hosts.put_pod(one)
    hosts.drop_pod(one.metadata.uid)
    hosts.drop_pod(one.metadata.uid)
    assert free(world) == (8_000, 16_384)


def test_a_node_that_appears_after_its_pods_has_what_they_leave(world: Cluster) -> None:
    hosts = HostResources(world.ledger)
    hosts.put_pod(asking(cpu="3").on("n1").api())
    assert free(world) == (-1, -1)
    hosts.put_node(node("n1").capacity(cpu="8", memory="16Gi").api())
    assert free(world) == (5_000, 16_384)


def test_a_node_that_is_gone_is_forgotten_and_counts_afresh_when_it_returns(
    world: Cluster, hosts: HostResources
) -> None:
    hosts.drop_node("n1")
    hosts.drop_node("n1")
    hosts.put_pod(asking(cpu="3").on("n1").api())
    hosts.put_node(node("n1").capacity(cpu="4", memory="16Gi").api())
    assert free(world) == (1_000, 16_384)


def test_the_larger_of_init_and_running_containers_is_asked() -> None:
    one = asking(cpu="1", memory="64Mi").init(requests={"cpu": "4"}).sidecar(requests={"cpu": "500m", "memory": "1Mi"})
    assert host_ask(one.api()) == HostRequest(4_000, 65)


def test_limits_count_where_no_request_is_named_and_nonsense_counts_nothing() -> None:
    one = pod().container(limits={"cpu": "2", "memory": "much"})
    assert host_ask(one.api()) == HostRequest(2_000, 0)


def test_nothing_is_kept_of_a_node_that_is_gone(world: Cluster, hosts: HostResources) -> None:
    for name in ("n1", "without-cards"):
        hosts.put_node(node(name).capacity(cpu="8", memory="16Gi").api())
        hosts.put_pod(asking(f"on-{name}", cpu="1").on(name).api())
        hosts.drop_node(name)
    world.ledger.forget_node("n1")
    assert world.ledger.arrays._hosts == {}


def test_a_node_that_registers_its_cards_anew_keeps_its_host(world: Cluster, hosts: HostResources) -> None:
    world.ledger.forget_node("n1")
    world.add(node("n1").gpus(1))
    assert free(world) == (8_000, 16_384)
