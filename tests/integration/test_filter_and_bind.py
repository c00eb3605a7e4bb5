"""Filter and bind with a running service: placement and cost for every shape of pod and every policy."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tessera.core.model.devices import Device
from tessera.scheduler.pod_cycle import HOLDS_RESERVATION
from tessera_lab.sandbox.nodes.allocation import ALLOCATED, slices_of
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tests.support.ledger_replay import wrong_slices
from tests.support.product import Json, Product, container, gpu_pod, pod, product, sidecar

NODE_POLICY = "hami.io/node-scheduler-policy"
GPU_POLICY = "hami.io/gpu-scheduler-policy"
T4 = "Tesla T4"
V100 = "Tesla V100-SXM2-32GB"


def node(name: str = "n1", count: int = 2, **more: Any) -> SimulatedNode:
    return SimulatedNode(name, gpu_cards(name, count, **more))


def placed(cluster: Product, name: str) -> tuple[str, dict[int, list[int]]]:
    """The pod's node, and the numbers of the cards of each container that has some."""
    found = cluster.plane.pod("default", name)
    assert found is not None
    on = found["spec"]["nodeName"]
    numbers = {card.uuid: card.index for card in cluster.plane.nodes[on].cards}
    return on, {at: [numbers[entry.uuid] for entry in entries] for at, entries in slices_of(found, ALLOCATED)}


async def run(cluster: Product, *manifests: Json) -> None:
    """Create pods one after the other, each running before the next."""
    for manifest in manifests:
        await cluster.plane.create_pod(manifest)
        await cluster.running_pods(manifest["metadata"]["name"])


# -- shapes

SHAPES = {
    "two containers": pod("p", container("a", gpu=1, mem=1000), container("b", gpu=1, mem=2000, cores=20)),
    "one container of three": pod("p", container("a"), container("b", gpu=1, mem=1000), container("c")),
    "two cards": pod("p", container("a", gpu=2, mem=1000)),
    "a share in per cent": pod("p", container("a", gpu=1, percent=25)),
    "whole cards": pod("p", container("a", gpu=2)),
    "an init container and an app": pod(
        "p", container("a", gpu=1, mem=1000), init=[container("i", gpu=1, mem=70000, cores=90)]
    ),
    "an init container alone": pod("p", container("a"), init=[container("i", gpu=1, mem=1000)]),
    "an init container without devices": pod("p", container("a", gpu=1, mem=1000), init=[container("i")]),
    "a sidecar": pod("p", container("a", gpu=1, mem=1000), init=[sidecar("s", gpu=1, mem=2000)]),
    "all kinds": pod(
        "p",
        container("a", gpu=1, mem=1000),
        container("b"),
        container("c", gpu=2, mem=500, cores=10),
        init=[sidecar("s", gpu=1, mem=2000), container("i", gpu=2, mem=3000)],
    ),
}


@pytest.mark.parametrize("agent", ["env", "answer", "hami"])
async def test_every_container_sees_exactly_what_it_asked_for(tmp_path: Path, agent: str) -> None:
    async with product([SimulatedNode("n1", gpu_cards("n1", 2), agent=agent)], tmp_path) as cluster:
        for shape, manifest in SHAPES.items():
            await run(cluster, manifest)
            await cluster.at_rest()
            assert list(wrong_slices(cluster.plane)) == [], shape
            spec = manifest["spec"]
            asked = [
                int(each["resources"]["limits"].get("nvidia.com/gpu", 0))
                for each in (*spec.get("initContainers", ()), *spec["containers"])
            ]
            _, cards = placed(cluster, "p")
            assert [len(cards.get(position, ())) for position in range(len(asked))] == asked, shape
            await cluster.plane.delete_pod("default", "p", grace_s=0)
            await cluster.at_rest()


async def test_an_init_container_that_is_done_leaves_its_room_and_the_app_keeps_its_own(tmp_path: Path) -> None:
    async with product([node(count=1)], tmp_path) as cluster:
        await run(cluster, pod("p", container("a", gpu=1, mem=1000), init=[container("i", gpu=1, mem=80000)]))
        await run(cluster, gpu_pod("q", gpu=1, mem=80000))
        await cluster.plane.create_pod(gpu_pod("r", gpu=1, mem=1000))
        assert "CardInsufficientMemory" in await cluster.refused("r")
        await cluster.at_rest()


# -- wishes


@pytest.mark.parametrize(("policy", "together"), [("binpack", True), ("spread", False)])
async def test_the_node_policy_decides_whether_pods_share_a_node(tmp_path: Path, policy: str, together: bool) -> None:
    async with product([node("n1"), node("n2")], tmp_path) as cluster:
        await run(cluster, *(gpu_pod(name, gpu=1, mem=100, annotations={NODE_POLICY: policy}) for name in ("p", "q")))
        assert (placed(cluster, "p")[0] == placed(cluster, "q")[0]) is together


@pytest.mark.parametrize(("policy", "together"), [("binpack", True), ("spread", False), ("mutex", False)])
async def test_the_gpu_policy_decides_whether_pods_share_a_card(tmp_path: Path, policy: str, together: bool) -> None:
    async with product([node()], tmp_path) as cluster:
        await run(cluster, *(gpu_pod(name, gpu=1, mem=100, annotations={GPU_POLICY: policy}) for name in ("p", "q")))
        assert (placed(cluster, "p") == placed(cluster, "q")) is together


@pytest.mark.parametrize(
    ("key", "value", "chosen"),
    [
        ("nvidia.com/use-gputype", "V100", [1]),
        ("nvidia.com/nouse-gputype", "V100,A100", [0]),
        ("nvidia.com/use-gpuuuid", "{2}", [2]),
        ("nvidia.com/nouse-gpuuuid", "{0},{1}", [2]),
    ],
)
async def test_a_pod_may_choose_its_cards_by_model_and_uuid(
    tmp_path: Path, key: str, value: str, chosen: list[int]
) -> None:
    cards = mixed()
    text = value.format(*(card.uuid for card in cards))
    async with product([SimulatedNode("n1", cards)], tmp_path) as cluster:
        await run(cluster, gpu_pod("p", gpu=1, mem=100, annotations={key: text}))
        assert placed(cluster, "p") == ("n1", {0: chosen})


def mixed() -> tuple[Device, ...]:
    """A T4, a V100 and an A100."""
    first, second, third = gpu_cards("n1", 3)
    return replace(first, model=T4), replace(second, model=V100), third


async def test_cards_of_a_numa_bound_pod_are_of_one_numa_node(tmp_path: Path) -> None:
    bound = {"nvidia.com/numa-bind": "true"}
    async with product([node(count=4, numa_nodes=2)], tmp_path) as cluster:
        await run(cluster, gpu_pod("p", gpu=2, mem=100, annotations=bound))
        _, cards = placed(cluster, "p")
        assert sorted(cards[0]) in ([0, 1], [2, 3])
        await cluster.plane.create_pod(gpu_pod("q", gpu=3, mem=100, annotations=bound))
        assert "NumaNotFit" in await cluster.refused("q")


async def test_topology_aware_takes_cards_that_are_linked(tmp_path: Path) -> None:
    async with product([node(count=4, linked=2)], tmp_path) as cluster:
        await run(cluster, gpu_pod("p", gpu=1))
        (alone,) = placed(cluster, "p")[1][0]
        await run(cluster, gpu_pod("q", gpu=2, mem=100, annotations={GPU_POLICY: "topology-aware"}))
        _, cards = placed(cluster, "q")
        assert sorted(cards[0]) == ([0, 1] if alone in (2, 3) else [2, 3])


# -- refusals


async def test_a_pod_that_fits_nowhere_says_why_in_its_condition(tmp_path: Path) -> None:
    plain = SimulatedNode("n3")
    async with product([node("n1"), node("n2", count=1), plain], tmp_path) as cluster:
        await cluster.plane.create_pod(gpu_pod("p", gpu=2, mem=90000))
        assert await cluster.refused("p") == (
            "0/3 nodes are available: 1 2/2 CardInsufficientMemory, 1 NodeInsufficientDevice, 1 node unregistered."
        )
        await cluster.at_rest()


async def test_a_pod_that_no_node_can_ever_honour_is_refused_with_the_fault(tmp_path: Path) -> None:
    asking = gpu_pod("p", gpu=1, mem=100, annotations={"hami.io/device-scoring-weights": "{"})
    async with product([node()], tmp_path, scheduling=False) as cluster:
        stored = await cluster.post_pod(asking)
        assert stored.status == 403
        assert "device-scoring-weights" in stored.message


# -- cost


async def test_a_pod_costs_one_write_and_its_events(tmp_path: Path) -> None:
    names = [f"p{number}" for number in range(10)]
    async with product([node("n1"), node("n2"), SimulatedNode("n3")], tmp_path) as cluster:
        for name in names:
            await cluster.plane.create_pod(gpu_pod(name, gpu=1, mem=1000))
        await cluster.running_pods(*names)
        await cluster.at_rest()
        assert sorted((seen.method, seen.path) for seen in cluster.writes()) == [
            ("POST", f"/api/v1/namespaces/default/pods/{name}/binding") for name in sorted(names)
        ]
        await cluster.stop_scheduler()
        # Counted as objects: the stop sends writes again that it interrupts, under the same names.
        for name in names:
            reasons = [event["reason"] for event in cluster.plane.events("default", name)]
            assert sorted(set(reasons) - {"Scheduled"}) == ["BindingSucceed", "FilteringSucceed"]
            assert len(reasons) == len(set(reasons))
        reads = [seen.path for seen in cluster.requests() if not seen.writes and "watch" not in seen.query]
        # Pods also by the take-over, and after it.
        assert set(reads) == {
            "/api/v1/nodes",
            "/api/v1/pods",
            "/api/v1/resourcequotas",
            "/apis/policy/v1/poddisruptionbudgets",
        }
        assert len(reads) <= 6


# -- filter, asked by a test in kube-scheduler's place


async def test_filters_at_the_same_time_give_a_card_to_one_pod_only(tmp_path: Path) -> None:
    """HAMi gives a card twice where two filters overlap."""
    async with product([node("n1", 1), node("n2", 1)], tmp_path, scheduling=False) as cluster:
        pods = [await cluster.plane.create_pod(gpu_pod(f"p{number}", gpu=1)) for number in range(10)]
        async with cluster.extender() as extender:
            answers = await asyncio.gather(*(extender.filter(each, ["n1", "n2"]) for each in pods))
            given = [answer.nodes for answer in answers if answer.nodes]
            assert sorted(given) == [("n1",), ("n2",)]


async def test_a_decision_that_is_never_bound_expires_and_the_card_goes_to_others(tmp_path: Path) -> None:
    """HAMi keeps such a reservation until the pod is deleted."""
    async with product([node(count=1)], tmp_path, scheduling=False, reservation_s=0.01) as cluster:
        held = await cluster.plane.create_pod(gpu_pod("held", gpu=1))
        async with cluster.extender() as extender:
            assert (await extender.filter(held, ["n1"])).nodes == ("n1",)
            waiting = await cluster.plane.create_pod(gpu_pod("waiting", gpu=1))
            assert (await extender.filter(waiting, ["n1"])).misfits == {"n1": "1/1 CardInsufficientMemory"}

            def expired() -> bool:
                cluster.time_passes()
                return not cluster.service.engine.cycles.count(*HOLDS_RESERVATION)

            await cluster.until(expired, what="the reservation to expire")
            assert (await extender.filter(waiting, ["n1"])).nodes == ("n1",)
            await extender.bind(waiting, "n1")
        await cluster.running_pods("waiting")
        await cluster.at_rest()


async def test_a_changed_allocation_is_read_again(tmp_path: Path) -> None:
    """HAMi never reads a known pod again."""
    async with product([node()], tmp_path) as cluster:
        await run(cluster, gpu_pod("p", gpu=1, mem=100))
        other = next(card for card in cluster.plane.nodes["n1"].cards if card.index not in placed(cluster, "p")[1][0])
        await cluster.patch_pod("p", {ALLOCATED: f"{other.uuid},NVIDIA,70000,50:;"})
        await cluster.at_rest()
        view = cluster.ledger.node("n1")
        assert view is not None
        assert {card.device.uuid: card.used_memory for card in view.cards if card.used_memory} == {other.uuid: 70000}


async def test_a_terminating_pod_counts_until_it_is_gone_also_after_a_restart(tmp_path: Path) -> None:
    """HAMi does not count terminating pods after a restart."""
    async with product([node(count=1)], tmp_path) as cluster:
        plane = cluster.plane
        await run(cluster, gpu_pod("p", gpu=1))
        plane.nodes["n1"].pace.stop_s = 60.0
        await plane.delete_pod("default", "p")
        await cluster.restart_scheduler()
        await plane.create_pod(gpu_pod("q", gpu=1))
        assert "CardInsufficientMemory" in await cluster.refused("q")
        await cluster.at_rest()
        await plane.delete_pod("default", "p", grace_s=0)
        await cluster.running_pods("q")
        await cluster.at_rest()
