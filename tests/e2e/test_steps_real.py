"""The steps of one pod on a real apiserver: after each the scheduler is killed, and during each the network fails.

The test plays kube-scheduler where the moment matters; the real one does where many moments do.
"""

from __future__ import annotations

import asyncio

import pytest

from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.nodes.allocation import ALLOCATED
from tessera_lab.sandbox.nodes.node import AgentKind, SimulatedNode, gpu_cards
from tessera_lab.sandbox.objects import annotations_of, node_of
from tessera_lab.sandbox.scheduling.extender_client import ExtenderClient, ExtenderError
from tests.e2e.cluster import Cluster, cluster
from tests.e2e.control_plane import ControlPlane
from tests.e2e.replica import until
from tests.e2e.tcp_proxy import TcpProxy, tcp_proxy
from tests.support.product import container, gpu_pod, pod

ROUNDS = 5


def node(name: str, count: int = 1, *, agent: AgentKind = "env") -> SimulatedNode:
    return SimulatedNode(name, gpu_cards(name, count), agent=agent)


def extender(found: Cluster) -> ExtenderClient:
    return ExtenderClient(found.replica.extender_url)


async def filtered(found: Cluster, name: str) -> str:
    """The node that the scheduler chooses for this pod."""
    async with extender(found) as asking:
        (chosen,) = (await asking.filter(found.pod(name), sorted(found.fleet.nodes))).nodes
        return chosen


async def bind(found: Cluster, name: str, chosen: str) -> None:
    async with extender(found) as asking:
        await asking.bind(found.pod(name), chosen)


async def all_is_well(found: Cluster, *names: str) -> None:
    await found.running(*names)
    await found.at_rest()
    assert found.wrong_slices() == []


# -- killed


async def test_killed_between_admission_and_filter(plane: ControlPlane) -> None:
    async with cluster(plane, [node("n1")], scheduling=False) as found:
        await found.create(gpu_pod("p", gpu=1, mem=1000))
        await found.replica.restart_tessera()
        await bind(found, "p", await filtered(found, "p"))
        await all_is_well(found, "p")


async def test_killed_between_filter_and_bind_the_pod_is_placed_again_on_its_node(plane: ControlPlane) -> None:
    async with cluster(plane, [node("n1"), node("n2")], scheduling=False) as found:
        await found.create(gpu_pod("p", gpu=1))
        chosen = await filtered(found, "p")
        await found.replica.restart_tessera()
        await bind(found, "p", chosen)
        assert node_of(await shown(found, "p")) == chosen
        await all_is_well(found, "p")


async def test_killed_between_filter_and_bind_a_pod_whose_room_went_to_another_is_refused(plane: ControlPlane) -> None:
    async with cluster(plane, [node("n1")], scheduling=False) as found:
        await found.create(*(gpu_pod(name, gpu=1) for name in ("p", "q")))
        await filtered(found, "p")
        await found.replica.restart_tessera()
        await filtered(found, "q")
        with pytest.raises(ExtenderError, match="no longer fits node n1"):
            await bind(found, "p", "n1")
        await bind(found, "q", "n1")
        await all_is_well(found, "q")
        assert node_of(found.pod("p")) == ""


@pytest.mark.parametrize("landed", [False, True], ids=["before it arrives", "before its answer"])
async def test_killed_in_the_middle_of_the_write(plane: ControlPlane, landed: bool) -> None:
    """Nothing is half done: the pod has its node and its slice, or neither."""
    async with (
        tcp_proxy(plane) as proxy,
        cluster(plane, [node("n1")], f"--kubeconfig={proxy.kubeconfig()}", scheduling=False) as found,
    ):
        await found.create(gpu_pod("p", gpu=1))
        chosen = await filtered(found, "p")
        proxy.hold_answers() if landed else proxy.hold_requests()
        binding = asyncio.create_task(bind(found, "p", chosen))
        await proxy.held.wait()
        if landed:
            await shown(found, "p")
        found.replica.tessera.kill()
        with pytest.raises(ExtenderError):
            await binding
        # What was held is lost with the connection.
        proxy.cut()
        proxy.flow()
        assert bool(node_of(found.pod("p"))) is (ALLOCATED in annotations_of(found.pod("p"))) is landed
        found.replica.tessera.start()
        await found.replica.ready()
        if not landed:
            await bind(found, "p", await filtered(found, "p"))
        await all_is_well(found, "p")


@pytest.mark.parametrize("agent", ["env", "answer", "hami"])
async def test_killed_between_bind_and_allocate(plane: ControlPlane, agent: AgentKind) -> None:
    """Two pods that a plugin could mix up: where they take turns, the second one's bind ends with the scheduler."""
    waiting = [gpu_pod("p", gpu=1, mem=1000), pod("q", container("a", gpu=1, mem=2000), container("b", gpu=1, mem=100))]
    slow = node("n1", 2, agent=agent)
    async with cluster(plane, [slow], scheduling=False) as found:
        slow.kubelet.pause()
        await found.create(*waiting)
        await bind(found, "p", await filtered(found, "p"))
        await filtered(found, "q")
        binding = asyncio.create_task(bind(found, "q", "n1"))
        if agent != "env":
            await until(lambda: waits(found), what="the second bind to wait for its turn")
            found.replica.tessera.kill()
            with pytest.raises(ExtenderError):
                await binding
            found.replica.tessera.start()
            await found.replica.ready()
            assert node_of(found.pod("q")) == ""
            binding = asyncio.create_task(bind(found, "q", await filtered(found, "q")))
        else:
            await binding
            await found.replica.restart_tessera()
        slow.kubelet.resume()
        await binding
        await all_is_well(found, "p", "q")


async def shown(found: Cluster, name: str) -> Json:
    """The pod, once it is bound."""
    await found.wait_for(lambda: node_of(found.pod(name)), what=f"{name} to be bound")
    return found.pod(name)


async def waits(found: Cluster) -> bool:
    return (await found.replica.scrape()).value("tessera_pods_awaiting_turn") == 1


# -- faults of the network


async def test_watches_that_are_cut_again_and_again_lose_nothing(plane: ControlPlane) -> None:
    """Each time while pods come and go; cards of pods that ended meanwhile are free afterwards."""
    async with (
        tcp_proxy(plane) as proxy,
        cluster(plane, [node("n1"), node("n2", 2)], f"--kubeconfig={proxy.kubeconfig()}") as found,
    ):
        await found.create(gpu_pod("p0", gpu=1))
        await found.running("p0")
        for number in range(1, ROUNDS):
            before = proxy.calls
            if number % 2:
                proxy.cut()
            else:
                proxy.refuse()
            await found.delete(f"p{number - 1}")
            await found.gone(f"p{number - 1}")
            # Both other cards and this one: all of them have to be known as free.
            await found.create(*(gpu_pod(f"{kind}{number}", gpu=1) for kind in ("p", "q", "r")))
            proxy.flow()
            await found.running(*(f"{kind}{number}" for kind in ("p", "q", "r")))
            assert proxy.calls > before
            await found.delete(f"q{number}", f"r{number}")
        await found.gone(*(f"{kind}{number}" for kind in ("q", "r") for number in range(1, ROUNDS)))
        await all_is_well(found, f"p{ROUNDS - 1}")


async def test_a_watch_that_says_nothing_and_is_then_cut_is_caught_up_with(plane: ControlPlane) -> None:
    async with (
        tcp_proxy(plane) as proxy,
        cluster(plane, [node("n1")], f"--kubeconfig={proxy.kubeconfig()}") as found,
    ):
        await found.run(gpu_pod("p", gpu=1))
        proxy.hold_answers()
        await found.delete("p")
        await found.gone("p")
        await proxy.held.wait()
        await found.create(gpu_pod("q", gpu=1))
        # As far as the scheduler has heard the card is taken.
        await found.refused("q")
        lose(proxy)
        await all_is_well(found, "q")


def lose(proxy: TcpProxy) -> None:
    """What was held never arrives."""
    proxy.cut()
    proxy.flow()
