"""Tenants of the model: they create pods, delete them at any moment, bind some by their manifest, and change quotas.

Names come again, with other pods behind them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from tessera.wire.objects import Metadata, Pod
from tests.model import claims, device_usage, shapes
from tests.model.apiserver import SimulatedApiserver
from tests.model.bindings import Bindings

PODS = 30
NAMES = 24
"""of pods in a namespace: few, so that names repeat"""
NAMESPACES = ("blue", "red")


@dataclass
class Tenants:
    """Methods without arguments are events. They return a description, or None if nothing could happen."""

    api: SimulatedApiserver
    bindings: Bindings
    rng: random.Random
    recipes: tuple[str, ...]
    nodes: tuple[str, ...]
    gangs: int = 0
    """created so far"""

    def create_pod(self) -> str | None:
        if len(self.api.pods.objects) >= PODS:
            return None
        namespace, name = self.rng.choice(NAMESPACES), f"p{self.rng.randrange(NAMES)}"
        recipe = self.rng.choice(self.recipes)
        if f"{namespace}/{name}" in self.api.pods.objects or (recipe in shapes.RARE and self.rng.random() < 0.8):
            return None
        is_left = recipe in claims.recipes() and self.rng.random() < 0.2
        template = claims.stock_pod(recipe) if is_left else claims.template(recipe)
        pod = self.api.create_pod(template, namespace=namespace, name=name)
        return f"{namespace}/{name} {pod.metadata.uid}: {recipe}"

    def create_gang(self) -> str | None:
        """All members at once, or all but one that never comes."""
        size = self.rng.choice((2, 2, 3, 4, 5))
        if len(self.api.pods.objects) + size > PODS:
            return None
        self.gangs += 1
        namespace, name = self.rng.choice(NAMESPACES), f"g{self.gangs}"
        # The lowest priority of its members counts: of a mixture few gangs would preempt.
        high = [recipe for recipe in self.recipes if recipe.endswith("^^")]
        recipes = self.rng.choices(high if high and self.rng.random() < 0.6 else self.recipes, k=2)
        missing = self.rng.random() < 0.15
        for number in range(size - missing):
            built = claims.template(recipes[self.rng.random() < 0.2])
            template = shapes.in_gang(built, name, size, is_whole=not missing)
            self.api.create_pod(template, namespace=namespace, name=f"{name}-{number}")
        return f"{namespace}/{name}: {size - missing} of {size} members, {' or '.join(recipes)}"

    def bind_directly(self) -> str | None:
        """Creates a pod with its node in the manifest, and unchecked annotations."""
        namespace, name = self.rng.choice(NAMESPACES), "direct"
        if f"{namespace}/{name}" in self.api.pods.objects:
            self.remove(f"{namespace}/{name}")
            return f"{namespace}/{name} gone"
        node = self.rng.choice(self.nodes)
        kind = self.rng.choice(("unreadable", "unreadable", "readable", "nothing"))
        template = shapes.template("small")
        if kind != "nothing":
            text = f"{node}-0,NVIDIA,{'2000' if kind == 'readable' else 'lots'},5:;"
            annotations = {device_usage.ALLOCATED["NVIDIA"]: text}
            template = replace(template, metadata=Metadata(annotations=annotations, labels={kind: ""}))
        pod = self.api.create_pod(template, namespace=namespace, name=name, node=node)
        if kind == "readable":
            self.bindings.excuse_pod(pod, "bound by another program")
        return f"{namespace}/{name} on {node}: {kind}"

    def delete_pod(self) -> str | None:
        found = self.some_pod(lambda pod: pod.status.phase in device_usage.OVER) if self.rng.random() < 0.5 else None
        found = found or self.some_pod(lambda pod: not pod.metadata.deletion_timestamp)
        if found is None:
            return None
        key, pod = found
        at_once = self.rng.random() < (0.3 if pod.spec.node_name else 0.9)
        if at_once:
            self.remove(key)
        else:
            self.api.delete_pod(key, at_once=False)
        return f"{key} {pod.metadata.uid}{' at once' if at_once else ''}"

    def remove_terminating(self) -> str | None:
        found = self.some_pod(lambda pod: bool(pod.metadata.deletion_timestamp))
        if found is None:
            return None
        self.remove(found[0])
        return found[0]

    def change_quota(self) -> str | None:
        namespace, name = self.rng.choice(NAMESPACES), f"q{self.rng.randrange(2)}"
        key = f"{namespace}/{name}"
        self.bindings.excused_quotas[namespace] = "its quota changed"
        if key in self.api.quotas.objects and self.rng.random() < 0.5:
            self.api.quotas.remove(key)
            return f"{key} gone"
        hard = {
            shapes.MEMORY: self.rng.choice((40000, 80000, 200000)),
            shapes.CORES: self.rng.choice((150, 400)),
            shapes.MLU_MEMORY: self.rng.choice((32, 128)),
            shapes.XPU_MEMORY: self.rng.choice((98304, 200000)),
        }
        chosen = {resource: limit for resource, limit in hard.items() if self.rng.random() < 0.3}
        self.api.put_quota(shapes.quota(namespace, name, chosen))
        return f"{key} {chosen}"

    def some_pod(self, wanted: Callable[[Pod], bool]) -> tuple[str, Pod] | None:
        found = [(key, pod) for key, pod in self.api.pods.objects.items() if wanted(pod)]
        return self.rng.choice(found) if found else None

    def remove(self, key: str) -> None:
        self.bindings.handing.pop(self.api.pods.objects[key].metadata.uid, None)
        self.api.delete_pod(key, at_once=True)
