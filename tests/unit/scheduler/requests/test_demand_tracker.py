"""What is learned from pods that were bound before the process began."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tessera.core.model.demand_forecast import DemandForecast
from tessera.core.policies.demand_history import FIRST
from tessera.scheduler.requests import demand_tracker
from tessera.scheduler.requests.demand_tracker import DemandSeed, DemandTracker, last_turnover
from tessera.vendors.binding_annotations import binding_annotations
from tessera.wire import keys
from tessera.wire.objects import Pod
from tests.support.builders import cluster, gpu_pod, node, vendors


def bound(name: str, at: str) -> Pod:
    return gpu_pod(name).on("n1", "G,NVIDIA,10,5:;").annotate((keys.ASSIGNED_TIME, at)).api()


def names(taken: list[Pod]) -> list[str]:
    return [pod.metadata.name for pod in taken]


def test_pods_are_learned_from_in_the_order_of_their_binding() -> None:
    found = DemandSeed(vendors())
    for name, at in (("late", "30"), ("b", "20"), ("a", "20"), ("unknown", "soon")):
        found.note(bound(name, at))
    assert names(found.take()) == ["unknown", "a", "b", "late"]
    assert found.take() == []


def test_pods_that_were_given_nothing_teach_nothing() -> None:
    found = DemandSeed(vendors())
    found.note(gpu_pod("waits").api())
    assert found.take() == []


def test_a_pod_that_is_shown_twice_counts_once_as_it_was_last() -> None:
    found = DemandSeed(vendors())
    found.note(bound("p", "20"))
    found.note(gpu_pod("p").on("n1", "G,NVIDIA,10,5:;").annotate((keys.ASSIGNED_TIME, "20")).ended("Succeeded").api())
    (pod,) = found.take()
    assert pod.status.phase == "Succeeded"


def test_only_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand_tracker, "NEWEST", 3)
    found = DemandSeed(vendors())
    for number in (5, 1, 4, 2, 3):
        found.note(bound(f"p{number}", str(number)))
    assert names(found.take()) == ["p3", "p4", "p5"]
    assert names(demand_tracker.in_order(bound(f"p{number}", str(number)) for number in range(6))) == ["p3", "p4", "p5"]


def test_pods_that_had_ended_before_the_process_began_are_turnover() -> None:
    world = cluster().add(node("n1").gpus(8))
    running = world.start(gpu_pod("runs", percent=100, cores=100))
    tracker = DemandTracker(world.ledger.arrays, vendors())
    tracker.note_listed(running.api())
    tracker.start(lambda pod: gpu_pod(pod.metadata.name).request())
    assert tracker.forecast().turnover == 0.0
    for pod in (running, gpu_pod("ended").on("n1", "G,NVIDIA,10,5:;").ended()):
        tracker.note_listed(pod.api())
    tracker.start(lambda pod: gpu_pod(pod.metadata.name).request())
    assert tracker.forecast().turnover == 1.0


def test_a_scheduler_that_starts_resumes_the_turnover_of_the_newest_pod() -> None:
    """Pods that had ended by then may be gone from the API."""
    world = cluster().add(node("n1").gpus(8))
    tracker = DemandTracker(world.ledger.arrays, vendors())
    for number, turnover in enumerate((1.0, 0.375)):
        placed = world.place(asking := gpu_pod(f"p{number}", percent=100, cores=100))
        request = replace(asking.request(), forecast=DemandForecast(turnover=turnover))
        written = binding_annotations(request, placed, vendors=vendors(), now=100.0 + number)
        running = asking.annotate(*written.items()).on("n1")
        world.observe(running)
        tracker.note_listed(running.api())
    tracker.note_listed(bound("by another policy", "200"))
    tracker.start(lambda pod: gpu_pod(pod.metadata.name).request())
    assert tracker.forecast().turnover == 0.375
    world.observe(*(gpu_pod(f"p{number}").on("n1").ended() for number in range(2)))
    for number in range(FIRST):
        tracker.note_request(gpu_pod(f"more-{number}").request())
    assert tracker.forecast().turnover == 1.0, "what ends from now on is added"


@pytest.mark.parametrize(
    ("text", "turnover"),
    [("0.5", 0.5), ("1.0", 1.0), ("7.5", 1.0), ("nan", 0.0), ("-1.0", 0.0), ("1e300", 0.0), ("0." + "9" * 99, 0.0)],
)
def test_a_turnover_that_cannot_be_read_is_none(text: str, turnover: float) -> None:
    pod = gpu_pod("p").on("n1", "G,NVIDIA,10,5:;").annotate((keys.TURNOVER, text)).api()
    assert last_turnover([pod]) == turnover
