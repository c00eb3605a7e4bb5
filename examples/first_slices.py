"""A first look at Tessera without a cluster: pods ask for slices, the decision core places them or says why not.

Every step takes the product's own path: the vendor completes the pod as the webhook would, the request is read from
the API object, the selector chooses, the ledger reserves, and the binding's annotations are what a real cluster would
see.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from tessera.core.advice import advise
from tessera.core.ledger import Ledger
from tessera.core.requests import PodRequest
from tessera.core.selection import Refused, Selector
from tessera.vendors.base import Switches
from tessera.vendors.reading_nodes import node_facts
from tessera.vendors.reading_pods import BadPod, pod_request
from tessera.vendors.registry import build_vendors
from tessera.vendors.writing import binding_annotations
from tessera.wire.objects import Node, Pod

BAR = 40
"""characters that stand for one card's memory"""
COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")

VENDORS = build_vendors(None, Switches())


def gpu_node(name: str, *, cards: int, model: str, memory: int) -> Node:
    """A node as its agent registers it: linked pairs of cards, one NUMA node for each half."""
    devices = [
        {"id": f"GPU-{name}-{i}", "index": i, "count": 10, "devmem": memory, "devcore": 100, "type": model,
         "numa": i * 2 // cards, "mode": "hami-core", "health": True}
        for i in range(cards)
    ]  # fmt: skip
    scores = [
        {"uuid": a["id"], "score": {b["id"]: 600 if j // 2 == i // 2 else 20 for j, b in enumerate(devices) if j != i}}
        for i, a in enumerate(devices)
    ]
    annotations = {
        "hami.io/node-nvidia-register": json.dumps(devices),
        "hami.io/node-nvidia-score": json.dumps(scores),
    }
    return msgspec.convert({"metadata": {"name": name, "annotations": annotations}}, Node)


def gpu_pod(name: str, limits: dict[str, int], annotations: dict[str, str] | None = None) -> Pod:
    document: dict[str, Any] = {
        "metadata": {"name": name, "namespace": "demo", "uid": f"uid-{name}", "annotations": annotations or {}},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {k: str(v) for k, v in limits.items()}}}]},
    }
    return msgspec.convert(document, Pod)


class Story:
    """A ledger, a selector and a screen."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, soft_wrap=True)
        self.ledger = Ledger(VENDORS)
        self.selector = Selector(self.ledger)
        self.step_number = 0

    def step(self, sentence: str) -> None:
        self.step_number += 1
        self.console.print(f"\n[bold]{self.step_number}. {sentence}[/bold]")

    def place(self, pod: Pod) -> PodRequest | None:
        """Ask, show the answer, reserve. None where the pod does not fit."""
        request = pod_request(pod, VENDORS)
        if isinstance(request, BadPod):
            self.console.print(f"   {pod.metadata.name}: [red]refused[/red]: {request.text}")
            return None
        answer = self.selector.select(request, self.selector.all_nodes())
        if isinstance(answer, Refused):
            self.console.print(f"   {request.name}: [red]does not fit[/red]")
            for name, misfit in sorted(answer.misfits.items()):
                self.console.print(f"      {name}: {misfit.text}")
            advice = advise(self.ledger, request, self.ledger.node_names())
            for line in (advice.near_miss, *advice.changes):
                if line is not None:
                    self.console.print(f"      [yellow]{line.text}[/yellow]")
            return None
        node = self.ledger.node(answer.placement.node)
        assert node is not None  # it was just chosen
        written = binding_annotations(request, answer.placement, node=node.facts, vendors=VENDORS, now=0)
        self.ledger.reserve(request, answer.placement, deadline=float("inf"))
        self.console.print(
            f"   {request.name}: [green]{answer.placement.node}[/green] {written['hami.io/vgpu-devices-allocated']}"
        )
        return request

    def show(self) -> None:
        """Every card as a bar, filled by the pods that hold a part of it."""
        pods = {entry.facts.uid: i for i, entry in enumerate(self.ledger.pods())}
        for name in self.ledger.node_names():
            node = self.ledger.node(name)
            assert node is not None  # names are of registered nodes
            for card in node.cards:
                bar = Text("   ")
                bar.append(f"{card.device.uuid:14}")
                filled = 0
                for tenant in card.tenants:
                    entry = self.ledger.pod(tenant.uid)
                    assert entry is not None  # tenants are pods of the ledger
                    memory = entry.holdings[card.device.uuid].use.memory
                    width = max(round(BAR * memory / card.device.memory), 1)
                    filled += width
                    label = entry.facts.name[: width - 1].ljust(width)
                    bar.append(label, style=f"black on {COLOURS[pods[tenant.uid] % len(COLOURS)]}")
                bar.append("·" * max(BAR - filled, 0), style="dim")
                bar.append(f" {card.used_memory:6}/{card.device.memory} MiB  {card.used_cores:3}% cores")
                self.console.print(bar)


def main() -> None:
    story = Story()
    story.step("Three nodes register their cards.")
    for node in (
        gpu_node("a100-1", cards=2, model="NVIDIA A100-SXM4-40GB", memory=40960),
        gpu_node("a100-2", cards=4, model="NVIDIA A100-SXM4-40GB", memory=40960),
        gpu_node("l4-1", cards=1, model="NVIDIA L4", memory=23034),
    ):
        story.ledger.observe_node(node_facts(node, VENDORS))
    story.show()

    story.step("Inference pods ask for a part of a card and share one.")
    binpack = {"hami.io/gpu-scheduler-policy": "binpack"}
    for i in range(3):
        limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8000, "nvidia.com/gpucores": 25}
        story.place(gpu_pod(f"infer-{i}", limits, binpack))

    story.step("A training pod asks for two whole cards that are linked.")
    limits = {"nvidia.com/gpu": 2, "nvidia.com/gpucores": 100}
    linked = {"hami.io/gpu-scheduler-policy": "topology-aware"}
    training = story.place(gpu_pod("training", limits, linked))

    story.step("A pod that wants an L4 and nothing else.")
    story.place(gpu_pod("l4-only", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 16000}, {"nvidia.com/use-gputype": "L4"}))
    story.show()

    story.step("A greedy pod: three whole cards. It does not fit, and Tessera says what would.")
    greedy = gpu_pod("greedy", {"nvidia.com/gpu": 3, "nvidia.com/gpucores": 100})
    story.place(greedy)

    story.step("A request that cannot be meant is refused with the value to write.")
    story.place(gpu_pod("typo", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8 * 2**30}))

    story.step("The training pod ends; its cards are free at once, and the greedy pod goes in.")
    if training is not None:
        story.ledger.release(training.uid)
    story.place(greedy)
    story.show()


if __name__ == "__main__":
    main()
