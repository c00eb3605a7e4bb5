"""What the pipeline reports reaches every observer, and none of them disturbs it."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from structlog.testing import capture_logs

from tessera.scheduler.observer import FilterDecision, ObserverGroup, SchedulerObserver
from tests.support.builders import gpu_pod, node
from tests.support.journals import JournalledWorld
from tests.support.stepwise_scheduler import serving_downward_api

METHODS = [name for name in vars(SchedulerObserver) if name.startswith("on_")]


class Failing(SchedulerObserver):
    """As a log on a full disk."""

    def on_filter_decision(self, event: FilterDecision) -> None:
        raise OSError("No space left on device")


class Recording(SchedulerObserver):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []


def _note(name: str) -> Callable[..., None]:
    def note(self: Recording, *told: object) -> None:
        self.told.append((name, *told))

    return note


for method_name in METHODS:
    setattr(Recording, method_name, _note(method_name))


def test_everything_is_passed_on_to_every_member() -> None:
    first, second = Recording(), Recording()
    group = ObserverGroup(first, second)
    for name in METHODS:
        parameters = list(inspect.signature(getattr(SchedulerObserver, name)).parameters)[1:]
        getattr(group, name)(*(f"{name}-{place}" for place, _ in enumerate(parameters)))
    assert [told[0] for told in first.told] == METHODS
    assert all(told[1:] == tuple(f"{told[0]}-{place}" for place in range(len(told) - 1)) for told in first.told)
    assert first.told == second.told


def test_an_observer_that_fails_changes_no_decision_and_is_logged_once() -> None:
    world = JournalledWorld(serving_downward_api(node("n1").gpus(2)), log=Failing())
    with capture_logs() as lines:
        assert world.filtered(gpu_pod("a"))["NodeNames"] == ["n1"]
        assert world.filtered(gpu_pod("b"))["NodeNames"] == ["n1"]
    assert world.ledger.pod("uid-a") is not None
    assert [line["observer"] for line in lines if line["log_level"] == "error"] == ["Failing"]
