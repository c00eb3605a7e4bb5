"""Totals: what is used and idle, and how long pods waited."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tessera.inspect.dashboard.documents import NodeRenderer, PodOrigin, RenderContext, Totals
from tessera.inspect.utilization import MeasuredUse, SliceKey, Utilization
from tests.support.builders import cluster, gpu_pod, node


class MeasuredContext(RenderContext):
    """With what the monitor saw of each pod, by uid."""

    def __init__(self, used: dict[str, Utilization], origins: dict[str, PodOrigin]) -> None:
        super().__init__(lambda uid: origins.get(uid, PodOrigin()))
        self._used = used

    @property
    def use(self) -> MeasuredUse:
        cards = (f"n1-{index}" for index in range(2))
        return MeasuredUse({SliceKey(uid, "main", card): used for card in cards for uid, used in self._used.items()})


def document(
    used: dict[str, Utilization] | None = None, origins: dict[str, PodOrigin] | None = None, waiting: Any = ()
) -> Any:
    here = cluster(node("n1").gpus(2, memory=24_000))
    for name, namespace in (("a", "x"), ("b", "y"), ("c", "y")):
        here.observe(here.start(gpu_pod(name, mem=5_000, cores=10).called(name, namespace=namespace), ["n1"]))
    renderer = NodeRenderer(here.ledger, MeasuredContext(used or {}, origins or {}))
    totals = Totals(renderer.models)
    totals.replace(None, renderer.render("n1"))
    return totals.document(Counter(), waiting)


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
