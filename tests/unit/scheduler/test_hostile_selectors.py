"""Selectors of claims that are meant to stop the scheduler: each is refused with a reason, or decided in slices."""

from __future__ import annotations

import pytest

from tessera.scheduler import filter as filter_module
from tessera.scheduler.filter import UNFINISHED
from tessera.scheduler.queue import unschedulable_pods
from tests.support.builders import PodBuilder, gpu_pod, pod
from tests.support.claim_scheduler import ClaimWorld, agent_node, claiming
from tests.support.event_loops import in_fake_time

G = "device.attributes['gpu.tessera.io']"
USER = claiming(pod(), "c")


def bound_lists(item: str) -> str:
    """8 ** 16 comparisons in 600 characters."""
    text = "a == b"
    for _ in range(8):
        text = f"cel.bind(a, [a,a,a,a,a,a,a,a], cel.bind(b, [b,b,b,b,b,b,b,b], {text}))"
    return f"cel.bind(a, [{item}], cel.bind(b, [{item}], {text}))"


def reason(world: ClaimWorld, asking: PodBuilder) -> str:
    answer = world.filtered(asking)
    assert answer["NodeNames"] is None
    [found] = {*(answer["FailedNodes"] or {}).values(), *(answer["FailedAndUnresolvableNodes"] or {}).values()}
    return str(found)


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        (bound_lists("1"), "is not supported: it takes too much work, whatever the device is"),
        (bound_lists(f"{G}.model"), "2/2 CardSelectorTooCostly"),
        (f"{bound_lists(f'{G}.model')} || true", "2/2 CardSelectorTooCostly"),
    ],
)
def test_a_selector_that_would_never_end_is_refused_and_other_pods_are_placed(selector: str, text: str) -> None:
    world = ClaimWorld(agent_node().gpus(2))
    world.claim("c", selector=selector)
    other = gpu_pod("other", mem=1000)
    world.create(USER, other)
    assert text in reason(world, USER)
    assert world.chosen(other) == "n1"


def test_the_selectors_of_all_claims_of_a_pod_are_limited_together() -> None:
    world = ClaimWorld(agent_node().gpus(4))
    names = [f"c{number}" for number in range(4)]
    for name in names:
        world.claim(name, selector=f"{G}.model != '{name}{'x' * 5000}'", memory=1000)
    many, few = claiming(pod("many"), *names), claiming(pod("few"), *names[:2])
    world.create(many, few)
    assert reason(world, many) == "selectors with more than 16384 characters in all; see docs/claims.md"
    assert world.chosen(few) == "n1"


@in_fake_time
async def test_a_decision_about_many_cards_goes_on_between_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_module, "MAX_WORK", 10)
    monkeypatch.setattr(unschedulable_pods, "MAX_WORK", 10)
    world = ClaimWorld(*(agent_node(f"n{number}").gpus(8) for number in range(8)))
    world.claim("c", selector=f"{G}.uuid == 'n7-3'", memory=1000)
    other = gpu_pod("other", mem=1000)
    world.create(USER, other)
    answer = world.filtered(USER)
    assert UNFINISHED in answer["Error"]
    assert world.chosen(other)
    assert [each.uid async for each in world.unschedulable.wake(world.selector)] == ["uid-p"]
    assert world.chosen(USER) == "n7"


@in_fake_time
async def test_alternatives_share_the_work_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that is refused takes some of it."""
    monkeypatch.setattr(filter_module, "MAX_WORK", 30)
    world = ClaimWorld(*(agent_node(f"n{number}").gpus(8) for number in range(8)))
    ways = [
        {"name": f"w{number}", "deviceClassName": "gpu.tessera.io",
         "selectors": [{"cel": {"expression": f"{G}.uuid == 'no-{number}'"}}]}
        for number in range(8)
    ]  # fmt: skip
    world.claim_of({"name": "gpu", "firstAvailable": ways})
    world.create(USER)
    calls = 1
    while UNFINISHED in world.filtered(USER)["Error"]:
        calls += 1
        assert calls < 100
    assert calls > 8
    assert reason(world, USER) == "8/8 CardSelectorMismatch"
