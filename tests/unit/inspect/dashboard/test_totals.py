"""Totals: what is used and idle, and how long pods waited."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tessera.inspect.dashboard.documents import Measured, Measurements, NodeRenderer, PodOrigin
from tessera.inspect.dashboard.live_source import MonitorFigures
from tessera.inspect.dashboard.totals import Totals
from tessera.inspect.utilization import MeasuredUse, SliceKey, Utilization
from tests.support.builders import cluster, gpu_pod, node


class Figures(Measurements):
    def __init__(self, slices: dict[str, Measured]) -> None:
        self._slices = slices

    def slice(self, uid: str, uuid: str) -> Measured:
        return self._slices.get(uid, Measured())


def document(measured: Measurements, origins: dict[str, PodOrigin] | None = None, waiting: Any = ()) -> Any:
    here = cluster(node("n1").gpus(2, memory=24_000))
    for name, namespace in (("a", "x"), ("b", "y"), ("c", "y")):
        here.observe(here.start(gpu_pod(name, mem=5_000, cores=10).called(name, namespace=namespace), ["n1"]))
    renderer = NodeRenderer(
        here.ledger,
        origin=lambda uid: (origins or {}).get(uid, PodOrigin()),
        is_handing_over=lambda uid: False,
        measurements=measured,
    )
    totals = Totals(renderer.models)
    totals.replace(None, renderer.render("n1"))
    return totals.document(Counter(), waiting)


def test_what_the_monitor_sees_is_summed_by_namespace() -> None:
    found = document(Figures({"uid-a": Measured(3_000, 50.0), "uid-b": Measured(0, 0.0), "uid-c": Measured(100)}))
    assert found["used"]["memory"] == 3_100
    assert {one["namespace"]: one["used"]["memory"] for one in found["byNamespace"]} == {"x": 3_000, "y": 100}
    assert (found["idle"]["memory"], found["idle"]["cores"]) == (5_000, 10)


def test_a_slice_that_computes_is_not_idle_though_it_has_no_memory() -> None:
    assert document(Figures({"uid-a": Measured(0, 5.0)}))["idle"]["memory"] == 0


def test_without_figures_nothing_is_claimed() -> None:
    found = document(Measurements())
    assert (found["used"], found["idle"]) == (None, None)
    assert [one["used"] for one in found["byNamespace"]] == [None, None]


def test_waits_are_from_creation_to_binding() -> None:
    origins = {
        f"uid-{name}": PodOrigin(since=1_000.0 + wait, created=1_000.0)
        for name, wait in zip("abc", (0, 2, 50), strict=True)
    }
    assert document(Measurements(), origins)["waits"] == {"count": 3, "p50": 2, "p95": 50, "longest": 50}
    assert document(Measurements(), origins, [70.0])["waits"]["longest"] == 70.0
    unknown = {"uid-a": PodOrigin(since=5.0)}
    assert document(Measurements(), unknown)["waits"] == {"count": 0, "p50": None, "p95": None, "longest": None}


def test_a_pod_whose_clock_was_wrong_waited_for_nothing() -> None:
    assert document(Measurements(), {"uid-a": PodOrigin(since=5.0, created=9.0)})["waits"]["longest"] == 0


def test_containers_of_a_pod_are_summed_per_card() -> None:
    slices = {
        SliceKey("u", "one", "card"): Utilization(10, None),
        SliceKey("u", "two", "card"): Utilization(5, 30),
        SliceKey("u", "two", "other"): Utilization(None, 7),
    }
    figures = MonitorFigures(MeasuredUse(slices, {("n", "card"): Utilization(99, 3)}))
    assert figures.slice("u", "card") == Measured(15, 30)
    assert figures.slice("u", "other") == Measured(None, 7)
    assert figures.slice("v", "card") == Measured()
    assert (figures.card("n", "card"), figures.card("m", "card")) == (Measured(99, 3), Measured())
