"""Totals: what is used and idle, how long pods waited, and what is still free in the shapes that people ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tessera.core.ledger.ledger import Ledger
from tessera.inspect.dashboard.nodes import ShownCluster, render_node
from tessera.inspect.dashboard.pods import NO_ORIGIN, PodOrigin
from tessera.inspect.dashboard.totals import SliceSize, Sums
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.simulation import simulate
from tessera.inspect.utilization import MeasuredUse, SliceKey, Utilization
from tests.support.builders import A100_40GB, NodeBuilder, PodBuilder, cluster, gpu_pod, node
from tests.support.cluster_states import state_of
from tests.unit.inspect.test_simulation import manifest

H100 = "NVIDIA H100 80GB HBM3"
LINKS = {(f"n1-{one}", f"n1-{other}"): 100 for one in range(4) for other in range(one)}


class Shown(ShownCluster):
    """A ledger, with what the monitor saw of each pod, and its origin, by uid."""

    def __init__(
        self, ledger: Ledger, used: Mapping[str, Utilization] = {}, origins: Mapping[str, PodOrigin] = {}
    ) -> None:
        self._ledger = ledger
        self._origins = origins
        cards = [card.device.uuid for name in ledger.node_names() for card in ledger.node(name).cards]  # type: ignore[union-attr]
        self.measurements = MeasuredUse(
            {SliceKey(uid, "main", card): found for card in cards for uid, found in used.items()}
        )

    @property
    def ledger(self) -> Ledger:
        return self._ledger

    def origin(self, uid: str) -> PodOrigin:
        return self._origins.get(uid, NO_ORIGIN)


def parts(shown: ShownCluster) -> list[Sums]:
    """Of each node."""
    return [found.sums for name in shown.ledger.node_names() if (found := render_node(shown, name)) is not None]


def summed(shown: ShownCluster) -> Sums:
    sums = Sums()
    for part in parts(shown):
        sums.add(part)
    return sums


def document(
    used: dict[str, Utilization] | None = None, origins: dict[str, PodOrigin] | None = None, waiting: Any = ()
) -> Any:
    here = cluster(node("n1").gpus(2, memory=24_000))
    for name, namespace in (("a", "x"), ("b", "y"), ("c", "y")):
        here.observe(here.start(gpu_pod(name, mem=5_000, cores=10).called(name, namespace=namespace), ["n1"]))
    return summed(Shown(here.ledger, used or {}, origins or {})).document(Counter(), waiting)


def test_what_the_monitor_sees_is_summed_by_namespace() -> None:
    found = document({"uid-a": Utilization(3_000, 50), "uid-b": Utilization(0, 0), "uid-c": Utilization(100)})
    assert found["used"]["memory"] == 3_100
    assert {one["namespace"]: one["used"]["memory"] for one in found["byNamespace"]} == {"x": 3_000, "y": 100}
    assert (found["idle"]["memory"], found["idle"]["cores"]) == (5_000, 10)


def test_a_slice_that_computes_is_not_idle_though_it_has_no_memory() -> None:
    assert document({"uid-a": Utilization(0, 5)})["idle"]["memory"] == 0


def test_without_figures_nothing_is_claimed() -> None:
    found = document()
    assert (found["used"], found["idle"]) == (None, None)
    assert [one["used"] for one in found["byNamespace"]] == [None, None]


def test_waits_are_from_creation_to_binding() -> None:
    origins = {
        f"uid-{name}": PodOrigin(since=1_000.0 + wait, created=1_000.0)
        for name, wait in zip("abc", (0, 2, 50), strict=True)
    }
    assert document(None, origins)["waits"] == {"count": 3, "p50": 2, "p95": 50, "longest": 50}
    assert document(None, origins, [70.0])["waits"]["longest"] == 70.0
    unknown = {"uid-a": PodOrigin(since=5.0)}
    assert document(None, unknown)["waits"] == {"count": 0, "p50": None, "p95": None, "longest": None}


def test_a_pod_whose_clock_was_wrong_waited_for_nothing() -> None:
    assert document(None, {"uid-a": PodOrigin(since=5.0, created=9.0)})["waits"]["longest"] == 0


def test_containers_of_a_pod_are_summed_per_card() -> None:
    slices = {
        SliceKey("u", "one", "card"): Utilization(10, None),
        SliceKey("u", "two", "card"): Utilization(5, 30),
        SliceKey("u", "two", "other"): Utilization(None, 7),
    }
    used = MeasuredUse(slices)
    assert used.pods == {("u", "card"): Utilization(15, 30), ("u", "other"): Utilization(None, 7)}
    assert used.of_pods(["u", "v"], "card") == Utilization(15, 30)
    assert used.of_pods(["v"], "card") is None


# -- what is free


def shapes(nodes: Sequence[NodeBuilder], pods: Sequence[PodBuilder] = ()) -> dict[str, int]:
    sums = summed(Shown(OfflineCluster(state_of(nodes, pods)).ledger))
    return {one["shape"]: one["count"] for one in sums.room()}


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
    nodes = [node("n1").gpus(2, model=H100).linked({("n1-0", "n1-1"): 100}), node("n2").gpus(1)]
    held = [cluster(*nodes).start(gpu_pod("a", mem=3_000), ["n1"]), cluster(*nodes).start(gpu_pod("b", mem=1), ["n2"])]
    shown = Shown(
        OfflineCluster(state_of(nodes, held)).ledger,
        {"uid-a": Utilization(0, 0), "uid-b": Utilization(1)},
        {"uid-a": PodOrigin(since=9.0, created=1.0)},
    )
    sums, alone = summed(shown), Sums()
    first, second = parts(shown)
    sums.add(first, -1)
    alone.add(second)
    assert sums.document(Counter()) == alone.document(Counter())
    assert sums.room() == alone.room()
    sums.add(second, -1)
    assert sums.document(Counter())["cards"] == 0
    assert sums.room() == []


async def test_free_memory_is_fragmented_where_what_pods_ask_for_does_not_fit() -> None:
    nodes = [node("n1").gpus(2, memory=24_000)]
    held = cluster(*nodes).start(gpu_pod("p", mem=20_000, cores=10), ["n1"])
    sums = summed(Shown(OfflineCluster(state_of(nodes, [held])).ledger))
    # The same again fits on the other card, but not on the 4000 MiB beside it.
    assert sums.fragmented(Counter()) == SliceSize(4_000, 90)
    # A pod that waits for more than any card has, and is half of the demand, can use neither.
    assert sums.fragmented(Counter({SliceSize(30_000, 0): 1})) == SliceSize(4_000 + 12_000, 90 + 50)


async def test_nothing_is_fragmented_where_nothing_is_asked_for() -> None:
    sums = summed(Shown(OfflineCluster(state_of([node("n1").gpus(2)])).ledger))
    assert sums.fragmented(Counter()) == SliceSize(0, 0)
    assert Sums().fragmented(Counter({SliceSize(1, 1): 1})) == SliceSize(0, 0)
