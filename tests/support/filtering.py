"""Filter calls on the stepwise scheduler: what an answer has, and what was told of it."""

from __future__ import annotations

from typing import Any

from tests.support.builders import NodeBuilder, node
from tests.support.stepwise_scheduler import World

NOTHING = {
    "Nodes": None,
    "NodeNames": None,
    "FailedNodes": None,
    "FailedAndUnresolvableNodes": None,
    "Error": "",
}


def world(*nodes: NodeBuilder) -> World:
    return World(*(nodes or (node("n1").gpus(1), node("n2").gpus(1))))


def one_card(name: str = "n1", **card: Any) -> NodeBuilder:
    return node(name).gpus(1, **card)


def told(cluster: World) -> list[tuple[str, bool, str]]:
    placed = [(event.request.name, True, event.describe()) for event in cluster.reports.placed]
    refused = [(event.request.name, False, event.describe()) for event in cluster.reports.refused if event.is_first]
    return placed + refused
