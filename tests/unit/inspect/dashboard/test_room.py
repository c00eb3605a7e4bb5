"""What is still free: counted shape by shape, and weighed with what pods ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from tessera.inspect.dashboard.documents import NO_ORIGIN, NodeRenderer, RenderContext, Totals
from tessera.inspect.dashboard.room import Room, SliceSize
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.simulation import simulate
from tests.support.builders import A100_40GB, NodeBuilder, PodBuilder, cluster, gpu_pod, node
from tests.support.cluster_states import state_of
from tests.unit.inspect.test_simulation import manifest

H100 = "NVIDIA H100 80GB HBM3"
LINKS = {(f"n1-{one}", f"n1-{other}"): 100 for one in range(4) for other in range(one)}


def shapes(nodes: Sequence[NodeBuilder], pods: Sequence[PodBuilder] = ()) -> dict[str, int]:
    here = OfflineCluster(state_of(nodes, pods))
    return {one["shape"]: one["count"] for one in summed(here).shapes()}


def summed(here: OfflineCluster) -> Totals:
    renderer = NodeRenderer(here.ledger, RenderContext(lambda _: NO_ORIGIN))
    totals = Totals(renderer.models)
    for name in here.ledger.node_names():
        totals.replace(None, renderer.render(name))
    return totals


async def test_the_shapes_of_an_empty_node() -> None:
    found = shapes([node("n1").gpus(4, model=H100).linked(LINKS)])
    assert found == {
        "1/4 H100 80GB HBM3": 16,
        "1/2 H100 80GB HBM3": 8,
        "whole H100 80GB HBM3": 4,
        "2 linked H100 80GB HBM3": 2,
        "4 linked H100 80GB HBM3": 1,
        "whole node of 4 H100 80GB HBM3": 1,
    }


async def test_what_is_taken_or_closed_is_not_offered() -> None:
    nodes = [node("n1").gpus(4, model=H100, memory=80_000).linked(LINKS).cordon("n1-3")]
    held = cluster(*nodes).start(gpu_pod("p", mem=30_000, cores=10), ["n1"])
    found = shapes(nodes, [held])
    # One card is closed, one has room for two quarters or one half, two are free.
    assert found["1/4 H100 80GB HBM3"] == 2 + 8
    assert found["1/2 H100 80GB HBM3"] == 1 + 4
    assert found["whole H100 80GB HBM3"] == 2
    assert (found["2 linked H100 80GB HBM3"], found["4 linked H100 80GB HBM3"]) == (1, 0)
    assert found["whole node of 4 H100 80GB HBM3"] == 0


async def test_cards_in_mig_mode_offer_their_profiles() -> None:
    found = shapes([node("n1").gpus(2, model="A100", memory=40_960, mode="mig", profiles=A100_40GB)])
    assert found == {"1g.5gb of A100": 14, "2g.10gb of A100": 6, "3g.20gb of A100": 4, "7g.40gb of A100": 2}


@pytest.mark.no_cover
@pytest.mark.parametrize("taken", [(), (10_000,), (20_000, 5_000), (40_000, 40_000, 1_000), (81_920,)])
@pytest.mark.parametrize(("shape", "parts"), [("1/4", 4), ("1/2", 2), ("whole", 1)])
async def test_a_count_is_what_the_scheduler_would_place(taken: tuple[int, ...], shape: str, parts: int) -> None:
    nodes = [node("n1").gpus(2), node("n2").gpus(1, slots=3)]
    here = cluster(*nodes)
    held = [here.start(gpu_pod(f"p{at}", mem=mem, cores=20), ["n1", "n2"]) for at, mem in enumerate(taken)]
    one = manifest(gpu=1, mem=81_920 // parts, cores=100 // parts)
    # A card is not divided into more parts than it has slots.
    names = ["n1", "n2"] if parts <= 3 else ["n1"]
    shared = [builder for builder in nodes if builder.name in names]
    state = state_of(shared, [pod for pod in held if pod.node in names])
    expected = simulate(OfflineCluster(state), one).fits_in_all
    assert shapes(nodes, held)[f"{shape} A100-SXM4-80GB"] == expected


async def test_a_node_that_changes_takes_its_old_part_along() -> None:
    nodes = [node("n1").gpus(2), node("n2").gpus(1)]
    here = OfflineCluster(state_of(nodes))
    renderer = NodeRenderer(here.ledger, RenderContext(lambda _: NO_ORIGIN))
    totals = Totals(renderer.models)
    before = {name: renderer.render(name) for name in ("n1", "n2")}
    for document in before.values():
        totals.replace(None, document)
    totals.replace(before["n1"], None)
    assert {one["shape"]: one["count"] for one in totals.shapes()}["whole A100-SXM4-80GB"] == 1
    totals.replace(before["n2"], None)
    assert totals.shapes() == []
    assert totals.document(Counter())["cards"] == 0


async def test_free_memory_is_fragmented_where_what_pods_ask_for_does_not_fit() -> None:
    nodes = [node("n1").gpus(2, memory=24_000)]
    held = cluster(*nodes).start(gpu_pod("p", mem=20_000, cores=10), ["n1"])
    totals = summed(OfflineCluster(state_of(nodes, [held])))
    # The same again fits on the other card, but not on the 4000 MiB beside it.
    assert totals.document(Counter())["fragmented"] == {"memory": 4_000, "cores": 90}
    # A pod that waits for more than any card has, and is half of the demand, can use neither.
    asked = Counter({SliceSize(30_000, 0): 1})
    assert totals.document(asked)["fragmented"] == {"memory": 4_000 + 12_000, "cores": 90 + 50}


async def test_nothing_is_fragmented_where_nothing_is_asked_for() -> None:
    totals = summed(OfflineCluster(state_of([node("n1").gpus(2)])))
    assert totals.document(Counter())["fragmented"] == {"memory": 0, "cores": 0}
    assert Room().fragmented(Counter({SliceSize(1, 1): 1})) == SliceSize(0, 0)
