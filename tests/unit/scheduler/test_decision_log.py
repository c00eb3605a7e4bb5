"""Placements, refusals and denials are one log line each; repeats are counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tessera.scheduler.decision_log import DecisionLog
from tests.support.builders import gpu_pod, node
from tests.support.event_loops import in_fake_time
from tests.support.journals import JournalledWorld
from tests.support.logs import Logs, captured
from tests.support.stepwise_scheduler import serving_downward_api, using_downward_api


@pytest.fixture
def logs() -> Iterator[Logs]:
    with captured() as found:
        yield found


def world_with(*memory: int) -> JournalledWorld:
    nodes = (serving_downward_api(node(f"n{i}").gpus(1, memory=size)) for i, size in enumerate(memory, start=1))
    return JournalledWorld(*nodes, log=DecisionLog())


def lines(logs: Logs) -> list[dict[str, Any]]:
    return [{key: value for key, value in event.items() if key != "level"} for event in logs.events]


def test_a_placement_is_one_line(logs: Logs) -> None:
    world = world_with(1000)
    world.chosen(gpu_pod(mem=100))
    assert lines(logs) == [{"event": "pod placed", "pod": "default/p", "node": "n1", "score": 0.0}]
    assert [event["level"] for event in logs.events] == ["info"]


def test_a_refusal_is_one_line_however_often_it_is_repeated_and_the_placement_counts_them(logs: Logs) -> None:
    world = world_with(1000)
    one = gpu_pod(mem=5000)
    for _ in range(50):
        world.filtered(one)
    refused = {"event": "pod refused", "pod": "default/p", "reason": "1/1 CardInsufficientMemory"}
    assert lines(logs) == [{**refused, "nodes": 1, "refusals": 1}]
    world.api.add_node(serving_downward_api(node("n2").gpus(1, memory=9000)))
    world.watch()
    world.chosen(one)
    assert lines(logs)[1:] == [{"event": "pod placed", "pod": "default/p", "node": "n2", "score": 0.0, "refusals": 50}]


def test_a_reason_that_changes_is_logged_but_not_each_time_it_changes_back(logs: Logs) -> None:
    world = world_with(1000)
    one = gpu_pod(mem=5000)
    plain, cordoned = node("n1").gpus(1, memory=1000), node("n1").gpus(1, memory=1000).cordon("n1-0")
    for number in range(64):
        world.api.add_node(serving_downward_api(cordoned if number % 2 else plain))
        world.watch()
        world.filtered(one)
    found = [(line["reason"], line["refusals"]) for line in lines(logs) if line["event"] == "pod refused"]
    assert found[:2] == [("1/1 CardInsufficientMemory", 1), ("1/1 CardCordoned", 2)]
    assert len(found) <= 7


def test_a_pod_that_is_gone_is_forgotten(logs: Logs) -> None:
    world = world_with(1000)
    one = gpu_pod(mem=5000)
    world.create(one)
    world.filtered(one)
    world.api.delete_pod("default/p")
    world.watch()
    world.create(one)
    world.filtered(one)
    assert [line["refusals"] for line in lines(logs)] == [1, 1]


@in_fake_time
async def test_a_bind_that_places_a_pod_and_one_that_cannot_are_lines(logs: Logs) -> None:
    world = world_with(1000)
    one, two = using_downward_api(gpu_pod(mem=900)), using_downward_api(gpu_pod("two", mem=900))
    world.create(one, two)
    await world.bound(one)
    await world.bound(two)
    assert lines(logs) == [
        {"event": "pod placed", "pod": "default/p", "node": "n1"},
        {"event": "pod refused", "pod": "default/two", "node": "n1", "reason": "1/1 CardInsufficientMemory"},
    ]


def test_a_denial_is_one_line(logs: Logs) -> None:
    DecisionLog().on_denied("team", "web-", "too much")
    assert lines(logs) == [{"event": "pod denied", "pod": "team/web-", "reason": "too much"}]
