"""The worst PodDisruptionBudgets that an apiserver accepts, for `bench.hostile`.

What it costs to show them, and to answer where a preemption helps."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from time import thread_time
from typing import Any, NamedTuple, Protocol

import msgspec

from bench.core import make_held, make_node
from tessera.scheduler.engine import Engine
from tessera.wire.objects import Metadata, Pod, PodDisruptionBudget

Json = dict[str, Any]
Steps = Coroutine[Any, Any, bytes]

NODES, CARDS, PODS_PER_NODE = 500, 8, 4
"""whose pods are of the tenant that has the budgets"""
ASKED = 64
"""nodes that kube-scheduler names"""
NAMESPACE = "bench"
BODY = 1_400 << 10
"""bytes; etcd accepts requests of 1.5 MiB"""


class Stretches(Protocol):
    """Runs a coroutine; the longest time between two of its pauses, in seconds, and their number."""

    longest: float
    count: int

    async def run(self) -> bytes: ...


class BudgetCost(NamedTuple):
    name: str
    longest_ms: float
    stretches: int
    total_ms: float


def budget_costs(engine: Engine, run: Callable[[Steps], Stretches], asked: Json) -> Iterator[BudgetCost]:
    """`run` finishes a coroutine, and `asked` is a pod that fits nowhere as it is."""
    asked["spec"] |= {"priority": 1_000}
    for name, budgets, labels in cases():
        _show_pods(engine, labels)
        longest = total = 0.0
        for number, selector in enumerate(budgets):
            found = _budget(f"b{number}", selector)
            began = thread_time()
            engine.victims.put_budget(f"{NAMESPACE}/b{number}", found)
            spent = thread_time() - began
            longest, total = max(longest, spent), total + spent
        began = thread_time()
        steps = run(_preempt(engine, asked))
        total += thread_time() - began
        yield BudgetCost(name, max(longest, steps.longest) * 1_000, steps.count, total * 1_000)
        for number in range(len(budgets)):
            engine.victims.drop_budget(f"{NAMESPACE}/b{number}")


def cases() -> Iterator[tuple[str, list[Json], dict[str, str]]]:
    """Name, selectors, and the labels of each pod."""
    few = {"app": "x", "pod-template-hash": "y"}
    yield "1000 budgets", [{"matchLabels": {"app": f"a{i}"}} for i in range(1_000)], few
    yield "3000 budgets", [{"matchLabels": {"app": f"a{i}"}} for i in range(3_000)], few
    unlike = [{"key": f"k{i}", "operator": "NotIn", "values": ["v"]} for i in range(20)]
    other = [{"key": "app", "operator": "NotIn", "values": ["x"]}]
    yield "3000 budgets with 20 expressions that match", [{"matchExpressions": unlike}] * 3_000, few
    yield "3000 budgets with 20 that do not", [{"matchExpressions": unlike + other}] * 3_000, few
    yield "20,000 budgets that match every pod", [{}] * 20_000, few
    large = [{"key": f"k{i}", "operator": "NotIn", "values": ["v"]} for i in range(BODY // 50)]
    yield "20 budgets of 1.4 MB", [{"matchExpressions": large + other}] * 20, few
    values = [{"key": "app", "operator": "NotIn", "values": [f"{i:05x}" for i in range(BODY // 8)] + ["x"]}]
    yield "20 budgets with 1.4 MB of values", [{"matchExpressions": values}] * 20, few
    many = {f"k{i}": "w" for i in range(2_000)} | few
    yield "300 budgets, pods with 2000 labels", [{"matchExpressions": large[:2_000] + other}] * 300, many


def _show_pods(engine: Engine, labels: dict[str, str]) -> None:
    for number in range(NODES):
        node = make_node(number, CARDS)
        for held in range(PODS_PER_NODE):
            facts = make_held(node, held)
            shown = Metadata(facts.name, namespace=NAMESPACE, uid=facts.uid, labels=labels)
            engine.victims.put_pod(Pod(shown), facts)


def _budget(name: str, selector: Json) -> PodDisruptionBudget:
    document = {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"selector": selector}}
    return msgspec.convert(document, PodDisruptionBudget)


async def _preempt(engine: Engine, asked: Json) -> bytes:
    victims = {make_node(number, CARDS).name: {"Pods": [], "NumPDBViolations": 0} for number in range(ASKED)}
    body = msgspec.json.encode({"Pod": asked, "NodeNameToMetaVictims": victims})
    answer: Any = engine.answer_preempt(body)
    return answer if isinstance(answer, bytes) else await answer
