"""Hundreds of Allocates of every shape in any order, as the scheduler lets them through: not one wrong slice."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tessera.node.modes import hami_core
from tessera.node.modes.hami_core import DirRetention
from tessera_lab.sandbox.objects import has_ended, name_of, node_of
from tests.support.agent import Json
from tests.support.agent_cluster import ScheduledNode, allocates, is_handed_over, past_the_webhook, scheduled_node
from tests.support.product import container, pod, sidecar

CARDS = {"cards": [{"model": "A100-SXM4-80GB", "count": 8}]}
SPLIT = 64
AT_ONCE = 40
"""pods beside each other on the node; more than it could hold together pass through it"""


def mixed_pods(rng: random.Random, *, calls: int, by_webhook: float) -> list[Json]:
    """Pods for so many Allocates; this part of them meets the webhook."""
    manifests: list[Json] = []
    while sum(map(allocates, manifests)) < calls:
        name = f"p{len(manifests):03}"
        # A few sizes only, so that equal slices meet as often as different ones.
        mem = rng.choice((100, 100, 100, 200, 300 + len(manifests)))
        cards = rng.choice((1, 1, 1, 2, 3, 4))
        apps = [container(f"c{at}", gpu=cards if at == 0 else 1, mem=mem + at) for at in range(rng.randint(1, 3))]
        inits = [container(f"i{at}", gpu=rng.randint(1, 2), mem=mem) for at in range(rng.choice((0, 0, 0, 1, 2)))]
        if rng.random() < 0.15:
            inits.append(sidecar("s", gpu=1, mem=mem))
        manifest = pod(name, *apps, init=inits)
        manifests.append(manifest if rng.random() < by_webhook else past_the_webhook(manifest))
    return manifests


class Traffic:
    """Pods come, are admitted in any order, run, and go again."""

    def __init__(self, cluster: ScheduledNode, manifests: list[Json], rng: random.Random) -> None:
        self._cluster = cluster
        self._manifests = manifests
        self._rng = rng
        self._running: list[str] = []
        self.wrong: list[str] = []
        self.rejected: list[str] = []

    async def flow(self) -> None:
        left = iter(self._manifests)
        missing = len(self._manifests)
        there = 0
        async with asyncio.TaskGroup() as group:
            while missing:
                while there < AT_ONCE and (manifest := next(left, None)) is not None:
                    group.create_task(self._cluster.create(manifest))
                    there += 1
                for name in await self._cluster.node.plane.wait_for(self._to_do, 30.0, what="anything to happen"):
                    if name in self._running:
                        await self._leave(name)
                        there, missing = there - 1, missing - 1
                    else:
                        await self._admit(name)

    def _to_do(self) -> list[str]:
        """One bound pod to admit, if there is one, and all that may leave."""
        pods = [each for each in self._cluster.node.plane.pods("default") if node_of(each)]
        waiting = [name_of(each) for each in pods if name_of(each) not in self._running]
        over = [each for each in pods if is_handed_over(each) or has_ended(each)]
        done = [name_of(each) for each in over if name_of(each) in self._running]
        return [*done, *([self._rng.choice(waiting)] if waiting else [])]

    async def _admit(self, name: str) -> None:
        if not await self._cluster.kubelet.admit(name):
            self.rejected.append(f"{name}: {self._cluster.node.pod(name)['status']['message']}")
        self._running.append(name)

    async def _leave(self, name: str) -> None:
        self.wrong += self._cluster.kubelet.wrong_slices(name)
        self._running.remove(name)
        await self._cluster.kubelet.end(name)


@pytest.mark.parametrize(
    ("calls", "by_webhook", "flags"),
    [(80, 1.0, {}), (200, 0.7, {}), (80, 0.5, {"pass-device-specs": "true"})],
    ids=["by environment", "by environment, some past the webhook", "by answer"],
)
async def test_many_allocates_of_mixed_shapes_in_any_order_give_no_wrong_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int, by_webhook: float, flags: dict[str, str]
) -> None:
    monkeypatch.setattr(hami_core, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(hami_core, "DirRetention", lambda: DirRetention(grace=0.0))
    rng = random.Random(6)
    yaml = f"nvidia: {{deviceSplitCount: {SPLIT}}}\n"
    async with scheduled_node(tmp_path, pods=2 * AT_ONCE, cards=CARDS, yaml=yaml, flags=flags) as cluster:
        traffic = Traffic(cluster, mixed_pods(rng, calls=calls, by_webhook=by_webhook), rng)
        await traffic.flow()
        assert (traffic.rejected, traffic.wrong) == ([], [])
        assert cluster.kubelet.asked >= calls
        await cluster.nothing_is_left()
