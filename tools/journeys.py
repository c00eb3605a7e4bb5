"""How long the way of a pod through filter is: modules, functions, calls and depth, counted by a profile.

    python -m tools.journeys            the three journeys: a plain pod, the first member of a gang, a pod with a claim
    python -m tools.journeys --calls    and which functions are called how often

Each journey is counted twice: the first filter of an engine that has just read its cluster, and the first filter of
another pod (or gang) of the same shape, for which caches are warm. Only functions of Tessera count; comprehensions and
generator expressions are functions, too, and each step of a generator is a call. The numbers do not depend on the
machine, so they can be compared between commits.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import tessera
from tests.support.builders import NodeBuilder, PodBuilder, gpu_pod, node, pod
from tests.support.claim_scheduler import ClaimWorld, agent_node, templated
from tests.support.stepwise_scheduler import World, filter_body

PACKAGE = f"{Path(tessera.__file__).parent}/"
NODES = ("n1", "n2", "n3")
GANG = 4
"""members"""


class Profile:
    """Counts calls of Tessera's functions."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        """by file and name of the function"""
        self.depth = 0
        self._now = 0

    def run(self, work: Callable[[], object]) -> None:
        sys.setprofile(self._count)
        try:
            work()
        finally:
            sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE):
            return
        if event == "call":
            self.calls[code.co_filename.removeprefix(PACKAGE), code.co_qualname] += 1
            self._now += 1
            self.depth = max(self.depth, self._now)
        elif event == "return":
            self._now -= 1

    def figures(self) -> str:
        modules = {file for file, _ in self.calls}
        return f"{len(modules):8} {len(self.calls):10} {self.calls.total():6} {self.depth:6}"


def plain_pod(world: World, name: str) -> PodBuilder:
    created = gpu_pod(name, mem=1000)
    world.create(created)
    return created


def gang_member(world: World, name: str) -> PodBuilder:
    """The first of a gang that is complete."""
    members = [gpu_pod(f"{name}-{i}", mem=1000).in_gang(name, GANG) for i in range(GANG)]
    world.create(*members)
    return members[0]


def pod_with_claim(world: World, name: str) -> PodBuilder:
    assert isinstance(world, ClaimWorld)
    created = templated(pod(name), claim=f"claim-{name}")
    world.claim(f"claim-{name}", owner=created, memory=1000, cores=10)
    world.create(created)
    return created


def shared_nodes() -> list[NodeBuilder]:
    return [node(name).gpus(4) for name in NODES]


def plain_world() -> World:
    world = World(*shared_nodes())
    for handler in world.engine.awaited.values():
        handler.synced()
    return world


def claim_world() -> World:
    world = ClaimWorld(*(agent_node(name).gpus(1) for name in NODES))
    world.sync()
    return world


JOURNEYS: dict[str, tuple[Callable[[], World], Callable[[World, str], PodBuilder]]] = {
    "plain": (plain_world, plain_pod),
    "gang": (plain_world, gang_member),
    "claim": (claim_world, pod_with_claim),
}


def profile(world: World, asked: PodBuilder) -> Profile:
    """One filter of a pod that the informers have seen."""
    document: dict[str, Any] = asked.manifest()
    metadata = document["metadata"]
    stored = world.api.pods[f"{metadata['namespace']}/{metadata['name']}"]
    metadata["resourceVersion"] = stored.metadata.resource_version
    body, found = filter_body(document, NODES), Profile()
    found.run(lambda: world.engine.answer_filter(body))
    held = world.ledger.pod(metadata["uid"])
    assert held is not None, f"{asked.name} was not placed"
    return found


async def measure(*, shows_calls: bool) -> None:
    print(f"{'':16}{'modules':>8} {'functions':>10} {'calls':>6} {'depth':>6}")
    for name, (make_world, make_pod) in JOURNEYS.items():
        world = make_world()
        for which in ("first", "again"):
            found = profile(world, make_pod(world, which))
            print(f"{name:7}{which:9}{found.figures()}")
            for (file, function), count in found.calls.most_common() if shows_calls else ():
                print(f"{count:8} {file}:{function}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", action="store_true", help="print the functions by number of calls")
    asyncio.run(measure(shows_calls=parser.parse_args(arguments).calls))


if __name__ == "__main__":
    main()
