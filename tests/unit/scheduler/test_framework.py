"""The pipeline without features, and with one of twenty lines that is named in no other module."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tessera.core.model.misfits import Reason, node_misfit
from tessera.scheduler.features.registry import FEATURES
from tessera.scheduler.framework import Attempt, Feature, Pipeline, Refusal
from tessera.scheduler.pod_cycle import PodCycle
from tests.support.builders import gpu_pod, node
from tests.support.event_loops import in_fake_time
from tests.support.stepwise_scheduler import World


class Quarantine(Feature):
    """Refuses pods with a label, and counts those that are bound."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self.bound = 0

    def concerns(self, attempt: Attempt) -> bool:
        return "quarantine" in (attempt.pod.metadata.labels or {})

    def place(self, attempt: Attempt) -> Refusal:
        return Refusal(node_misfit(Reason.NODE_UNAVAILABLE), is_first=True, refusals=1)

    def post_bind(self, cycle: PodCycle, error: str) -> None:
        self.bound += not error


class Patience(Feature):
    """Lets no pod be bound before it is told to."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self.is_over = asyncio.Event()

    async def permit(self, cycle: PodCycle) -> str:
        await self.is_over.wait()
        return ""


class Plain(World):
    features = ()


class Alone(World):
    features = (Quarantine,)


class Waiting(World):
    features = (Patience,)


class BeforeOthers(World):
    features = (Quarantine, *FEATURES)


@in_fake_time
async def test_without_features_the_pipeline_schedules_plain_pods() -> None:
    world = Plain(node("n1").gpus(1))
    first, second = gpu_pod("first"), gpu_pod("second")
    world.create(first, second)
    assert world.chosen(first) == "n1"
    assert "CardInsufficientMemory" in world.filtered(second)["FailedNodes"]["n1"]
    assert await world.bound(first) == ""
    assert world.api.pods["default/first"].spec.node_name == "n1"
    world.api.delete_pod("default/first")
    world.watch()
    assert world.chosen(second) == "n1"
    world.engine.tick()
    world.engine.step_down()


@pytest.mark.parametrize("kind", [Alone, BeforeOthers])
@in_fake_time
async def test_a_feature_is_one_class_and_one_line(kind: type[World]) -> None:
    world = kind(node("n1").gpus(1))
    marked, plain = gpu_pod("marked").labelled(quarantine="yes"), gpu_pod("plain")
    world.create(marked, plain)
    assert world.filtered(marked)["FailedNodes"] == {"n1": Reason.NODE_UNAVAILABLE}
    assert world.chosen(plain) == "n1"
    assert await world.bound(plain) == ""
    assert await world.bound(marked) != "", "there is no room beside the other pod"
    assert world.engine.feature(Quarantine).bound == 1


@in_fake_time
async def test_a_pod_that_is_gone_when_it_is_permitted_is_not_bound() -> None:
    world = Waiting(node("n1").gpus(1))
    pod = gpu_pod("p")
    world.create(pod)
    assert world.chosen(pod) == "n1"
    binding = asyncio.create_task(world.bound(pod))
    await asyncio.sleep(1)
    world.api.delete_pod("default/p")
    world.watch()
    world.engine.feature(Patience).is_over.set()
    assert await binding == "pod default/p was deleted or bound meanwhile"
    assert world.api.calls == []
    assert world.chosen(gpu_pod("next")) == "n1"


def test_a_plain_pod_asks_each_feature_one_question() -> None:
    world = BeforeOthers(node("n1").gpus(1))
    asked: Counter[str] = Counter()
    for feature in world.engine.features:
        for name in (name for name, found in vars(Feature).items() if callable(found) and not name.startswith("_")):
            setattr(feature, name, _counting(asked, name, getattr(feature, name)))
    assert world.chosen(gpu_pod("plain")) == "n1"
    assert asked == {"concerns": len(world.engine.features)}


def _counting(asked: Counter[str], name: str, called: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        asked[name] += 1
        return called(*args, **kwargs)

    return wrapper
